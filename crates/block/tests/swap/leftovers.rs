//! What a server leaves behind, and its end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cenote_block::swap::LoopDevice;

pub fn assert_nothing_left(dir: &Path, device: &Path) {
    let swaps = fs::read_to_string("/proc/swaps").unwrap();
    let name = format!("{} ", device.display());
    assert!(!swaps.contains(&name), "swap is still on: {swaps}");
    let label = LoopDevice::label_of(device);
    assert!(label.is_err(), "the loop device is still there: {label:?}");
    let name = device.file_name().unwrap();
    let client = Path::new("/sys/block").join(name).join("pid");
    assert!(!client.exists(), "the nbd device is still connected");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(
        !mounts.contains(dir.to_str().unwrap()),
        "still mounted: {mounts}"
    );
    let left: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name != "swap.log")
        .collect();
    assert!(left.is_empty(), "files left: {left:?}");
}

pub fn wait_until(what: &str, holds: impl FnMut() -> bool) {
    cenote_test_kit::wait_until(holds, || what.into());
}

/// A server that was killed may be held in the kernel, by its device for one: says where.
pub fn wait_until_gone(pid: u32) {
    let started = std::time::Instant::now();
    while is_alive(pid) {
        let is_late = started.elapsed() > Duration::from_secs(60);
        assert!(!is_late, "still there after a minute:\n{}", threads_of(pid));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The state of each thread, and where in the kernel it is.
fn threads_of(pid: u32) -> String {
    let read = |file: PathBuf| fs::read_to_string(file).unwrap_or_else(|error| error.to_string());
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    threads
        .flatten()
        .map(|thread| {
            let of = |name| read(thread.path().join(name));
            format!("{}{}{}", of("comm"), of("status"), of("stack"))
        })
        .collect()
}

/// A server is a child of this process, so it is looked at by waiting for it.
fn is_alive(pid: u32) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::waitpid(pid as libc::pid_t, std::ptr::null_mut(), libc::WNOHANG) == 0 }
}

pub fn kill(pid: u32, signal: i32) {
    // SAFETY: a server that this test started and has not waited for.
    assert_eq!(unsafe { libc::kill(pid as libc::pid_t, signal) }, 0);
}

//! A server one of whose threads cannot go on.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};

use crate::client::*;

/// Set where [`server_process`] is to serve.
const SERVES: &str = "CENOTE_NBD_TEST_SERVES";

/// Half a server would keep its clients waiting, and be given new ones.
#[test]
fn a_worker_that_cannot_wait_any_more_takes_its_process_along() {
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "thread_end::server_process", "--nocapture"])
        .env(SERVES, "1")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(ended.signal(), Some(libc::SIGABRT), "{ended}");
}

/// Not a test of its own: what the one above starts.
#[test]
fn server_process() {
    if std::env::var_os(SERVES).is_none() {
        return;
    }
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    // From its next wait on its worker gets an error.
    let not_epoll = File::open("/dev/null").unwrap();
    for epoll in epolls() {
        // SAFETY: two open descriptors; what used the second gets errors, which is the point.
        assert_eq!(unsafe { libc::dup2(not_epoll.as_raw_fd(), epoll) }, epoll);
    }
    client.request((FLUSH, 0), 1, 0, 0);
    assert_eq!(client.simple_reply(), (0, 1));
    assert!(client.is_closed());
    // Waits for the end of the thread, which takes the process along first.
    drop(fixture);
}

/// Descriptors of this process that are epoll's.
fn epolls() -> Vec<RawFd> {
    let all = fs::read_dir("/proc/self/fd").unwrap();
    let all = all.map(|entry| entry.unwrap().path());
    let is_epoll = |path: &std::path::PathBuf| {
        fs::read_link(path).is_ok_and(|target| target.ends_with("anon_inode:[eventpoll]"))
    };
    let names = all.filter(is_epoll);
    let numbers = names.map(|path| path.file_name().unwrap().to_str().unwrap().parse());
    numbers.collect::<Result<_, _>>().unwrap()
}

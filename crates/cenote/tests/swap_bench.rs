//! `cenote bench swap` as a user runs it: pages that come back over both FUSE transports.

mod support;

use support::run;

#[test]
fn both_transports_are_measured_beside_nbdkit_and_the_kernel_is_left_as_it_was() {
    if let Some(lacks) = lacks() {
        println!("skipped: pages that come back from swap: needs {lacks}");
        return;
    }
    let before = std::fs::read_to_string(SWITCH).unwrap();

    let ended = run(&["bench", "swap", "--json", "--quick"]).expect(0);

    let lines: Vec<serde_json::Value> = (ended.stdout.lines())
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    // Random and sequential, one and two threads; ours by io_uring beside two peers, ours by
    // /dev/fuse beside one; four figures each.
    assert_eq!(lines.len(), 2 * 2 * (2 + 1) * 4, "{ended:#?}");
    for line in &lines {
        assert_eq!(line["bench"], "swap");
        for figure in ["ours", "theirs", "ratio"] {
            assert!(line[figure].is_number(), "{figure} in {line}");
        }
    }
    assert_eq!(std::fs::read_to_string(SWITCH).unwrap(), before);
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap();
    assert_eq!(swaps.lines().count(), 1, "swap is still on: {swaps}");
}

/// What this machine lacks for it.
fn lacks() -> Option<&'static str> {
    // SAFETY: no arguments, no memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|dir| dir.join(program).exists());
    if !is_root {
        Some("root")
    } else if swaps.is_empty() {
        Some("swap in the kernel")
    } else if swaps.lines().count() > 1 {
        Some("a machine without swap of its own")
    } else if std::path::Path::new("/sys/block/nbd0").exists() {
        Some("a kernel without nbd")
    } else if !std::path::Path::new(SWITCH).exists() {
        Some("FUSE over io_uring in the kernel")
    } else if !has("nbdkit") || !has("nbdfuse") {
        Some("nbdkit and nbdfuse")
    } else {
        None
    }
}

const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

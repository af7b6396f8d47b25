//! `cenote bench pager` as a user runs it: the paged heap beside swap, on real faults.

mod support;

use support::{run, words};

#[test]
fn the_paged_heap_is_measured_beside_swap() {
    if let Some(lacks) = lacks() {
        println!("skipped: the paged heap beside swap: needs {lacks}");
        return;
    }
    let shorter = words("--quick --transport shm --slots rs --resident 50");
    let ended = run(&[&["bench", "pager", "--json"], &shorter[..]].concat()).expect(0);
    let lines: Vec<serde_json::Value> = (ended.stdout.lines())
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    // Four patterns, one and two threads, three figures each; memcached before and after a kill.
    assert_eq!(lines.len(), 4 * 2 * 3 + 2 * 3, "{ended:#?}");
    for line in &lines {
        assert_eq!(line["bench"], "pager");
        assert_eq!(line["peer"], "cenote swap, rs:8+2 shm");
        for figure in ["ours", "theirs", "ratio"] {
            assert!(line[figure].is_number(), "{figure} in {line}");
        }
    }
    let is_of_kill = |line: &&serde_json::Value| {
        let case = line["case"].as_str();
        case.is_some_and(|case| case.ends_with("memcached h1, two hosts killed"))
    };
    assert_eq!(lines.iter().filter(is_of_kill).count(), 3, "{ended:#?}");
    let checked = ended.stderr.matches("values checked, none was wrong");
    assert_eq!(checked.count(), 2, "{ended:#?}");
    // What was read ahead is told, and that pages were right is what the program checks itself.
    assert!(ended.stderr.contains("read ahead"), "{ended:#?}");
}

/// What this machine lacks for it.
fn lacks() -> Option<&'static str> {
    // SAFETY: no arguments, no memory.
    let is_root = unsafe { libc::geteuid() } == 0;
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if !is_root {
        Some("root")
    } else if swaps.is_empty() {
        Some("swap in the kernel")
    } else if swaps.lines().count() > 1 {
        Some("a machine without swap of its own")
    } else if !std::path::Path::new("/dev/fuse").exists() {
        Some("/dev/fuse")
    } else if let Err(error) = cenote_pager::works() {
        println!("userfaultfd: {error}");
        Some("userfaultfd")
    } else {
        None
    }
}

//! `cenote bench files` as a user runs it, small.

use std::path::Path;

use cenote_block::swap::FUSE_RINGS_SWITCH;

use crate::mount_rig::MountRig;
use crate::support::{has, run, words};

#[test]
fn files_are_measured_beside_a_passthrough_tmpfs_and_ext4() {
    let Some(place) = MountRig::new() else { return };
    drop(place);
    if !has(&["fio", "mkfs.ext4"]) {
        return;
    }
    let before = std::fs::read_to_string(FUSE_RINGS_SWITCH).ok();
    let small = words("--quick --files 300 --data 8 --duration 100ms");
    let ended = run(&[&["bench", "files", "--json"], &small[..]].concat()).expect(0);
    let lines: Vec<serde_json::Value> = (ended.stdout.lines())
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    // Sixteen patterns of fio and four of names, each beside three, and beside /dev/fuse where the
    // kernel offers more.
    let peers = 3 + usize::from(Path::new(FUSE_RINGS_SWITCH).exists());
    assert_eq!(lines.len(), (16 + 4) * peers, "{ended:#?}");
    for line in &lines {
        assert_eq!(line["bench"], "files");
        for figure in ["ours", "theirs", "ratio"] {
            assert!(line[figure].as_f64() > Some(0.0), "{figure} in {line}");
        }
    }
    let over_dev_fuse = |line: &&serde_json::Value| line["peer"] == "cenote mount over /dev/fuse";
    let beside = lines.iter().filter(over_dev_fuse).count();
    assert_eq!(beside, (16 + 4) * (peers - 3));
    assert_eq!(std::fs::read_to_string(FUSE_RINGS_SWITCH).ok(), before);
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("mounts");
    assert!(!mounts.contains("cenote-bench"), "{mounts}");
}

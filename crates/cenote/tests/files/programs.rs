//! Real programs on a cluster whose hosts go meanwhile.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::mount_rig::{MountRig, NEW, OLD};
use crate::support::{has, signal};

mod long {
    use super::*;

    #[test]
    fn a_cluster_serves_builds_and_databases_while_hosts_go() {
        let Some(place) = MountRig::new() else { return };
        let mut server = place.mount(&NEW);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).display();
        place.shell(&format!("cp -a {from}/src tree; tar cf t.tar tree"));
        signal(place.folder.pid("h00"), "KILL");
        place.shell("mkdir out; tar xf t.tar -C out; diff -r tree out/tree");
        signal(place.folder.pid("h01"), "KILL");
        place.shell(&format!("diff -r {from}/src out/tree; rm -rf out"));
        assert_eq!(server.end(), Some(0));
        let mut server = place.mount(&OLD);
        place.shell(&format!("diff -r {from}/src tree"));
        assert_eq!(server.end(), Some(0));
    }

    /// A project is cloned, built and run inside, one host less at each step.
    #[test]
    fn a_project_is_cloned_and_built_while_hosts_go() {
        let Some(place) = MountRig::new() else { return };
        if !has(&["git", "cargo"]) {
            return;
        }
        let mut server = place.mount(&NEW);
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).display();
        let git = "git -c user.name=a -c user.email=a@b -c commit.gpgsign=false";
        place.shell(&format!(
            "cp -a {from}/../codec origin; cd origin; git init -q; git add -A; {git} commit -qm one"
        ));
        signal(place.folder.pid("h00"), "KILL");
        place.shell(
            "git clone -q origin work; cd work; git fsck --strict; diff -r src ../origin/src",
        );
        signal(place.folder.pid("h01"), "KILL");
        // A build that needs no registry, with its target inside.
        place.shell(
            "cargo new -q --vcs none built; cd built; \
             echo 'fn main() { println!(\"{}\", (1..=1000u64).sum::<u64>()) }' > src/main.rs; \
             CARGO_TARGET_DIR=$PWD/target cargo build -q --offline",
        );
        assert_eq!(place.shell("built/target/debug/built"), "500500\n");
        assert_eq!(server.end(), Some(0));
        let mut server = place.mount(&OLD);
        assert_eq!(place.shell("built/target/debug/built"), "500500\n");
        place.shell("cd work; git fsck --strict; test -z \"$(git status --porcelain)\"");
        assert_eq!(server.end(), Some(0));
    }

    /// The file system exerciser while two hosts are killed (`cargo install fsx`); 400,000 operations
    /// unless `CENOTE_FILES_OPERATIONS` says how many.
    #[test]
    fn fsx_finds_nothing_while_hosts_go() {
        let Some(place) = MountRig::new() else { return };
        if !has(&["fsx"]) {
            return;
        }
        let asked = std::env::var("CENOTE_FILES_OPERATIONS").ok();
        let operations: u64 = asked.map_or(400_000, |count| count.parse().expect("a number"));
        let mut server = place.mount(&NEW);
        let config = place.folder.path().join("fsx.toml");
        let weights = "[weights]\npunch_hole = 1\ntruncate = 2\nfsync = 1\nfdatasync = 1\n\
                       posix_fallocate = 1\ncopy_file_range = 1\n";
        std::fs::write(&config, weights).expect("a file");
        let mut victims = ["h00", "h01"].into_iter();
        for seed in 1..=operations.div_ceil(OPERATIONS) {
            let mut fsx = Command::new("fsx")
                .args(["-q", "-S", &seed.to_string(), "-N", &OPERATIONS.to_string()])
                .arg("-P")
                .arg(place.folder.path())
                .arg("-f")
                .arg(&config)
                .arg(place.at("file"))
                .spawn()
                .expect("fsx starts");
            std::thread::sleep(Duration::from_secs(1));
            if let Some(victim) = victims.next() {
                signal(place.folder.pid(victim), "KILL");
            }
            let status = fsx.wait().expect("a child of ours");
            assert!(status.success(), "seed {seed}: {status}");
        }
        assert_eq!(server.end(), Some(0));
    }

    /// Of one run; fsx leaves mappings behind, and later ones search all of them.
    const OPERATIONS: u64 = 20_000;

    /// RocksDB's own load and checks (Debian rocksdb-tools), the process that serves killed under it.
    #[test]
    fn a_database_of_rocksdb_is_sound_after_kills() {
        let Some(place) = MountRig::new() else { return };
        if !has(&["db_bench", "ldb"]) {
            return;
        }
        let load = |existing: bool, seconds: u32| {
            let mut load = Command::new("db_bench");
            load.arg(format!("--db={}", place.at("db").display()))
                .arg(match existing {
                    // It does not fill what is there.
                    true => "--benchmarks=overwrite,readrandom,verifychecksum",
                    false => "--benchmarks=fillrandom",
                })
                .args(["--num=20000", "--value_size=400", "--sync=1", "--threads=2"])
                .args(["--verify_checksum=1", "--write_buffer_size=1048576"])
                .arg(format!("--use_existing_db={}", u8::from(existing)))
                .arg(format!("--duration={seconds}"))
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            load.spawn().expect("db_bench starts")
        };
        let mut server = place.mount(&NEW);
        for round in 0..5 {
            let mut under_way = load(round > 0, 30);
            std::thread::sleep(Duration::from_millis(1500 + 700 * round));
            signal(server.child.id(), "KILL");
            server.child.wait().expect("a child of ours");
            under_way.kill().expect("a child of ours");
            under_way.wait().expect("a child of ours");
            server = place.mount(&OLD);
            let checked = place.shell("ldb --db=$PWD/db checkconsistency");
            assert!(checked.contains("OK"), "round {round}: {checked}");
            place.shell("ldb --db=$PWD/db scan > /dev/null");
        }
        let status = load(true, 2).wait().expect("a child of ours");
        assert!(status.success(), "{status}");
        assert_eq!(server.end(), Some(0));
    }
}

//! Suites of others for file systems, where they are installed.

use std::path::Path;

use crate::mount::{Mounted, has, sh, shell};

mod long {
    use super::*;

    /// The POSIX test suite in Rust (`cargo install pjdfstest`), those for read-only mounts too.
    #[test]
    fn pjdfstest_finds_nothing() {
        let Some(mounted) = Mounted::new(64 << 20) else {
            return;
        };
        if !has("pjdfstest") {
            return;
        }
        let config = tempfile::NamedTempFile::new().expect("a file");
        let features = ["posix_fallocate", "utime_now", "utimensat", "rename_ctime"];
        let features = features.map(|name| format!("{name} = {{}}\n")).concat();
        let users = r#"[["nobody", "nogroup"], ["daemon", "daemon"]]"#;
        let run = |remounts: bool, which: &str| {
            let settings = format!("[settings]\nnaptime = 0.01\nallow_remount = {remounts}\n");
            let users = format!("[dummy_auth]\nentries = {users}\n");
            let text = format!("[features]\n{features}{settings}{users}");
            std::fs::write(config.path(), text).expect("a file");
            let (config, folder) = (config.path().display(), mounted.path().display());
            let line = format!("pjdfstest -c {config} -p {folder} {which} 2>&1");
            let output = sh(Path::new("/"), &line);
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        let summary = |said: &str| said.lines().last().unwrap_or_default().to_owned();
        shell(mounted.path(), "chmod 777 .");
        let said = run(false, "");
        assert!(summary(&said).starts_with("Summary: 0 failed"), "{said}");
        println!("{}", summary(&said));
        // A mount is busy while the kernel has not told us of the last close of a deleted file.
        let mut said = run(true, "erofs");
        for _ in 0..20 {
            if !said.contains("mount point is busy") {
                break;
            }
            shell(mounted.path(), "mount -o remount,rw . || true");
            said = run(true, "erofs");
        }
        assert!(summary(&said).starts_with("Summary: 0 failed"), "{said}");
        println!("{}", summary(&said));
    }

    /// The file system exerciser in Rust (`cargo install fsx`), with the operations that it leaves
    /// out unless it is told.
    #[test]
    fn fsx_finds_nothing() {
        let Some(mounted) = Mounted::new(64 << 20) else {
            return;
        };
        if !has("fsx") {
            return;
        }
        let config = tempfile::NamedTempFile::new().expect("a file");
        let weights = "punch_hole = 1\ntruncate = 2\nfsync = 1\nfdatasync = 1\n\
                       posix_fallocate = 1\ncopy_file_range = 1\n";
        std::fs::write(config.path(), format!("[weights]\n{weights}")).expect("a file");
        for seed in 1..6 {
            let config = config.path().display();
            let said = shell(
                mounted.path(),
                &format!("fsx -N 2000 -S {seed} -f {config} file{seed} 2>&1 | tail -n 20"),
            );
            assert!(said.contains("All operations completed"), "{said}");
        }
    }

    /// stress-ng's stressors of file systems, each checking what it did.
    #[test]
    fn stress_ng_finds_nothing() {
        let Some(mut mounted) = Mounted::new(256 << 20) else {
            return;
        };
        if !has("stress-ng") {
            return;
        }
        let stressors = [
            "access",
            "chdir",
            "chmod",
            "chown",
            "copy-file",
            "dentry",
            "dir",
            "dirdeep",
            "dirmany",
            "fallocate",
            "file-ioctl",
            "filename",
            "flock",
            "fpunch",
            "fstat",
            "hdd",
            "iomix",
            "link",
            "lockf",
            "metamix",
            "open",
            "punch",
            "rename",
            "seek",
            "symlink",
            "sync-file",
            "touch",
            "truncate",
            "unlink",
            "utime",
            "verity",
            "xattr",
        ];
        for stressor in stressors {
            let folder = mounted.path().display();
            let line =
                format!("stress-ng --temp-path {folder} --{stressor} 2 --timeout 3 --verify 2>&1");
            let output = sh(Path::new("/"), &line);
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            // One that this version does not have is no failure of ours.
            let is_known = !said.contains("unrecognized option");
            assert!(!is_known || !said.contains(": fail:"), "{stressor}: {said}");
        }
        mounted.again();
        let left = shell(mounted.path(), "find . -type f | wc -l");
        println!("files that stress-ng left: {left}");
    }
}

//! `cenote ublk` in a guest whose kernel has the driver: a verifying load over a host's death, a
//! server killed and followed by another, and the same load beside the kernel's nbd.
//!
//! The guest's steps are `ublk.sh`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

mod long {
    use super::*;

    #[test]
    fn a_ublk_device_outlives_a_host_and_its_server() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new(source.join("../../scripts/test-guest.sh"));
        command
            .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/guest-ublk"))
            .arg(source.join("tests/ublk.sh"))
            .arg(env!("CARGO_BIN_EXE_cenote"));
        for tool in ["fio", "nbd-client"] {
            let Some(path) = find(tool) else {
                println!("skipped: ublk in a guest: {tool} is not installed");
                return;
            };
            command.arg(path);
        }
        let ended = command
            .env("GUEST_KERNEL", KERNELS)
            .env("GUEST_MODULES", "ublk_drv nbd")
            .output()
            .expect("the script runs");
        let text = String::from_utf8_lossy(&ended.stdout);
        if ended.status.code() == Some(77) {
            let reason = text.lines().last().unwrap_or_default();
            println!("skipped: ublk in a guest: {reason}");
            return;
        }
        // Marked, so that its lines are not taken for this machine's results.
        text.lines().for_each(|line| println!("guest: {line}"));
        assert!(ended.status.success(), "{:?}", ended.status);
        for line in [
            "every block was right although a host and two servers died",
            "what waited for a server that could not start was served by the next",
            "what waited for a deleted device failed",
            "nothing is left",
        ] {
            assert!(text.contains(line), "the guest did not say {line:?}");
        }
    }
}

fn find(tool: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(tool))
        .find(|file| file.exists())
}

/// Kernels of 6.12 and later, small ones, as Debian 12 and 13 name them.
const KERNELS: &str =
    r"^linux-image-6\.1[2-9][0-9.]*(\+deb1[0-9]+(\.[0-9]+)?)?-cloud-amd64(-unsigned)?$";

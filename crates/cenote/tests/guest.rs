//! `cenote swap` over the kernel's own nbd client, in a guest whose kernel has one.
//!
//! The guest's steps are `guest.sh`; the program that swaps there is this test binary.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

mod long {
    use super::*;

    #[test]
    fn a_program_swaps_over_the_kernels_nbd_while_a_host_dies() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR"));
        let ended = Command::new(source.join("../../scripts/test-guest.sh"))
            .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/guest"))
            .arg(source.join("tests/guest.sh"))
            .arg(env!("CARGO_BIN_EXE_cenote"))
            .arg(std::env::current_exe().expect("this program has a file"))
            .output()
            .expect("the script runs");
        let text = String::from_utf8_lossy(&ended.stdout);
        if ended.status.code() == Some(77) {
            let reason = text.lines().last().unwrap_or_default();
            println!("skipped: kernel nbd in a guest: {reason}");
            return;
        }
        // Marked, so that its lines are not taken for this machine's results.
        text.lines().for_each(|line| println!("guest: {line}"));
        assert!(ended.status.success(), "{:?}", ended.status);
        for line in ["every page was right", "nothing is left"] {
            assert!(text.contains(line), "the guest did not say {line:?}");
        }
    }
}

/// Fills memory, waits for `/run/go`, and checks every page twice; inside the guest only.
#[test]
fn the_program() {
    if std::env::var_os("CENOTE_GUEST_PROGRAM").is_none() {
        return;
    }
    let mut memory = vec![0_u64; PROGRAM_BYTES / 8];
    for (index, word) in memory.iter_mut().enumerate() {
        *word = word_at(index);
    }
    fs::write("/run/filled", "").expect("a file in the guest");
    let patience = Instant::now() + Duration::from_secs(120);
    while !Path::new("/run/go").exists() {
        assert!(Instant::now() < patience, "nobody said /run/go");
        std::thread::sleep(Duration::from_millis(20));
    }
    for _ in 0..2 {
        let wrong = memory
            .iter()
            .enumerate()
            .filter(|(index, word)| **word != word_at(*index))
            .count();
        assert_eq!(wrong, 0, "words that came back wrong");
    }
}

/// Over twice the limit that `guest.sh` sets.
const PROGRAM_BYTES: usize = 128 << 20;

fn word_at(index: usize) -> u64 {
    (index as u64 ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xd134_2543_de82_ef95)
}

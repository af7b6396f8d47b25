//! The crate for Rust programs, against hosts that run: its example, and what docs/guides/rust.md says.

mod support;

#[path = "../../client/examples/pages.rs"]
#[allow(dead_code, reason = "its main is for people")]
mod pages;

use std::fs;
use std::path::Path;

use cenote::{AccessError, Error, Volume};
use support::{Folder, signal, wait_ended};

fn up(hosts: &str) -> Folder {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", hosts, "--memory", "48M"])
        .expect(0);
    folder
}

#[test]
fn the_example_runs_and_is_what_the_guide_shows() {
    let folder = up("6");
    let said = pages::write_and_read(&folder.path().join("cluster.toml")).expect("it runs");
    assert_eq!(said, "rs:4+2, 16777216 bytes stored");

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |name: &str| fs::read_to_string(root.join(name)).expect(name);
    let guide = read("docs/guides/rust.md");
    let (_, block) = guide.split_once("```rust\n").expect("a block of Rust");
    let (block, _) = block.split_once("```").expect("its end");
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let example = bare(&read("crates/client/examples/pages.rs"));
    assert!(example.contains(&bare(block)), "{block}");
}

#[test]
fn what_is_written_survives_a_host_and_errors_say_what_to_do() {
    let folder = up("3");
    let file = folder.path().join("cluster.toml");
    let volume = Volume::options()
        .size_bytes(8 << 20)
        .open(&file)
        .expect("opened");
    assert_eq!(volume.size_bytes(), 8 << 20);
    // Neither a whole page nor at one.
    volume.write_at(&[9; 10_000], 4000).expect("written");
    let host = folder.pid("h00");
    signal(host, "KILL");
    wait_ended(host);
    let mut back = [0; 10_002];
    volume.read_at(&mut back, 3999).expect("read");
    assert_eq!((back[0], back[10_001]), (0, 0));
    assert!(back[1..10_001].iter().all(|&byte| byte == 9));
    volume.discard(0, 8 << 20).expect("discarded");
    volume.read_at(&mut back, 3999).expect("read");
    assert_eq!(back, [0; 10_002]);
    assert_eq!(volume.write_at(&[1], 8 << 20), Err(AccessError::OutOfRange));
    let status = volume.status().expect("a status");
    assert_eq!((status.scheme.as_str(), status.hosts), ("rs:2+1", 3));
    drop(volume);

    let error = Volume::options()
        .scheme("rs:8+2")
        .open(&file)
        .expect_err("two hosts are left");
    assert!(
        error.is_retryable() && matches!(error, Error::TooFewHosts(_)),
        "{error}"
    );
    let error = Volume::options()
        .size_bytes(5)
        .open(&file)
        .expect_err("no page");
    assert!(matches!(error, Error::Options(_)), "{error}");
    let error = Volume::open(folder.path().join("none")).expect_err("no file");
    assert!(matches!(error, Error::Read { .. }), "{error}");
}

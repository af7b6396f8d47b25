//! Other people's clients: libnbd's tools, QEMU's, fio, nbdkit, and file systems.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::client::Fixture;

/// Runs a tool to its end; `None`, with a line that says so, when it is not installed.
pub fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
    {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: {program} is not installed");
            return None;
        }
        Err(error) => panic!("run {program}: {error}"),
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{text}\n{complaint}",
        output.status
    );
    Some(text)
}

/// A file of bytes that repeat nowhere near, with a hole in its middle.
pub fn image(path: &Path, len: usize) {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes: Vec<u8> = (0..len / 8)
        .flat_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .collect();
    bytes[len / 4..len / 2].fill(0);
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn nbdinfo_shows_the_export_and_its_map() {
    let fixture = Fixture::ram(1 << 20);
    let Some(text) = run("nbdinfo", &[&fixture.uri()]) else {
        return;
    };
    for line in [
        "export-size: 1048576",
        "base:allocation",
        "can_df: true",
        "can_fast_zero: true",
        "can_multi_conn: true",
        "block_size_maximum: 67108864",
        "can_cache: true",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let map = run("nbdinfo", &["--map", &fixture.uri()]).unwrap();
    assert_eq!(
        map.split_whitespace().collect::<Vec<_>>(),
        ["0", "1048576", "3", "hole,zero"]
    );
    let list = run("nbdinfo", &["--list", &fixture.uri()]).unwrap();
    assert!(list.contains("export=\"disk\""));
}

#[test]
fn nbdcopy_with_eight_connections_copies_there_and_back() {
    let fixture = Fixture::ram(64 << 20);
    let directory = tempfile::tempdir().unwrap();
    let (source, copy) = (directory.path().join("a"), directory.path().join("b"));
    image(&source, 64 << 20);
    let (source_text, copy_text) = (source.to_str().unwrap(), copy.to_str().unwrap());
    let there = run(
        "nbdcopy",
        &[
            "--connections=8",
            "--threads=8",
            source_text,
            &fixture.uri(),
        ],
    );
    if there.is_none() {
        return;
    }
    assert!(fixture.server.stats().connections_accepted >= 8);
    run(
        "nbdcopy",
        &["--connections=8", "--threads=8", &fixture.uri(), copy_text],
    );
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&copy).unwrap());
}

#[test]
fn qemu_img_converts_and_compares() {
    let fixture = Fixture::ram(32 << 20);
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("a");
    image(&source, 32 << 20);
    let source = source.to_str().unwrap();
    let uri = &fixture.uri();
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", source, uri];
    if run("qemu-img", &convert).is_none() {
        return;
    }
    run(
        "qemu-img",
        &["compare", "-f", "raw", "-F", "raw", source, uri],
    );
    let map = run("qemu-img", &["map", "--output=json", "-f", "raw", uri]).unwrap();
    let map: serde_json::Value = serde_json::from_str(&map).unwrap();
    let zero = map
        .as_array()
        .unwrap()
        .iter()
        .find(|run| run["zero"] == true);
    assert_eq!(zero.unwrap()["start"], 8 << 20);
}

#[test]
fn qemu_io_reads_what_it_wrote_discarded_and_zeroed() {
    let fixture = Fixture::ram(4 << 20);
    let mut arguments = vec!["-f", "raw"];
    for command in [
        "write -P 7 0 1M",
        "discard 0 64k",
        "write -z 128k 64k",
        "write -zu 256k 64k",
        "aio_write -P 9 1000 3000",
        "aio_flush",
        "flush",
        "read -P 0 0 1000",
        "read -P 9 1000 3000",
        "read -P 0 4000 61536",
        "read -P 7 64k 64k",
        "read -P 0 128k 64k",
        "read -P 7 192k 64k",
        "read -P 0 256k 64k",
    ] {
        arguments.extend(["-c", command]);
    }
    let uri = fixture.uri();
    arguments.push(&uri);
    if let Some(text) = run("qemu-io", &arguments) {
        assert!(!text.contains("verification failed"), "{text}");
    }
}

#[test]
fn fio_verifies_random_writes_over_four_connections() {
    let fixture = Fixture::ram(64 << 20);
    let uri = format!("--uri={}", fixture.uri());
    for block in ["--bs=4k", "--bsrange=512-256k"] {
        run(
            "fio",
            &[
                "--name=verify",
                "--ioengine=nbd",
                &uri,
                "--rw=randrw",
                "--iodepth=32",
                "--numjobs=4",
                "--size=16M",
                "--offset_increment=16M",
                "--verify=crc32c",
                "--verify_state_save=0",
                "--verify_fatal=1",
                block,
            ],
        );
    }
}

#[test]
fn nbdkit_relays_to_us() {
    let fixture = Fixture::ram(16 << 20);
    let socket = format!("socket={}", fixture.socket.display());
    // The command sees the relay's address as $uri.
    let command = "qemu-io -f raw -c 'write -P 5 1M 2M' -c 'read -P 5 1M 2M' \"$uri\"";
    let relay = ["-U", "-", "nbd", &socket, "export=disk", "--run", command];
    if let Some(text) = run("nbdkit", &relay) {
        assert!(text.contains("read 2097152/2097152"), "{text}");
    }
    assert!(fixture.server.stats().written_bytes >= 2 << 20);
}

#[test]
fn file_systems_live_on_a_loop_device_over_nbdfuse() {
    // SAFETY: the call has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: loop devices need root");
        return;
    }
    let script = include_str!("filesystems.sh");
    for (kind, check) in [
        ("ext4", "e2fsck -f -n"),
        ("xfs", "xfs_repair -n"),
        ("btrfs", "btrfs check"),
    ] {
        let fixture = Fixture::ram(512 << 20);
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().to_str().unwrap();
        let arguments = ["-c", script, "sh", &fixture.uri(), place, kind, check];
        let text = run("sh", &arguments).unwrap();
        println!("{}", text.trim());
        assert!(
            text.contains("skipped:") || text.contains("clean"),
            "{text}"
        );
    }
}

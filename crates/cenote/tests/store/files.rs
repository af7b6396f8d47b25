//! A store's files: damaged, missing, and used by one process at a time.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Store;

/// CRC-32 as zlib has it, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |sum: u32, _| (sum >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(sum & 1));
    let add = |sum: u32, byte: &u8| (0..8).fold(sum ^ u32::from(*byte), shift);
    !bytes.iter().fold(!0, add)
}

#[test]
fn a_store_that_is_damaged_short_or_of_another_format_is_refused_and_not_changed() {
    let store = Store::new("64K");
    store.ok("put", &["key"], b"value");
    let good = fs::read(store.file()).expect("readable");
    let mut later = good.clone();
    later[8] = 9;
    let mut other = good.clone();
    other[0] = b'x';
    let mut damaged = good.clone();
    damaged[24] ^= 1;
    // With the right checksum.
    let mut claim = good.clone();
    claim[24..32].copy_from_slice(&(1_u64 << 32).to_le_bytes());
    let sum = crc32(&claim[..40]);
    claim[40..44].copy_from_slice(&sum.to_le_bytes());
    for (bytes, said) in [
        (&good[..32 << 10], "was made with 65536 bytes and has 32768"),
        (&good[..1000], "this is no pool"),
        (&[], "this is no pool"),
        (&later, "has format 9; this program knows format 3"),
        (&other, "this is no pool"),
        (&damaged, "its file pool: the pool's head is damaged"),
        (
            &claim,
            "its file pool: the pool's head is damaged: places of the index is 4294967296",
        ),
    ] {
        fs::write(store.file(), bytes).expect("writable");
        store.fails("get", &["key"], 1, said);
        assert_eq!(fs::read(store.file()).expect("readable"), bytes, "{said}");
    }
    fs::write(store.file(), &good).expect("writable");
    let looked = store.json("check", &[]);
    assert_eq!(looked["objects"], 1);
    assert_eq!(
        fs::read(store.file()).expect("readable"),
        good,
        "a look changes nothing"
    );
    assert_eq!(store.ok("get", &["key"], b""), b"value");
    fs::remove_file(store.file()).expect("it is there");
    store.fails("get", &["key"], 1, "does not exist");
}

#[test]
fn two_processes_take_turns() {
    let store = Store::new("1M");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for at in 0..5 {
                    let key = format!("{thread}/{at}");
                    store.ok("put", &[&key], key.as_bytes());
                }
            });
        }
    });
    let found = store.json("check", &[]);
    assert_eq!(
        (&found["objects"], &found["versions"]),
        (&20.into(), &20.into())
    );
}

/// Four small values share a block with each other's headers: flags of the first go to the disk with the last.
#[test]
fn a_value_that_rotted_is_found_by_check_and_not_returned() {
    let store = Store::new("64K");
    let values = ["first value", "second value", "third value", "fourth value"];
    store.ok("put", &["key 0"], b"older value");
    for (number, value) in values.iter().enumerate() {
        store.ok("put", &[&format!("key {number}")], value.as_bytes());
    }
    assert_eq!(store.json("check", &[])["damaged"], 0);
    let mut bytes = fs::read(store.file()).expect("readable");
    let at = bytes.windows(11).position(|part| part == b"first value");
    let at = at.expect("values are as they were put");
    bytes[at..at + 8].fill(b'x');
    fs::write(store.file(), &bytes).expect("writable");

    let check = store.run("check", &["--json"], b"");
    assert_eq!(check.status.code(), Some(3), "{check:?}");
    let found: serde_json::Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!(
        (&found["damaged"], &found["objects"]),
        (&1.into(), &4.into())
    );
    let shown = store.run("check", &[], b"");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("1 of these were damaged"));
    // Its header, and its key of 5 bytes.
    names_the_place(&store, &shown, at - 64 - 8);
    assert_eq!(
        fs::read(store.file()).expect("readable"),
        bytes,
        "a look changes nothing"
    );
    assert_eq!(store.ok("get", &["key 0"], b""), b"older value");
    for (number, value) in values.iter().enumerate().skip(1) {
        let got = store.ok("get", &[&format!("key {number}")], b"");
        assert_eq!(got, value.as_bytes());
    }
}

#[test]
fn a_damaged_header_costs_its_object_alone_and_is_found_by_check() {
    let store = Store::new("1M");
    for number in 0..20 {
        let key = format!("key {number:02}");
        store.ok("put", &[&key], key.repeat(50).as_bytes());
    }
    assert_eq!(store.json("check", &[])["lost"], 0);
    let mut bytes = fs::read(store.file()).expect("readable");
    let key = bytes.windows(6).position(|part| part == b"key 05");
    let header = key.expect("keys are as they were put") - 64;
    assert_eq!(&bytes[header..header + 4], b"cobj");
    bytes[header + 16] ^= 1;
    fs::write(store.file(), &bytes).expect("writable");

    let check = store.run("check", &["--json"], b"");
    assert_eq!(check.status.code(), Some(3), "{check:?}");
    let found: serde_json::Value = serde_json::from_slice(&check.stdout).expect("JSON");
    assert_eq!((&found["lost"], &found["objects"]), (&1.into(), &19.into()));
    // What is put goes behind all that is left.
    store.ok("put", &["key 20"], "key 20".repeat(50).as_bytes());
    for number in (0..21).filter(|number| *number != 5) {
        let key = format!("key {number:02}");
        assert_eq!(store.ok("get", &[&key], b""), key.repeat(50).as_bytes());
    }
    let shown = store.run("check", &[], b"");
    assert_eq!(shown.status.code(), Some(3), "{shown:?}");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("in 1 place(s) is damaged"));
    names_the_place(&store, &shown, header);
}

/// The log names store, file and place of what is damaged.
fn names_the_place(store: &Store, ended: &Output, at: usize) {
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    let folder = store.dir.path().join("objects");
    let folder = folder.to_str().expect("UTF-8");
    for part in [folder, "pool", &format!("first_at={at} ")] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

/// It is lost with a folder of which the pools alone were kept.
#[test]
fn a_store_without_its_secret_has_its_objects_and_gets_another_secret() {
    let store = Store::new("1M");
    let secret = store.dir.path().join("objects/secret");
    let first = fs::read_to_string(&secret).expect("it is there");
    store.ok("put", &["first"], b"value");
    assert_eq!(fs::read_to_string(&secret).expect("it is there"), first);
    fs::remove_file(&secret).expect("it is there");
    assert_eq!(store.ok("list", &[], b""), b"first\n");
    assert!(!secret.exists(), "a look changes nothing");
    let put = store.run("put", &["second"], b"value");
    assert!(put.status.success(), "{put:?}");
    let said = String::from_utf8_lossy(&put.stderr).into_owned();
    assert!(said.contains("the file secret is missing"), "{said}");
    let second = fs::read_to_string(&secret).expect("it is there");
    assert_ne!(second, first);
    let mode = fs::metadata(&secret).expect("it is there").mode();
    assert_eq!(mode & 0o777, 0o600);
    for key in ["first", "second"] {
        let got = store.run("get", &[key], b"");
        assert_eq!(got.stdout, b"value");
        assert!(got.stderr.is_empty(), "{got:?}");
    }
    for damaged in [&b"no digits\n"[..], b"", b"\xff\xfe", &[b'0'; 100]] {
        fs::write(&secret, damaged).expect("writable");
        store.fails("get", &["first"], 1, "its file secret is damaged");
        assert_eq!(fs::read(&secret).expect("readable"), damaged);
        assert_eq!(
            store.ok("list", &[], b""),
            b"first\nsecond\n",
            "a look needs none"
        );
    }
    fs::write(&secret, second).expect("writable");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).expect("ours");
    store.fails(
        "get",
        &["first"],
        1,
        "its file secret is readable by others",
    );
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("ours");
    assert_eq!(store.ok("get", &["first"], b""), b"value");
}

#[test]
fn a_secret_is_made_and_taken_beside_no_other_files() {
    let store = Store::new("1M");
    let folder = store.dir.path().join("objects");
    let secret = folder.join("secret");
    fs::remove_file(&secret).expect("it is there");
    fs::write(store.file(), "of another program").expect("writable");
    assert!(!store.run("get", &["key"], b"").status.success());
    assert!(!secret.exists(), "a folder that is no store's was changed");
    fs::remove_file(store.file()).expect("it is there");
    fs::write(&secret, "of another program").expect("writable");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("ours");
    store.fails(
        "create",
        &["--size", "1M"],
        1,
        "has a file secret that is no store's",
    );
    let kept = fs::read_to_string(&secret).expect("it is there");
    assert_eq!(kept, "of another program");
}

/// Keys would be looked for in other shards than they were put to.
#[test]
fn a_store_without_one_of_its_files_is_refused() {
    let store = Store {
        dir: tempfile::tempdir().expect("a folder"),
    };
    store.ok("create", &["--size", "2M", "--shards", "3"], b"");
    store.ok("put", &["key"], b"value");
    let file = |name: &str| store.dir.path().join("objects").join(name);
    let away = store.dir.path().join("away");
    for name in ["pool", "pool.1", "pool.2"] {
        fs::rename(file(name), &away).expect("it is there");
        let said = format!("its file {name} is missing");
        store.fails("get", &["key"], 1, &said);
        store.fails("check", &[], 1, &said);
        // Nor is another made over what is left of it.
        let left: Vec<_> = ["pool", "pool.1", "pool.2"]
            .map(|one| fs::read(file(one)).ok())
            .into();
        let create = store.run("create", &["--size", "2M", "--shards", "3"], b"");
        assert_eq!(create.status.code(), Some(1), "{create:?}");
        let now: Vec<_> = ["pool", "pool.1", "pool.2"]
            .map(|one| fs::read(file(one)).ok())
            .into();
        assert!(left == now, "create changed what was left without {name}");
        fs::rename(&away, file(name)).expect("it is there");
    }
    assert_eq!(store.ok("get", &["key"], b""), b"value");
    // A file too many, one in another's place, and one that is damaged.
    let fails = |said: &str| {
        let bytes = || ["pool", "pool.1", "pool.2"].map(|one| fs::read(file(one)).ok());
        let before = bytes();
        store.fails("get", &["key"], 1, said);
        assert!(bytes() == before, "{said}: and changed");
    };
    fs::copy(file("pool.2"), file("pool.3")).expect("it is there");
    fails("its file pool.3 is not one of its 3 shards");
    fs::remove_file(file("pool.3")).expect("it is there");
    fs::copy(file("pool.2"), file("pool.1")).expect("it is there");
    fails("its file pool.1 should be named pool.2");
    let mut bytes = fs::read(file("pool.1")).expect("it is there");
    bytes[20] ^= 1;
    fs::write(file("pool.1"), bytes).expect("writable");
    fails("its file pool.1: ");
}

/// A create that was killed, or a disk that failed while files got their names, left these.
#[test]
fn create_goes_beside_no_shards_of_another_store_and_leaves_no_drafts() {
    let store = Store {
        dir: tempfile::tempdir().expect("a folder"),
    };
    let folder = store.dir.path().join("objects");
    store.ok("create", &["--size", "2M", "--shards", "4"], b"");
    fs::remove_file(folder.join("pool")).expect("it is there");
    fs::remove_file(folder.join("pool.1")).expect("it is there");
    let two = ["--size", "2M", "--shards", "2"];
    store.fails(
        "create",
        &two,
        1,
        "its file pool is missing, and its file pool.2",
    );
    store.fails("list", &[], 1, "its file pool is missing");
    fs::remove_file(folder.join("pool.2")).expect("it is there");
    fs::remove_file(folder.join("pool.3")).expect("it is there");
    for name in [".pool.77-0.new", ".pool.3.77-1.new"] {
        fs::write(folder.join(name), [0; 4096]).expect("writable");
    }
    store.ok("create", &two, b"");
    store.ok("put", &["key"], b"value");
    assert_eq!(store.ok("get", &["key"], b""), b"value");
    let names = fs::read_dir(&folder).expect("it is there");
    let names = names.map(|entry| entry.expect("readable").file_name());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert_eq!(names, ["pool", "pool.1", "secret"]);
}

/// Whether a process has a handle on a folder.
fn has_opened(pid: u32, folder: &Path) -> bool {
    let handles = fs::read_dir(format!("/proc/{pid}/fd")).expect("it is ours");
    let mut targets = handles.filter_map(|handle| fs::read_link(handle.ok()?.path()).ok());
    targets.any(|target| target == folder)
}

/// How often a process has slept.
fn sleeps(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it is ours");
    let mut counts = status
        .lines()
        .filter_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    let count = counts.next().expect("Linux counts them");
    count.trim().parse().expect("a number")
}

#[test]
fn a_command_that_waited_behind_a_server_is_told_so() {
    let store = Store::new("64K");
    let folder = store.dir.path().join("objects");
    let folder = folder.canonicalize().expect("it is there");
    // Another command, and behind it a server.
    let other = fs::File::open(&folder).expect("it is there");
    other.lock().expect("nobody has it");
    let mut waiting = Command::new(env!("CARGO_BIN_EXE_cenote"))
        .args(["store", "list"])
        .arg(&folder)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let until = Instant::now() + Duration::from_secs(60);
    let wait_until = |what: &str, waiting: &mut Child, is_it: &dyn Fn(&mut Child) -> bool| {
        while !is_it(waiting) {
            assert!(Instant::now() < until, "{what}: {}", waiting.kill().is_ok());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until("it opens the folder", &mut waiting, &|waiting| {
        has_opened(waiting.id(), &folder)
    });
    // It found no server, and sleeps between attempts to lock the folder. What it reads for its
    // first look may have it sleep a few times.
    let before = sleeps(waiting.id());
    wait_until("it waits for the folder", &mut waiting, &|waiting| {
        sleeps(waiting.id()) >= before + 20
    });
    let served = fs::File::create(folder.join("served")).expect("writable");
    served.lock().expect("nobody has it");
    wait_until("it is told", &mut waiting, &|waiting| {
        waiting.try_wait().expect("it is ours").is_some()
    });
    let ended = waiting.wait_with_output().expect("it ended");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(said.contains("it is being served"), "{said}");
    drop((other, served));
}

//! `cenote store`: objects in a folder, over crashes and what is damaged.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

struct Store {
    dir: tempfile::TempDir,
}

impl Store {
    fn new(size: &str) -> Self {
        let store = Self {
            dir: tempfile::tempdir().expect("a folder"),
        };
        let made = store.run("create", &["--size", size], b"");
        assert!(made.status.success(), "{made:?}");
        store
    }

    fn run(&self, action: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(["store", action])
            .arg(self.dir.path().join("objects"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut stdin = child.stdin.take().expect("piped");
        // A command that reads nothing may have ended by now.
        drop(stdin.write_all(input));
        drop(stdin);
        child.wait_with_output().expect("it ends")
    }

    fn ok(&self, action: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let ended = self.run(action, arguments, input);
        assert_eq!(ended.status.code(), Some(0), "{action}: {ended:?}");
        ended.stdout
    }

    fn json(&self, action: &str, arguments: &[&str]) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        serde_json::from_slice(&self.ok(action, &arguments, b"")).expect("JSON")
    }

    fn fails(&self, action: &str, arguments: &[&str], code: i32, said: &str) {
        let ended = self.run(action, arguments, b"value");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{action}: {text}");
        assert!(text.contains(said), "{action}: {text}");
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("objects/pool")
    }
}

#[test]
fn objects_are_put_read_listed_and_deleted_each_by_a_process_of_its_own() {
    let store = Store::new("384K");
    store.fails("create", &["--size", "1M"], 1, "there is one already");
    let large = vec![7; 100_000];
    store.ok("put", &["b/large"], &large);
    store.ok("put", &["b/small"], b"one");
    store.ok("put", &["a"], b"");
    assert_eq!(store.ok("get", &["b/large"], b""), large);
    assert_eq!(store.ok("get", &["a"], b""), b"");
    assert_eq!(store.ok("list", &[], b""), b"a\nb/large\nb/small\n");
    assert_eq!(
        store.json("list", &["--prefix", "b/"]),
        serde_json::json!(["b/large", "b/small"])
    );

    let version = store.json("get", &["b/small"])["version"]
        .as_u64()
        .expect("a number");
    let (now, before) = (version.to_string(), (version - 1).to_string());
    let is = |version: &str| format!("its version is {version}");
    store.fails("put", &["b/small", "--if-absent"], 1, &is(&now));
    store.fails("put", &["b/small", "--if-version", &before], 1, &is(&now));
    store.ok("put", &["b/small", "--if-version", &now], b"two");
    assert_eq!(store.ok("get", &["b/small"], b""), b"two");
    store.ok("delete", &["b/small"], b"");
    store.fails("get", &["b/small"], 1, "there is no \"b/small\"");
    store.ok("put", &["b/small", "--if-absent"], b"three");

    let found = store.json("check", &[]);
    assert_eq!(
        (&found["objects"], &found["versions"]),
        (&3.into(), &6.into())
    );
    assert_eq!(found["invalid"], 0);
    assert!(found["bytes"].as_u64().expect("a number") > 100_000);
    store.fails(
        "put",
        &["b/larger", "/dev/zero"],
        2,
        "at most 1048576 are allowed",
    );
    let key = "k".repeat(251);
    store.fails("put", &[&key], 2, "1 to 250 are allowed");
    let rest = vec![1; 200_000];
    let full = store.run("put", &["c"], &rest);
    assert_eq!(full.status.code(), Some(1), "{full:?}");
    assert!(String::from_utf8_lossy(&full.stderr).contains("no room left"));
    assert_eq!(store.ok("get", &["b/small"], b""), b"three");
    // What was replaced makes room for what comes.
    for round in 0..6_u8 {
        store.ok("put", &["a"], &[round; 20_000]);
    }
    assert_eq!(store.ok("get", &["a"], b""), [5; 20_000]);
    assert_eq!(store.ok("get", &["b/large"], b""), large);
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
    for (bytes, said) in [
        (&good[..32 << 10], "was made with 65536 bytes and has 32768"),
        (&good[..1000], "some whole sectors"),
        (&[], "some whole sectors"),
        (&later, "has format 9; this program knows format 2"),
        (&other, "this is no pool"),
        (&damaged, "head is damaged"),
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
    store.fails("get", &["key"], 1, "there is none");
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

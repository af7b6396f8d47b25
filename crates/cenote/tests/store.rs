//! `cenote store`: objects in a folder, over crashes and what is damaged.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

#[path = "store/files.rs"]
mod files;

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
    store.fails("create", &["--size", "1M"], 1, "already exists");
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
    let exists = format!("it exists already, with version {now}");
    store.fails("put", &["b/small", "--if-absent"], 1, &exists);
    store.fails("put", &["b/small", "--if-version", &before], 1, &is(&now));
    store.ok("put", &["b/small", "--if-version", &now], b"two");
    assert_eq!(store.ok("get", &["b/small"], b""), b"two");
    store.ok("delete", &["b/small"], b"");
    store.fails("get", &["b/small"], 1, "there is no object b/small");
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
    assert!(String::from_utf8_lossy(&full.stderr).contains("the store is full"));
    assert_eq!(store.ok("get", &["b/small"], b""), b"three");
    // What was replaced makes room for what comes.
    for round in 0..6_u8 {
        store.ok("put", &["a"], &[round; 20_000]);
    }
    assert_eq!(store.ok("get", &["a"], b""), [5; 20_000]);
    assert_eq!(store.ok("get", &["b/large"], b""), large);
}

/// Others may choose them, and a terminal obeys some.
#[test]
fn keys_with_control_characters_take_one_line_and_change_no_terminal() {
    let store = Store::new("1M");
    let served = Served::start(&store, &[]);
    let key = "a\nb\x1b[2J";
    let line = "$'a\\nb\\033[2J'";
    let put = served.ok(&store, "put", &[key], b"value");
    assert!(
        put.starts_with(format!("{line}: stored").as_bytes()),
        "{put:?}"
    );
    served.ok(&store, "put", &["plain"], b"value");
    let lines = format!("{line}\nplain\n");
    assert_eq!(served.ok(&store, "list", &[], b""), lines.as_bytes());
    let refused = served.run(&store, "put", &[key, "--if-absent"], b"no");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(line) && !said.contains('\x1b'), "{said}");
    drop(served);
    assert_eq!(store.ok("list", &[], b""), lines.as_bytes());
    store.fails("put", &[key, "--if-absent"], 1, line);
    let raw = format!("{key}\0plain\0");
    assert_eq!(store.ok("list", &["--null"], b""), raw.as_bytes());
    assert_eq!(store.ok("list", &["-0", "--prefix", "p"], b""), b"plain\0");
    assert_eq!(store.json("list", &[]), serde_json::json!([key, "plain"]));
}

#[test]
fn keys_that_are_no_text_are_read_and_deleted_by_what_a_list_prints() {
    let store = Store::new("1M");
    let script = r#"
        key=$(printf '\377\376 1')
        echo value | "$0" store put "$1" "$key"
        "$0" store list "$1" --null | xargs -0 -n1 "$0" store get "$1" --
        "$0" store list "$1" --null --prefix "$(printf '\377')" | xargs -0 -n1 "$0" store delete "$1" --
    "#;
    let ended = Command::new("sh")
        .args(["-ec", script, env!("CARGO_BIN_EXE_cenote")])
        .arg(store.dir.path().join("objects"))
        .output()
        .expect("it runs");
    assert!(ended.status.success(), "{ended:?}");
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(said.contains("\nvalue\n"), "{said}");
    assert_eq!(store.ok("list", &[], b""), b"");
}

/// A store that is served, until this is dropped.
struct Served {
    process: std::process::Child,
    address: String,
}

impl Served {
    fn start(store: &Store, arguments: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_cenote")), store, arguments)
    }

    fn start_by(mut program: Command, store: &Store, arguments: &[&str]) -> Self {
        let mut process = program
            .args(["store", "serve"])
            .arg(store.dir.path().join("objects"))
            .args(["--listen", "tcp:127.0.0.1:0", "--key"])
            .arg(store.key())
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs");
        let out = process.stdout.take().expect("piped");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line)
            .expect("it announces itself");
        let word = line.split([' ', ':']).position(|word| word == "tcp");
        let address = line.split(' ').find(|word| word.starts_with("tcp:"));
        assert!(word.is_some(), "announced {line:?}");
        let address = address
            .expect("an address")
            .trim_end_matches(':')
            .trim()
            .to_owned();
        Self { process, address }
    }

    fn run(&self, store: &Store, action: &str, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = Command::new(env!("CARGO_BIN_EXE_cenote"))
            .args(["store", action, &self.address])
            .args(arguments)
            .arg("--key")
            .arg(store.key())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it runs");
        let mut stdin = child.stdin.take().expect("piped");
        drop(stdin.write_all(input));
        drop(stdin);
        child.wait_with_output().expect("it ends")
    }

    fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.process)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("it is there");
    }

    fn ok(&self, store: &Store, action: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        let ended = self.run(store, action, arguments, input);
        assert_eq!(ended.status.code(), Some(0), "{action}: {ended:?}");
        ended.stdout
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

impl Store {
    fn key(&self) -> PathBuf {
        let path = self.dir.path().join("cluster.key");
        if !path.exists() {
            let made = Command::new(env!("CARGO_BIN_EXE_cenote"))
                .args(["key", "new", "--out"])
                .arg(&path)
                .output();
            assert!(made.expect("it runs").status.success());
        }
        path
    }
}

#[test]
fn a_served_store_keeps_what_it_said_when_it_is_killed() {
    let store = Store::new("1M");
    let mut served = Served::start(&store, &[]);
    for round in 0..5_u8 {
        for key in 0..6_u8 {
            let name = format!("key {key}");
            let value = [round * 10 + key; 3_000];
            served.ok(&store, "put", &[&name], &value);
        }
        served.ok(&store, "delete", &["key 5"], b"");
        served.process.kill().expect("it was there");
        served.process.wait().expect("it ended");
        served = Served::start(&store, &[]);
        for key in 0..5_u8 {
            let got = served.ok(&store, "get", &[&format!("key {key}")], b"");
            assert_eq!(got, [round * 10 + key; 3_000]);
        }
        let gone = served.run(&store, "get", &["key 5"], b"");
        assert_eq!(gone.status.code(), Some(1));
    }
    let keys = served.ok(&store, "list", &["--prefix", "key"], b"");
    assert_eq!(keys, b"key 0\nkey 1\nkey 2\nkey 3\nkey 4\n");
    store.fails("put", &["key 0"], 1, "it is being served");
    let absent = served.run(&store, "put", &["key 0", "--if-absent"], b"no");
    assert_eq!(absent.status.code(), Some(1), "{absent:?}");
    assert!(String::from_utf8_lossy(&absent.stderr).contains("it exists already, with version"));

    // A stop in order, and the folder is anybody's again.
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(served.process.wait().expect("it ends").code(), Some(0));
    assert_eq!(store.ok("get", &["key 1"], b""), [41; 3_000]);
}

/// From some moment on the kernel refuses writes behind a place of the file, as a disk that fails does.
#[test]
fn a_server_whose_disk_fails_ends_and_has_what_it_said() {
    let store = Store::new("16M");
    // Refused with an error in place of a signal.
    let mut shell = Command::new("sh");
    let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
    shell.args(["-c", script, env!("CARGO_BIN_EXE_cenote")]);
    shell.stderr(Stdio::piped());
    let mut served = Served::start_by(shell, &store, &["--landing", "2M"]);
    // The log goes past the place; memory for clients, which are files as well, does not.
    let value = vec![7; 900_000];
    for key in ["one", "two", "three", "four"] {
        served.ok(&store, "put", &[key], &value);
    }
    let place = rustix::process::Rlimit {
        current: Some(3 << 20),
        maximum: None,
    };
    let limited = rustix::process::Resource::Fsize;
    rustix::process::prlimit(Some(served.pid()), limited, place).expect("a limit");
    let refused = served.run(&store, "put", &["one"], b"another");
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let ended = served.process.wait().expect("it ends");
    let mut said = String::new();
    let stderr = served.process.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut { stderr }, &mut said).expect("text");
    assert_eq!(ended.code(), Some(1), "{said}");
    assert!(said.contains("medium failed"), "{said}");
    assert!(said.contains("File too large"), "why: {said}");
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("may have been made"), "{told}");

    let served = Served::start(&store, &[]);
    let one = served.ok(&store, "get", &["one"], b"");
    assert!(one == value || one == b"another", "{} bytes", one.len());
    for key in ["two", "three", "four"] {
        assert_eq!(served.ok(&store, "get", &[key], b""), value);
    }
}

#[test]
fn a_server_that_is_stopped_for_a_while_loses_nothing_and_clients_are_told() {
    let store = Store::new("1M");
    let served = Served::start(&store, &[]);
    served.ok(&store, "put", &["one"], b"before");
    served.signal(rustix::process::Signal::STOP);
    let waited = served.run(&store, "put", &["two"], b"while it was stopped");
    assert_eq!(waited.status.code(), Some(1), "{waited:?}");
    let said = String::from_utf8_lossy(&waited.stderr).into_owned();
    assert!(said.contains(&served.address), "{said}");
    served.signal(rustix::process::Signal::CONT);
    assert_eq!(served.ok(&store, "get", &["one"], b""), b"before");
    served.ok(&store, "put", &["two"], b"after");
    assert_eq!(served.ok(&store, "get", &["two"], b""), b"after");
}

/// `cenote store ACTION` with these served stores, all in one cluster.
fn in_all(key: &std::path::Path, stores: &[&Served], action: &str, rest: &[&str]) -> Output {
    let addresses: Vec<&str> = stores.iter().map(|one| one.address.as_str()).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.args(["store", action]);
    match action {
        "copy" => command.args(addresses),
        _ => command.arg(addresses.join(",")),
    };
    let command = command.args(rest).arg("--key").arg(key);
    command.stdin(Stdio::null()).output().expect("it runs")
}

#[test]
fn copies_are_in_all_stores_and_any_of_them_may_be_lost() {
    let stores: Vec<Store> = (0..4).map(|_| Store::new("1M")).collect();
    let key = stores[0].key();
    for store in &stores[1..] {
        std::fs::copy(&key, store.dir.path().join("cluster.key")).expect("copied");
    }
    let mut served: Vec<Served> = stores.iter().map(|one| Served::start(one, &[])).collect();
    let file = stores[0].dir.path().join("value");
    let put = |served: &[&Served], name: &str, rest: &[&str]| {
        std::fs::write(&file, name).expect("written");
        let file = file.to_str().expect("UTF-8");
        in_all(&key, served, "put", &[&[name, file], rest].concat())
    };
    let ok = |ended: Output| {
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        String::from_utf8(ended.stdout).expect("UTF-8")
    };
    let [a, b, c, _] = &served[..] else {
        panic!("four stores");
    };
    ok(put(&[a, b, c], "one", &["--copies", "3"]));
    ok(put(&[a, b, c], "two", &["--if-absent"]));
    ok(in_all(&key, &[a, b, c], "delete", &["two"]));
    let wrong = put(&[a, b], "one", &["--copies", "3"]);
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    let twice = in_all(&key, &[a, a], "list", &[]);
    assert_eq!(twice.status.code(), Some(2), "{twice:?}");
    for one in [a, b, c] {
        let left = ["--copies", "1"];
        assert_eq!(ok(in_all(&key, &[one], "list", &left)), "one\n");
        let get = ["one", "--copies", "1"];
        assert_eq!(ok(in_all(&key, &[one], "get", &get)), "one");
    }

    // The last is killed: nothing can be acknowledged by it any more, and that is said of it.
    let lost = served[2].address.clone();
    served[2].process.kill().expect("it was there");
    served[2].process.wait().expect("it ended");
    let [a, b, c, d] = &served[..] else {
        panic!("four stores");
    };
    let refused = put(&[a, b, c], "three", &[]);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains(&lost), "{said}");
    // Another in its place.
    ok(put(&[a, d, b], "three", &[]));
    let told = ok(in_all(&key, &[a, d], "copy", &[]));
    assert!(told.contains("all 3 objects"), "{told}");
    assert_eq!(ok(in_all(&key, &[a, b, d], "list", &[])), "one\nthree\n");
    assert_eq!(ok(in_all(&key, &[b, d], "get", &["one"])), "one");

    // One is left, on both sides of the one that comes in.
    served[1].process.kill().expect("it was there");
    served[1].process.wait().expect("it ended");
    let d = &served[3];
    let empty = Store::new("1M");
    std::fs::copy(&key, empty.dir.path().join("cluster.key")).expect("copied");
    let new = Served::start(&empty, &[]);
    ok(put(&[d, &new, d], "four", &["--copies", "3"]));
    ok(in_all(&key, &[d, &new], "copy", &[]));
    for row in [&[d, &new][..], &[d, &new, d]] {
        assert_eq!(ok(in_all(&key, row, "list", &[])), "four\none\nthree\n");
    }
    for wrong in [&[d, d, d][..], &[d, &new, &new], &[d, &new, d, &new]] {
        let refused = in_all(&key, wrong, "list", &[]);
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn a_store_is_served_by_one_process() {
    let store = Store::new("1M");
    let served = Served::start(&store, &[]);
    let key = store.key();
    let key = key.to_str().expect("UTF-8");
    let listen = ["--listen", "tcp:127.0.0.1:0", "--key", key];
    store.fails("serve", &listen, 1, "it is being served");
    store.fails(
        "check",
        &[],
        1,
        "try: stop its server; put, get, list and delete",
    );
    served.ok(&store, "put", &["one"], b"value");
}

#[test]
fn a_store_in_shards_is_served_by_any_scheme() {
    for scheme in ["efactory", "saw", "imm", "rpc", "forca", "erda", "ca"] {
        let store = Store {
            dir: tempfile::tempdir().expect("a folder"),
        };
        store.ok("create", &["--size", "2M", "--shards", "3"], b"");
        let served = Served::start(&store, &["--scheme", scheme, "--medium", "pm"]);
        for key in 0..12_u8 {
            served.ok(&store, "put", &[&format!("key {key}")], &[key; 500]);
        }
        for key in 0..12_u8 {
            let got = served.ok(&store, "get", &[&format!("key {key}")], b"");
            assert_eq!(got, [key; 500], "{scheme}");
        }
        drop(served);
        let found = store.json("check", &[]);
        assert_eq!(found["objects"], 12, "{scheme}");
    }
    let store = Store::new("64K");
    let wrong = Command::new(env!("CARGO_BIN_EXE_cenote"))
        .args(["store", "get", "tcp:127.0.0.1:1", "key"])
        .output()
        .expect("it runs");
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");
    drop(store);
}

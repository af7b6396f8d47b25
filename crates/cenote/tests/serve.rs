//! A volume served over NBD, as its owner and as those who ask about it see it.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use support::lab::has_tools;
use support::{Folder, cenote, signal};

/// `cenote nbd` on a folder; killed when dropped.
struct Server {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Server {
    fn start(folder: &Folder, arguments: &[&str]) -> Self {
        let mut child = cenote()
            .args(["nbd", "--dir", folder.str()])
            .args(arguments)
            .arg("--socket")
            .arg(folder.path().join("nbd"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        Self { child, stdout }
    }

    fn ready(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        line
    }

    /// Asks it to end; its exit code.
    fn end(&mut self) -> Option<i32> {
        signal(self.child.id(), "TERM");
        self.child.wait().expect("a child of ours").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.kill().is_ok() {
            self.child.wait().expect("a child of ours");
        }
    }
}

fn up(folder: &Folder) {
    folder
        .run(&["up", "--hosts", "4", "--memory", "16M"])
        .expect(0);
}

#[test]
fn a_named_volume_is_served_asked_about_resized_and_let_go() {
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "8M", "--scheme", "rs:2+1",
        ])
        .expect(0);
    let mut server = Server::start(&folder, &["--volume", "v0"]);
    let ready = server.ready();
    assert!(
        ready.starts_with("ready v0 8M rs:2+1 at nbd+unix:///v0?socket="),
        "{ready}"
    );
    // The first bytes of fixed newstyle negotiation.
    let mut stream = UnixStream::connect(folder.path().join("nbd")).unwrap();
    let mut greeting = [0; 16];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT");

    let status = folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    let status = status.json();
    assert_eq!(status["whole"], true);
    assert_eq!(status["status"]["size_bytes"], 8 << 20);
    assert_eq!(status["status"]["hosts"].as_array().unwrap().len(), 4);

    let busy = folder.run(&["volume", "delete", "v0"]).expect(1);
    assert!(busy.stderr.contains("in use"), "{busy:#?}");
    let busy = folder.run(&["down"]).expect(1);
    assert!(busy.stderr.contains("volumes in use: v0"), "{busy:#?}");

    folder
        .run(&["volume", "resize", "v0", "--size", "12M"])
        .expect(0);
    let status = folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    assert_eq!(status.json()["status"]["size_bytes"], 12 << 20);
    let shrunk = folder
        .run(&["volume", "resize", "v0", "--size", "4M"])
        .expect(1);
    assert!(shrunk.stderr.contains("volume v0"), "{shrunk:#?}");
    assert!(shrunk.stderr.contains("only grows"), "{shrunk:#?}");
    let help = folder.run(&["volume", "resize", "--help"]).expect(0).stdout;
    assert!(help.contains("up to 8 times"), "{help}");
    folder
        .run(&["volume", "resize", "v0", "--size", "64M"])
        .expect(0);
    let beyond = folder
        .run(&["volume", "resize", "v0", "--size", "68M"])
        .expect(1);
    assert!(beyond.stderr.contains("at most 67108864"), "{beyond:#?}");

    assert_eq!(server.end(), Some(0));
    folder.run(&["volume", "delete", "v0"]).expect(0);
    folder.run(&["down"]).expect(0);
}

#[test]
fn a_volume_has_one_server() {
    let folder = Folder::new();
    up(&folder);
    let mut first = Server::start(
        &folder,
        &["--volume", "v", "--size", "4M", "--scheme", "mirror:2"],
    );
    assert!(first.ready().starts_with("ready v "));
    let socket = folder.path().join("other");
    let second = folder
        .run(&["nbd", "--volume", "v", "--socket", socket.to_str().unwrap()])
        .expect(1);
    assert!(
        second.stderr.contains("in use by another process"),
        "{second:#?}"
    );
    // A killed owner owns nothing.
    signal(first.child.id(), "KILL");
    first.child.wait().unwrap();
    let mut third = Server::start(&folder, &["--volume", "v"]);
    assert!(third.ready().starts_with("ready v "));
}

#[test]
fn what_a_volume_holds_is_kept_attached_reset_and_deleted() {
    if !has_tools() {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "8M", "--scheme", "rs:2+1",
        ])
        .expect(0);
    let noise = |at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8;
    let pattern: Vec<u8> = (0..8 << 20).map(noise).collect();
    let copy = folder.path().join("copy");
    let serve = || {
        let mut server = Server::start(&folder, &["--volume", "v0"]);
        server.ready();
        server
    };
    let uri = format!("nbd+unix:///?socket={}/nbd", folder.str());
    let nbdcopy = |from: &str, to: &str| {
        let ended = Command::new("nbdcopy").args([from, to]).status();
        assert!(ended.expect("nbdcopy runs").success());
    };
    let fill = || {
        std::fs::write(&copy, &pattern).unwrap();
        let mut server = serve();
        nbdcopy(copy.to_str().unwrap(), &uri);
        assert_eq!(server.end(), Some(0));
    };
    let content = || {
        let mut server = serve();
        nbdcopy(&uri, copy.to_str().unwrap());
        assert_eq!(server.end(), Some(0));
        std::fs::read(&copy).unwrap()
    };
    let lent = || folder.run(&["status", "--json"]).json()["lent_bytes"].clone();
    fill();

    let unused = folder.run(&["volume", "status", "v0"]).expect(1);
    assert!(unused.stderr.contains("slabs on"), "{unused:#?}");
    let status = folder.run(&["status", "--json"]).expect(0).json();
    assert!(status["volumes"][0]["slabs_left"].as_u64().unwrap() >= 3);
    let smaller = folder
        .run(&["volume", "resize", "v0", "--size", "4M"])
        .expect(1);
    assert!(smaller.stderr.contains("holds data"), "{smaller:#?}");
    assert!(content() == pattern);

    let attached = folder.run(&["volume", "attach", "v0", "--json"]).expect(0);
    assert_eq!(attached.json()["whole"], true);
    // One host less: it is rebuilt before anybody serves the volume.
    let host = attached.json()["status"]["extents"][0]["hosts"][0].clone();
    signal(folder.pid(host.as_str().unwrap()), "KILL");
    let attached = folder.run(&["volume", "attach", "v0"]).expect(0);
    assert!(attached.stdout.contains("healthy"), "{attached:#?}");
    assert!(content() == pattern);

    folder.run(&["volume", "reset", "v0"]).expect(0);
    let nothing = folder.run(&["volume", "attach", "v0"]).expect(1);
    assert!(nothing.stderr.contains("holds nothing"), "{nothing:#?}");
    assert_eq!(lent(), 0, "hosts have it back");
    assert!(content().iter().all(|&byte| byte == 0));

    fill();
    assert_ne!(lent(), 0);
    folder.run(&["volume", "delete", "v0"]).expect(0);
    assert_eq!(lent(), 0);
}

#[test]
fn a_volume_without_a_name_is_forgotten() {
    let folder = Folder::new();
    up(&folder);
    let mut server = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
    assert!(server.ready().starts_with("ready unnamed-"));
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list[0]["in_use"], true);
    assert_eq!(server.end(), Some(0));
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list, serde_json::json!([]));
}

#[test]
fn down_forgets_what_a_killed_server_left_behind() {
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&["volume", "create", "kept", "--size", "4M"])
        .expect(0);
    let mut server = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
    assert!(server.ready().starts_with("ready unnamed-"));
    signal(server.child.id(), "KILL");
    server.child.wait().unwrap();
    folder.run(&["down"]).expect(0);
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["name"], "kept");
}

#[test]
fn what_cannot_be_served_leaves_no_volume_behind() {
    let folder = Folder::new();
    up(&folder);
    let socket = folder.path().join("nbd");
    let socket = socket.to_str().unwrap();
    // Four hosts cannot hold eight splits.
    let few = folder
        .run(&[
            "nbd", "--size", "4M", "--scheme", "rs:8+2", "--socket", socket,
        ])
        .expect(1);
    assert!(
        few.stderr.contains("rs:8+2") && few.stderr.contains("try:"),
        "{few:#?}"
    );
    let remote = folder
        .run(&[
            "nbd",
            "--size",
            "4M",
            "--scheme",
            "plain",
            "--listen",
            "0.0.0.0:0",
        ])
        .expect(1);
    assert!(remote.stderr.contains("--allow-remote"), "{remote:#?}");
    folder.run(&["nbd", "--size", "4M"]).expect(2);
    folder.run(&["nbd", "--socket", socket]).expect(2);
    folder
        .run(&["nbd", "--volume", "none", "--socket", socket])
        .expect(1);
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list, serde_json::json!([]));
}

#[test]
fn an_owner_answers_whatever_it_is_asked() {
    let folder = Folder::new();
    up(&folder);
    let mut server = Server::start(
        &folder,
        &["--volume", "v", "--size", "4M", "--scheme", "plain"],
    );
    assert!(server.ready().starts_with("ready v "));
    let mut stream = UnixStream::connect(folder.path().join("volumes/v.sock")).unwrap();
    stream.write_all(b"{\"ask\":\"explode\"}\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("{\"error\":"), "{text}");
    folder.run(&["volume", "status", "v"]).expect(0);
}

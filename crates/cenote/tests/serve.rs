//! A volume served over NBD, as its owner and as those who ask about it see it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use support::lab::{has_tools, wait_until};
use support::nbd::Client;
use support::server::{Server, up};
use support::{Folder, cenote, cenote_that_ignores_hangups, signal, words};

#[test]
fn a_named_volume_is_served_asked_about_resized_and_let_go() {
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "8M", "rs:2+1");
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
    let busy = folder.run(&["volume", "attach", "v0"]).expect(1);
    assert!(busy.stderr.contains("in use"), "{busy:#?}");
    let busy = folder.run(&["down"]).expect(1);
    assert!(busy.stderr.contains("volumes in use: v0"), "{busy:#?}");

    folder
        .run(&["volume", "resize", "v0", "--size", "12M"])
        .expect(0);
    let status = folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    assert_eq!(status.json()["status"]["size_bytes"], 12 << 20);
    // Whoever asked may be gone by then: it is the owner that notes the size.
    let mut owner = UnixStream::connect(folder.path().join("volumes/v0.sock")).unwrap();
    owner
        .write_all(b"{\"ask\":\"resize\",\"bytes\":16777216}\n")
        .unwrap();
    let noted = folder.path().join("volumes/v0.toml");
    wait_until(
        "the size is noted",
        || fs::read_to_string(&noted).unwrap().contains("\"16M\""),
        || fs::read_to_string(&noted).unwrap(),
    );
    let shrunk = folder
        .run(&["volume", "resize", "v0", "--size", "4M"])
        .expect(1);
    assert!(shrunk.stderr.contains("volume v0"), "{shrunk:#?}");
    assert!(shrunk.stderr.contains("can only grow"), "{shrunk:#?}");
    let help = folder.run(&["volume", "resize", "--help"]).expect(0).stdout;
    assert!(help.contains("up to 8 times"), "{help}");
    folder
        .run(&["volume", "resize", "v0", "--size", "64M"])
        .expect(0);
    let beyond = folder
        .run(&["volume", "resize", "v0", "--size", "68M"])
        .expect(1);
    for said in ["68M is more than 64M, 8 times", "stop the server"] {
        assert!(beyond.stderr.contains(said), "{beyond:#?}");
    }

    assert_eq!(server.end(), Some(0));
    folder.run(&["volume", "delete", "v0"]).expect(0);
    folder.run(&["down"]).expect(0);
}

#[test]
fn a_size_that_no_volume_can_have_is_refused_before_it_is_noted() {
    let folder = Folder::new();
    up(&folder);
    let resize = |size| folder.run(&["volume", "resize", "v0", "--size", size]);
    let beyond = folder
        .run(&["volume", "create", "v0", "--size", "65T"])
        .expect(2);
    assert!(beyond.stderr.contains("at most 64T"), "{beyond:#?}");
    folder.create_volume("v0", "8M", "rs:2+1");
    let beyond = resize("65T").expect(2);
    assert!(beyond.stderr.contains("at most 64T"), "{beyond:#?}");
    let served = |serve: &dyn Fn(&mut Client)| {
        let mut server = Server::start(&folder, &["--volume", "v0"]);
        server.ready();
        serve(&mut Client::connect(&folder.path().join("nbd"), "v0"));
        assert_eq!(server.end(), Some(0));
    };
    served(&|client| client.write(4096, &[7; 4096]).expect("written"));
    // Hosts lend slabs of 1 MiB here: a volume has 2^20 times 2 MiB at most.
    let beyond = resize("3T").expect(1);
    let says = "its slabs allow at most 2T";
    assert!(beyond.stderr.contains(says), "{beyond:#?}");
    resize("2T").expect(0);
    served(&|client| assert_eq!(client.read(4096, 4096), Ok(vec![7; 4096])));
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
fn signals_that_the_starter_of_a_server_ignored_do_not_end_it() {
    let folder = Folder::new();
    up(&folder);
    let mut program = cenote_that_ignores_hangups();
    program
        .args(["nbd", "--dir", folder.str(), "--volume", "v0"])
        .args(["--size", "8M", "--scheme", "mirror:2", "--socket"])
        .arg(folder.path().join("nbd"))
        .stderr(Stdio::null());
    let mut server = Server::spawn(program);
    assert!(server.ready().starts_with("ready v0 "));
    for name in ["HUP", "INT"] {
        signal(server.child.id(), name);
        // Meanwhile it could end.
        folder.run(&["volume", "status", "v0"]).expect(0);
        let mut client = Client::connect(&folder.path().join("nbd"), "v0");
        assert!(client.read(0, 4096).is_ok(), "{name}");
        assert_eq!(server.child.try_wait().expect("a child"), None, "{name}");
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn what_a_volume_holds_is_kept_attached_reset_and_deleted() {
    if !has_tools() {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "8M", "rs:2+1");
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
    fill();

    let unused = folder.run(&["volume", "status", "v0"]).expect(1);
    assert!(unused.stderr.contains("slabs on"), "{unused:#?}");
    let status = folder.look(&["--json"]).expect(0).json();
    assert!(status["volumes"][0]["slabs_left"].as_u64().unwrap() >= 3);
    let smaller = folder
        .run(&["volume", "resize", "v0", "--size", "4M"])
        .expect(1);
    assert!(smaller.stderr.contains("has data"), "{smaller:#?}");
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
    assert!(nothing.stderr.contains("is empty"), "{nothing:#?}");
    assert_eq!(folder.lent_bytes(), 0, "hosts have it back");
    assert!(content().iter().all(|&byte| byte == 0));

    fill();
    assert_ne!(folder.lent_bytes(), 0);
    folder.run(&["volume", "delete", "v0"]).expect(0);
    assert_eq!(folder.lent_bytes(), 0);
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
fn a_signal_that_comes_twice_at_once_leaves_no_volume_behind() {
    let folder = Folder::new();
    up(&folder);
    let none = serde_json::json!([]);
    let list = || folder.run(&["volume", "list", "--json"]).expect(0).json();
    for _ in 0..5 {
        let mut server = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
        assert!(server.ready().starts_with("ready unnamed-"));
        // As `timeout` does it: to the process, and to its group.
        signal(server.child.id(), "TERM");
        signal(server.child.id(), "TERM");
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert_eq!(list(), none);
    }
    // One that was killed is forgotten when the next volume is served.
    let mut killed = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
    assert!(killed.ready().starts_with("ready unnamed-"));
    signal(killed.child.id(), "KILL");
    killed.child.wait().unwrap();
    assert_eq!(list().as_array().unwrap().len(), 1);
    let mut next = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
    let ready = next.ready();
    let name = ready.split(' ').nth(1).unwrap();
    let left = list();
    assert_eq!(left.as_array().unwrap().len(), 1, "{left}");
    assert_eq!(left[0]["name"], name);
    assert_eq!(next.end(), Some(0));
    assert_eq!(list(), none);
}

#[test]
fn what_is_lost_is_said_in_bytes() {
    if !has_tools() {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    let create = words("volume create v0 --size 4M --scheme rs:2+1");
    folder.run(&create).expect(0);
    let log = folder.path().join("server.log");
    let mut server = cenote()
        .args(["nbd", "--volume", "v0", "--dir", folder.str(), "--socket"])
        .arg(folder.path().join("nbd"))
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let stdout = server.stdout.take().expect("stdout is piped");
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    let uri = format!(
        "nbd+unix:///?socket={}",
        folder.path().join("nbd").display()
    );
    let wrote = Command::new("qemu-io")
        .args(["-f", "raw", "-c", "write -P 7 0 1M", &uri])
        .output();
    assert!(wrote.expect("qemu-io runs").status.success());
    for name in ["h00", "h01", "h02", "h03"] {
        signal(folder.pid(name), "KILL");
    }
    let lost = || {
        let status = folder.run(&["volume", "status", "v0", "--json"]);
        status.stdout.contains("\"lost\"")
    };
    support::lab::wait_until("the loss is noticed", lost, || {
        std::fs::read_to_string(&log).unwrap()
    });
    signal(server.id(), "TERM");
    server.wait().unwrap();
    let said = std::fs::read_to_string(&log).unwrap();
    assert!(said.contains("lost_bytes=1048576"), "{said}");
    assert!(
        said.contains("1048576 bytes of volume v0 are lost"),
        "{said}"
    );
    assert!(!said.contains("hosts keep the content of volume"), "{said}");
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
        .run(&words(&format!(
            "nbd --size 4M --scheme rs:8+2 --socket {socket}"
        )))
        .expect(1);
    assert!(
        few.stderr.contains("rs:8+2") && few.stderr.contains("try:"),
        "{few:#?}"
    );
    let remote = folder
        .run(&words("nbd --size 4M --scheme plain --listen 0.0.0.0:0"))
        .expect(1);
    assert!(remote.stderr.contains("--allow-remote"), "{remote:#?}");
    folder.run(&["nbd", "--size", "4M"]).expect(2);
    folder.run(&["nbd", "--socket", socket]).expect(2);
    folder
        .run(&["nbd", "--volume", "none", "--socket", socket])
        .expect(1);
    let list = || folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list(), serde_json::json!([]));
    // It is opened, and then cannot be served: the same command is right once the socket is free.
    let mut first = Server::start(&folder, &["--size", "4M", "--scheme", "plain"]);
    assert!(first.ready().starts_with("ready unnamed-"));
    let named = ["--volume", "v0", "--size", "4M", "--scheme", "plain"];
    let taken = [&["nbd", "--socket", socket], &named[..]].concat();
    let taken = folder.run(&taken).expect(1);
    assert!(!taken.stderr.contains("already exists"), "{taken:#?}");
    assert_eq!(first.end(), Some(0));
    assert_eq!(list(), serde_json::json!([]));
    let mut second = Server::start(&folder, &named);
    assert!(second.ready().starts_with("ready v0"));
    assert_eq!(second.end(), Some(0));
    assert_eq!(list()[0]["name"], "v0");
}

#[test]
fn a_scrub_that_is_asked_for_does_not_wait_for_a_slow_one() {
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "4M", "rs:2+1");
    // A page each second.
    let slow = ["--volume", "v0", "--scrub-rate", "4K"];
    let mut server = Server::start(&folder, &slow[..2]);
    assert!(server.ready().starts_with("ready v0"));
    let mut client = Client::connect(&folder.path().join("nbd"), "v0");
    for offset in (0..4 << 20).step_by(256 << 10) {
        client.write(offset, &[7; 256 << 10]).expect("written");
    }
    drop(client);
    assert_eq!(server.end(), Some(0));
    let mut server = Server::start(&folder, &slow);
    assert!(server.ready().starts_with("ready v0"));
    let status = || folder.run(&["volume", "status", "v0", "--json"]).expect(0);
    let scrub = || status().json()["status"]["scrub"].take();
    wait_until(
        "it looks at pages",
        || scrub()["pages_total"] == 1024,
        String::new,
    );
    let mut command = cenote();
    command.args(["volume", "scrub", "v0", "--dir", folder.str()]);
    let mut asked = command
        .stdout(Stdio::null())
        .spawn()
        .expect("the binary runs");
    let is_over = || asked.try_wait().expect("a child of ours").is_some();
    wait_until("it has scrubbed", is_over, || scrub().to_string());
    assert_eq!(asked.wait().expect("a child of ours").code(), Some(0));
    assert_eq!(scrub()["passes"], 2);
    assert_eq!(server.end(), Some(0));
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

#[test]
fn whoever_asks_an_owner_that_is_killed_hears_that_and_what_to_do() {
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "4M", "rs:2+1");
    for arguments in [
        &["volume", "set", "v0", "--scheme", "rs:2+2"][..],
        &["volume", "resize", "v0", "--size", "8M"],
        &["volume", "scrub", "v0"],
        &["volume", "status", "v0"],
    ] {
        let mut server = Server::start(&folder, &["--volume", "v0"]);
        assert!(server.ready().starts_with("ready v0"));
        // It is asked, and never answers.
        signal(server.child.id(), "STOP");
        let asker = cenote()
            .args(arguments)
            .args(["--dir", folder.str()])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary runs");
        wait_for_question(asker.id());
        server.child.kill().expect("a child of ours");
        server.child.wait().expect("a child of ours");
        let output = asker.wait_with_output().expect("a child of ours");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(
            said.contains("its server ended while it was "),
            "{arguments:?}: {said}"
        );
        assert!(
            said.contains("try: serve it again"),
            "{arguments:?}: {said}"
        );
        assert!(!said.contains("EOF"), "{said}");
    }
}

/// Waits until a process has a unix socket that is connected, as one that asks an owner has.
fn wait_for_question(pid: u32) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    loop {
        let open = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
        let sockets: Vec<String> = open
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .filter_map(|link| {
                let link = link.to_str()?.strip_prefix("socket:[")?;
                Some(link.trim_end_matches(']').to_owned())
            })
            .collect();
        // Number, references, protocol, flags, type, state (3: connected), inode.
        let table = std::fs::read_to_string("/proc/net/unix").unwrap();
        let is_asking = table.lines().any(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            words.get(5) == Some(&"03")
                && words
                    .get(6)
                    .is_some_and(|inode| sockets.iter().any(|it| it == inode))
        });
        if is_asking {
            return;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "not asked; its sockets: {sockets:?}"
        );
        std::thread::yield_now();
    }
}

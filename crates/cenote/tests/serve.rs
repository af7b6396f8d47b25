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
    let create = [
        "volume", "create", "v0", "--size", "4M", "--scheme", "rs:2+1",
    ];
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
    assert!(!said.contains("hosts keep what volume"), "{said}");
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

/// Whether all these programs are there; says which is not.
fn are_installed(programs: &[&str]) -> bool {
    programs.iter().all(|program| {
        let found = Command::new(program).arg("--version").output();
        if found.is_err() {
            println!("skipped: {program} is not installed");
        }
        found.is_ok()
    })
}

#[test]
fn a_client_starts_its_server_and_passes_it_a_socket() {
    if !are_installed(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "4M", "--scheme", "rs:2+1",
        ])
        .expect(0);
    let (program, image) = (env!("CARGO_BIN_EXE_cenote"), folder.path().join("image"));
    let bytes: Vec<u8> = (0..4u32 << 20).map(|at| (at % 253) as u8).collect();
    std::fs::write(&image, &bytes).unwrap();
    let copy = |from: &[&str], to: &[&str]| {
        let output = Command::new("nbdcopy")
            .arg("--")
            .args(from)
            .args(to)
            .output()
            .expect("nbdcopy runs");
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{from:?} {to:?}: {complaint}");
        output.stdout
    };
    let server = [
        "[",
        program,
        "nbd",
        "--dir",
        folder.str(),
        "--volume",
        "v0",
        "]",
    ];
    copy(&[image.to_str().unwrap()], &server);
    // The volume, and nothing that the server says, is what comes out.
    assert!(copy(&server, &["-"]) == bytes);
    let info = Command::new("nbdinfo")
        .args(["--size", "--"])
        .args(server)
        .output();
    assert_eq!(info.expect("nbdinfo runs").stdout, b"4194304\n");
}

#[test]
fn a_descriptor_that_does_not_listen_is_refused_by_its_number() {
    let folder = Folder::new();
    up(&folder);
    // The shell's own number is the server's, and 3 is a file.
    let script = "exec 3</dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_cenote"), "nbd"])
        .args(["--dir", folder.str(), "--size", "4M", "--scheme", "plain"])
        .output()
        .expect("a shell");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("descriptor 3, passed by LISTEN_FDS"),
        "{said}"
    );
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(list, serde_json::json!([]));
}

/// Starts `cenote nbd` for TCP; the server, its line, and what it warned of before.
fn serve_tcp(folder: &Folder, arguments: &[&str]) -> (Server, String, String) {
    let log = folder.path().join("nbd.log");
    let mut child = cenote()
        .args(["nbd", "--dir", folder.str(), "--volume", "v0"])
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .expect("the binary runs");
    let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
    let mut server = Server { child, stdout };
    let ready = server.ready();
    (server, ready, std::fs::read_to_string(log).unwrap())
}

#[test]
fn tcp_says_who_may_come_in_and_certificates_decide_it() {
    if !are_installed(&["openssl", "nbdinfo"]) {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "4M", "--scheme", "rs:2+1",
        ])
        .expect(0);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key) = (path("ca-cert.pem"), path("key.pem"));
    let make = |name: &str, key: &str, out: &str, more: &[&str]| {
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes"])
            .args(["-days", "2", "-subj", name])
            .args(["-addext", "subjectAltName=DNS:localhost"])
            .args(["-keyout", key, "-out", out])
            .args(more)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{made:?}");
    };
    make("/CN=well", &key, &certificate, &[]);
    let info = |ready: &str| {
        let uri = ready.trim_end().rsplit_once(' ').expect("a URI").1;
        let uri = uri.replace("127.0.0.1", "localhost");
        let uri = match uri.starts_with("nbds") {
            true => format!("{uri}?tls-certificates={}", folder.str()),
            false => uri,
        };
        let output = Command::new("nbdinfo").args(["--size", &uri]).output();
        let output = output.expect("nbdinfo runs");
        (output.status.success() && output.stdout == b"4194304\n")
            .then_some(())
            .ok_or(output)
    };

    let (mut server, ready, said) = serve_tcp(&folder, &[]);
    assert!(ready.contains(" at nbd://127.0.0.1:"), "{ready}");
    assert!(said.contains("neither password nor TLS"), "{said}");
    info(&ready).unwrap();
    assert_eq!(server.end(), Some(0));

    let pair = ["--tls-cert", &certificate, "--tls-key", &key];
    let (mut server, ready, said) = serve_tcp(&folder, &pair);
    assert!(ready.contains(" at nbds://127.0.0.1:"), "{ready}");
    assert!(said.contains("asks no client who it is"), "{said}");
    info(&ready).unwrap();
    info(&ready.replace("nbds:", "nbd:")).expect_err("it came in by clear text");
    assert_eq!(server.end(), Some(0));

    let authority = ["--tls-ca", &certificate];
    let (mut server, ready, said) = serve_tcp(&folder, &[&pair[..], &authority].concat());
    assert_eq!(said, "", "nobody but its clients comes in");
    info(&ready).expect_err("it came in without a certificate");
    let is_signed = ["-CA", &certificate, "-CAkey", &key];
    let (client_key, client) = (path("client-key.pem"), path("client-cert.pem"));
    let is_no_authority = ["-addext", "basicConstraints=critical,CA:FALSE"];
    let more = [&is_signed[..], &is_no_authority].concat();
    make("/CN=client", &client_key, &client, &more);
    info(&ready).unwrap();
    assert_eq!(server.end(), Some(0));

    let wrong = [
        "--listen",
        "127.0.0.1:0",
        "--tls-cert",
        &key,
        "--tls-key",
        &key,
    ];
    let refused = folder.run(&[&["nbd", "--volume", "v0"], &wrong[..]].concat());
    let refused = refused.expect(1);
    assert!(refused.stderr.contains("TLS: "), "{refused:#?}");
    let half = ["nbd", "--volume", "v0", "--tls-cert", &certificate];
    folder.run(&half).expect(2);
}

#[test]
fn whoever_asks_an_owner_that_is_killed_hears_that_and_what_to_do() {
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&[
            "volume", "create", "v0", "--size", "4M", "--scheme", "rs:2+1",
        ])
        .expect(0);
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
            said.contains("ended while it was asked"),
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

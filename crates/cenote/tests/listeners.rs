//! Where a volume is served over NBD: sockets that are passed, and TCP with and without certificates.

mod support;

use std::process::Command;

use support::server::{Server, up};
use support::{Folder, cenote, has, words};

#[test]
fn a_client_starts_its_server_and_passes_it_a_socket() {
    if !has(&["nbdcopy", "nbdinfo"]) {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "4M", "rs:2+1");
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
    let volume = ["nbd", "--dir", folder.str(), "--volume", "v0", "]"];
    let server = [&["[", program], &volume[..]].concat();
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
    let mut program = cenote();
    program
        .args(["nbd", "--dir", folder.str(), "--volume", "v0"])
        .args(["--listen", "127.0.0.1:0"])
        .args(arguments)
        .stderr(std::fs::File::create(&log).unwrap());
    let mut server = Server::spawn(program);
    let ready = server.ready();
    (server, ready, std::fs::read_to_string(log).unwrap())
}

#[test]
fn tcp_says_who_may_come_in_and_certificates_decide_it() {
    if !has(&["openssl", "nbdinfo"]) {
        return;
    }
    let folder = Folder::new();
    up(&folder);
    folder.create_volume("v0", "4M", "rs:2+1");
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
    assert!(said.contains("does not authenticate clients"), "{said}");
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

    let wrong = format!("--listen 127.0.0.1:0 --tls-cert {key} --tls-key {key}");
    let wrong = words(&wrong);
    let refused = folder.run(&[&["nbd", "--volume", "v0"], &wrong[..]].concat());
    let refused = refused.expect(1);
    assert!(refused.stderr.contains("TLS: "), "{refused:#?}");
    let half = ["nbd", "--volume", "v0", "--tls-cert", &certificate];
    folder.run(&half).expect(2);
}

//! Clients that others have written.

use std::path::Path;
use std::process::Command;

use super::process::Server;

/// Runs a program; nothing, with the reason printed, where there is none.
fn output(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let said = [output.stdout, output.stderr].concat();
            Some((
                output.status.success(),
                String::from_utf8_lossy(&said).into_owned(),
            ))
        }
        Err(error) => {
            println!("skipped: {program} cannot be run: {error}");
            None
        }
    }
}

#[test]
fn memcapable_passes_in_both_protocols() {
    let server = Server::local("");
    let port = server.tcp_port().to_string();
    for protocol in ["-a", "-b"] {
        let arguments = ["-h", "127.0.0.1", "-p", &port, protocol];
        let Some((passed, said)) = output("memccapable", &arguments) else {
            return;
        };
        assert!(passed && said.contains("All tests passed"), "{said}");
    }
}

#[test]
fn the_tools_of_libmemcached_work() {
    let server = Server::local("-t 2");
    let servers = format!("--servers=127.0.0.1:{}", server.tcp_port());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("item");
    std::fs::write(&file, "some text").unwrap();
    let file = file.to_str().unwrap();
    for (program, arguments, expected) in [
        ("memcping", &[][..], ""),
        ("memccp", &[file][..], ""),
        ("memccat", &["item"], "some text"),
        ("memcdump", &[], "item"),
        ("memcexist", &["item"], ""),
        ("memctouch", &["--expire=1000", "item"], ""),
        ("memcstat", &[], "curr_items: 1"),
        ("memcrm", &["item"], ""),
        ("memcflush", &[], ""),
    ] {
        let arguments = [&[servers.as_str()], arguments].concat();
        let Some((passed, said)) = output(program, &arguments) else {
            return;
        };
        assert!(passed && said.contains(expected), "{program}: {said}");
    }
    let (passed, _) = output("memccat", &[&servers, "item"]).unwrap();
    assert!(!passed, "it was removed");
}

const PYTHON: &str = r#"
import sys
port = int(sys.argv[1])
from pymemcache.client.base import Client
client = Client(("127.0.0.1", port))
assert client.set("a", b"1", noreply=False)
assert client.incr("a", 41) == 42
value, cas = client.gets("a")
assert value == b"42"
assert client.cas("a", b"43", cas) is True
assert client.cas("a", b"44", cas) is False
assert client.get_many(["a", "b"]) == {"a": b"43"}
assert client.touch("a", 100, noreply=False)
assert client.stats()[b"curr_items"] == 1
assert client.delete("a", noreply=False) and client.get("a") is None
import pylibmc
for binary in [False, True]:
    client = pylibmc.Client([f"127.0.0.1:{port}"], binary=binary, behaviors={"cas": True})
    many = {f"key{n}": "v" * n for n in range(1000)}
    assert client.set_multi(many) == []
    assert client.get_multi(list(many)) == many
    value, cas = client.gets("key7")
    assert client.cas("key7", "other", cas) and client["key7"] == "other"
    assert client.append("key7", "!") and client["key7"] == "other!"
    big = b"x" * 900_000
    assert client.set("big", big) and client.get("big") == big
    assert client.flush_all() and client.get("big") is None
print("passed")
"#;

#[test]
fn pymemcache_and_pylibmc_work() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python");
    if !target.join("pylibmc").exists() {
        let place = target.to_str().unwrap();
        let arguments = [
            "-m",
            "pip",
            "install",
            "-q",
            "--target",
            place,
            "pymemcache==4.0.0",
            "pylibmc==1.6.3",
        ];
        match output("python3", &arguments) {
            Some((true, _)) => {}
            Some((false, said)) => return println!("skipped: pip: {said}"),
            None => return,
        }
    }
    let server = Server::local("-t 2");
    let output = Command::new("python3")
        .args(["-c", PYTHON, &server.tcp_port().to_string()])
        .env("PYTHONPATH", &target)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(output.stdout, b"passed\n");
}

const TLS: &str = r#"
import socket, ssl, sys
port, authority, certificate, key = int(sys.argv[1]), *sys.argv[2:5]
context = ssl.create_default_context(cafile=authority)
context.check_hostname = False
def connect():
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port)))
try:
    stream = connect()
    stream.sendall(b"mn\r\n")
    assert stream.recv(100) == b"", "without a certificate"
except (ssl.SSLError, ConnectionError):
    pass
context.load_cert_chain(certificate, key)
stream = connect()
value = b"v" * 900_000
stream.sendall(b"set a 0 0 900000\r\n" + value + b"\r\n" + b"get a\r\n" * 20 + b"mn\r\n")
said = b""
while not said.endswith(b"MN\r\n"):
    said += stream.recv(1 << 16)
assert said == b"STORED\r\n" + (b"VALUE a 0 900000\r\n" + value + b"\r\nEND\r\n") * 20 + b"MN\r\n"
print("passed")
"#;

#[test]
fn tls_shows_its_certificate_and_asks_for_the_clients() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (authority_key, authority) = (path("authority-key.pem"), path("authority.pem"));
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    let curve = "ec_paramgen_curve:prime256v1";
    let common = [
        "req", "-x509", "-newkey", "ec", "-pkeyopt", curve, "-nodes", "-days", "2",
    ];
    let of_authority = [
        &common[..],
        &[
            "-subj",
            "/CN=authority",
            "-keyout",
            &authority_key,
            "-out",
            &authority,
        ],
    ];
    let of_server = [
        &common[..],
        &[
            "-subj",
            "/CN=server",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ],
        &[
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-CA",
            &authority,
            "-CAkey",
            &authority_key,
        ],
        &["-keyout", &key, "-out", &certificate],
    ];
    for request in [of_authority.concat(), of_server.concat()] {
        let Some((made, said)) = output("openssl", &request) else {
            return;
        };
        assert!(made, "{said}");
    }
    let files = format!(
        "ssl_chain_cert={certificate},ssl_key={key},ssl_ca_cert={authority},ssl_verify_mode=2"
    );
    let server = Server::local(&format!("-Z -o {files} -t 2"));
    let port = server.tcp_port().to_string();
    let Some((passed, said)) = output(
        "python3",
        &["-c", TLS, &port, &authority, &certificate, &key],
    ) else {
        return;
    };
    assert!(passed && said == "passed\n", "{said}");
    assert_eq!(server.stop(), Some(0));

    // OpenSSL goes by a key's bytes and not by its label, and so do files that were made with it.
    let written = std::fs::read_to_string(&key).unwrap();
    let relabelled = written.replace(" PRIVATE KEY", " RSA PRIVATE KEY");
    assert_ne!(written, relabelled);
    std::fs::write(&key, relabelled).unwrap();
    let server = Server::local(&format!("-Z -o {files} -t 1"));
    assert_eq!(server.stop(), Some(0));
}

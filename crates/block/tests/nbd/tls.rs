//! NBD over TLS: a client of our own, and the tools people use.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote_block::nbd::Address;
use cenote_block::ram::RamDisk;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, StreamOwned};

use crate::client::*;
use crate::tools::{image, run};

/// An authority, a server and a client, in files with the names that libnbd and QEMU look for.
struct Certificates(tempfile::TempDir);

impl Certificates {
    /// `None`, with a line that says so, where there is no openssl.
    fn make() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let made = Self(folder);
        let path = |name: &str| made.path(name);
        let (authority, authority_key) = (path("ca-cert.pem"), path("ca-key.pem"));
        let new = ["req", "-x509", "-newkey", "ec", "-pkeyopt"];
        let curve = ["ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"];
        let common = [&new[..], &curve].concat();
        let of_authority = ["-subj", "/CN=authority", "-keyout"];
        let files = [&authority_key[..], "-out", &authority];
        run("openssl", &[&common[..], &of_authority, &files].concat())?;
        for (name, usage) in [("server", "serverAuth"), ("client", "clientAuth")] {
            let (subject, usage) = (format!("/CN={name}"), format!("extendedKeyUsage={usage}"));
            let (key, out) = (
                path(&format!("{name}-key.pem")),
                path(&format!("{name}-cert.pem")),
            );
            let names = "subjectAltName=DNS:localhost,IP:127.0.0.1";
            let is_end = "basicConstraints=critical,CA:FALSE";
            let extra = [
                &["-subj", &subject, "-addext", names, "-addext", is_end][..],
                &["-addext", &usage, "-CA", &authority, "-CAkey"],
                &[&authority_key, "-keyout", &key, "-out", &out],
            ];
            run("openssl", &[&common[..], &extra.concat()].concat())?;
        }
        Some(made)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn pair(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_file_iter(self.path(&format!("{name}-cert.pem")));
        let chain = chain.unwrap().collect::<Result<_, _>>().unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path(&format!("{name}-key.pem")));
        (chain, key.unwrap())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let authority = CertificateDer::from_pem_file(self.path("ca-cert.pem")).unwrap();
        roots.add(authority).unwrap();
        Arc::new(roots)
    }

    fn server(&self) -> Arc<ServerConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(self.roots(), provider.clone());
        let builder = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap());
        let (chain, key) = self.pair("server");
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }

    fn client(&self, shows_certificate: bool) -> Arc<ClientConfig> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(self.roots());
        Arc::new(match shows_certificate {
            true => {
                let (chain, key) = self.pair("client");
                builder.with_client_auth_cert(chain, key).unwrap()
            }
            false => builder.with_no_client_auth(),
        })
    }

    /// A server over TCP with TLS, and a unix socket where it is offered.
    fn serve(&self, size_bytes: u64) -> Fixture {
        Fixture::with(Arc::new(RamDisk::new(size_bytes)), |config| {
            let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
            config.addresses.push(Address::Tcp(any));
            config.tls = Some(self.server());
        })
    }
}

const STARTTLS: u32 = 5;

/// Asks for TLS and begins with it.
fn secure<S: Read + Write>(
    mut client: Client<S>,
    config: Arc<ClientConfig>,
) -> Client<StreamOwned<ClientConnection, S>> {
    client.greet();
    client.option(STARTTLS, b"");
    assert_eq!(client.option_reply(), (1, Vec::new()));
    let name = ServerName::try_from("localhost").unwrap();
    let tls = ClientConnection::new(config, name).unwrap();
    Client {
        stream: StreamOwned::new(tls, client.stream),
    }
}

#[test]
fn what_goes_over_tls_comes_back_whatever_its_length() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(128 << 20);
    let mut client = secure(fixture.connect_tcp(), certificates.client(true));
    client.option(8, b"");
    assert_eq!(client.option_reply().0, 1);
    client.go();
    for (cookie, len) in [(1, 1), (2, 5000), (3, 100_000), (4, 50_000_001)] {
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        client.request((WRITE, 0), cookie, 77, len);
        client.put(&bytes);
        assert_eq!(client.simple_reply(), (0, cookie));
        client.request((READ, 4), cookie, 77, len);
        let (_, kind, _, data) = client.chunk();
        assert_eq!(kind, 1);
        assert!(data[8..] == bytes, "{len} bytes");
    }
    // Many at once, of which the answers do not fit into the socket.
    let reads: Vec<u8> = (0..100)
        .flat_map(|cookie| header((READ, 4), cookie, 77, 1 << 20))
        .collect();
    client.put(&reads);
    for cookie in 0..100 {
        assert_eq!(client.chunk().2, cookie);
    }
    client.request((DISC, 0), 9, 0, 0);
    assert!(client.is_closed(), "with a goodbye");
    assert_eq!(fixture.server.stats().tls_failures, 0);
}

#[test]
fn without_tls_or_without_a_certificate_nobody_comes_in_by_tcp() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(1 << 20);
    let mut plain = fixture.connect_tcp();
    plain.greet();
    for (option, data) in [(3, &b""[..]), (7, b"\0\0\0\x04disk\0\0"), (8, b"")] {
        plain.option(option, data);
        assert_eq!(plain.option_reply().0, 0x8000_0005, "option {option}");
    }
    plain.option(1, b"disk");
    assert!(plain.is_closed());

    let mut nameless = secure(fixture.connect_tcp(), certificates.client(false));
    let greeted = nameless.stream.write_all(b"IHAVEOPT").and_then(|()| {
        let mut reply = [0; 20];
        nameless.stream.write_all(&[0, 0, 0, 3, 0, 0, 0, 0])?;
        nameless.stream.read_exact(&mut reply)
    });
    assert!(
        greeted.is_err(),
        "a client without a certificate was answered"
    );
    fixture.wait_for("the failure", |stats| stats.tls_failures == 1);

    let mut garbage = fixture.connect_tcp();
    garbage.greet();
    garbage.option(STARTTLS, b"");
    assert_eq!(garbage.option_reply().0, 1);
    garbage.put(&[0x7f; 600]);
    fixture.wait_for("the second failure", |stats| stats.tls_failures == 2);
}

#[test]
fn what_is_said_in_the_clear_behind_the_request_for_tls_is_not_heard() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(1 << 20);
    let mut client = fixture.connect_tcp();
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(b"IHAVEOPT\0\0\0\x05\0\0\0\0");
    bytes.extend(b"IHAVEOPT\0\0\0\x08\0\0\0\0");
    client.put(&bytes);
    assert!(client.is_closed_after_greeting());
}

#[test]
fn the_unix_socket_offers_tls_and_goes_without() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(1 << 20);
    let mut plain = fixture.simple();
    plain.request((READ, 0), 1, 0, 4);
    assert_eq!(plain.simple_reply(), (0, 1));
    plain.take(4);
    let mut client = secure(fixture.connect(), certificates.client(true));
    client.go();
    client.request((READ, 0), 2, 0, 4);
    assert_eq!(client.simple_reply(), (0, 2));
    client.take(4);
}

/// Runs a program that has to fail; `None` where it is not installed.
fn run_in_vain(program: &str, arguments: &[&str]) -> Option<String> {
    let output = match Command::new(program).args(arguments).output() {
        Ok(output) => output,
        Err(error) => {
            println!("skipped: {program}: {error}");
            return None;
        }
    };
    assert!(
        !output.status.success(),
        "{program} {arguments:?} succeeded"
    );
    Some(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn libnbds_tools_copy_there_and_back_over_tls() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(64 << 20);
    let port = fixture.tcp_address().port();
    let folder = certificates.0.path().display();
    let uri = format!("nbds://localhost:{port}/disk?tls-certificates={folder}");
    let Some(text) = run("nbdinfo", &[&uri]) else {
        return;
    };
    assert!(
        text.contains("TLS") && text.contains("export-size: 67108864"),
        "{text}"
    );
    let (source, copy) = (certificates.path("a"), certificates.path("b"));
    image(Path::new(&source), 64 << 20);
    run("nbdcopy", &["--connections=4", &source, &uri]);
    run("nbdcopy", &["--connections=4", &uri, &copy]);
    assert!(std::fs::read(&source).unwrap() == std::fs::read(&copy).unwrap());
    run_in_vain("nbdinfo", &[&format!("nbd://localhost:{port}/disk")]);
}

#[test]
fn qemus_tools_work_over_tls() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(16 << 20);
    let port = fixture.tcp_address().port().to_string();
    let folder = certificates.0.path().display();
    let credentials = format!("tls-creds-x509,id=tls0,endpoint=client,dir={folder}");
    let target = format!("driver=nbd,host=localhost,port={port},export=disk,tls-creds=tls0");
    let source = certificates.path("a");
    image(Path::new(&source), 16 << 20);
    let object = ["--object", &credentials];
    let convert = ["-n", "-f", "raw", "--target-image-opts", &source, &target];
    if run("qemu-img", &[&["convert"], &object[..], &convert].concat()).is_none() {
        return;
    }
    let first = format!("driver=file,filename={source}");
    let compare = ["--image-opts", &first, &target];
    run("qemu-img", &[&["compare"], &object[..], &compare].concat());
    let list = [
        "--list",
        "-b",
        "localhost",
        "-p",
        &port,
        "--tls-creds",
        "tls0",
    ];
    let listed = run("qemu-nbd", &[&object[..], &list].concat());
    assert!(listed.is_none_or(|text| text.contains("export: 'disk'")));
    run_in_vain("qemu-nbd", &["--list", "-b", "localhost", "-p", &port]);
}

#[test]
fn nbdkit_relays_over_tls() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = certificates.serve(16 << 20);
    let port = format!("port={}", fixture.tcp_address().port());
    let folder = format!("tls-certificates={}", certificates.0.path().display());
    let command = "qemu-io -f raw -c 'write -P 5 1M 2M' -c 'read -P 5 1M 2M' \"$uri\"";
    let target = ["-U", "-", "nbd", "hostname=localhost", &port, "export=disk"];
    let relay = [&target[..], &["tls=require", &folder, "--run", command]].concat();
    if let Some(text) = run("nbdkit", &relay) {
        assert!(text.contains("read 2097152/2097152"), "{text}");
        assert!(fixture.server.stats().written_bytes >= 2 << 20);
    }
}

/// Streams of clients that only connect are kept apart from those of TLS.
#[test]
fn a_stranger_that_begins_tls_and_stops_is_given_up() {
    let Some(certificates) = Certificates::make() else {
        return;
    };
    let fixture = Fixture::with(Arc::new(RamDisk::new(1 << 20)), |config| {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        config.addresses.push(Address::Tcp(any));
        config.tls = Some(certificates.server());
        config.handshake_limit = HANDSHAKE_LIMIT;
    });
    let mut stranger = fixture.connect_tcp();
    stranger.greet();
    stranger.option(STARTTLS, b"");
    assert_eq!(stranger.option_reply().0, 1);
    stranger.put(&[22, 3, 1, 2, 0, 1]);
    let stream: &mut TcpStream = &mut stranger.stream;
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    assert_eq!(fixture.server.stats().handshakes_expired, 1);
}

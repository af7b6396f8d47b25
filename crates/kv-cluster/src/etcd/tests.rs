//! Against a real server. Without the program the tests say that they were left out.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use super::*;
use crate::store::Store as _;

mod credentials;

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct Store {
    server: Option<EtcdServer>,
    url: String,
    folder: tempfile::TempDir,
}

impl Store {
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match EtcdServer::start(folder.path(), |_| ()) {
            Ok(server) => Some(Self {
                url: server.url().to_owned(),
                server: Some(server),
                folder,
            }),
            Err(error @ ServerError::Missing) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// How slow the disk is, is no matter of these tests.
    fn client(&self) -> Etcd {
        Etcd::new(&self.url, None).unwrap().patient(PATIENCE)
    }

    fn restart(&mut self) {
        self.server = None;
        let server = EtcdServer::start_at(self.folder.path(), &self.url, |_| ());
        self.server = Some(server.unwrap());
    }
}

fn put(change: Option<Change>) -> (String, Vec<u8>) {
    match change {
        Some(Change::Put(entry)) => (entry.key, entry.value),
        other => panic!("{other:?}"),
    }
}

fn has(listing: &Listing, key: &str) -> bool {
    listing.entries.iter().any(|entry| entry.key == key)
}

/// Waits until a watch says that a key is there, or is not. It may say so by all there is: see
/// `Watcher::take`.
fn wait_until_told(watch: &Watch, key: &str, is_there: bool) {
    loop {
        match watch.wait(PATIENCE).expect("it is told") {
            Change::Put(entry) if is_there && entry.key == key => return,
            Change::Deleted { key: gone, .. } if !is_there && gone == key => return,
            Change::Reset(listing) if has(&listing, key) == is_there => return,
            _ => {}
        }
    }
}

#[test]
fn keys_are_read_listed_swapped_and_deleted() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    assert_eq!(etcd.read("/a/1").unwrap(), None);
    let Swap::Done(first) = etcd.swap("/a/1", 0, b"one", None).unwrap() else {
        panic!("nobody else writes");
    };
    let read = etcd.read("/a/1").unwrap().unwrap();
    assert_eq!(
        (read.value.as_slice(), read.mod_revision),
        (&b"one"[..], first)
    );

    let stale = etcd.swap("/a/1", 0, b"two", None).unwrap();
    assert_eq!(stale, Swap::Changed(Some(read)));
    let gone = etcd.swap("/a/none", first, b"two", None).unwrap();
    assert_eq!(gone, Swap::Changed(None));
    // Asked for again, as after a lost answer.
    assert_eq!(
        etcd.swap("/a/1", 0, b"one", None).unwrap(),
        Swap::Done(first)
    );
    let Swap::Done(second) = etcd.swap("/a/1", first, &[0, 255], None).unwrap() else {
        panic!("the revision is right");
    };
    assert!(second > first);

    // One that depends on other keys: on one that is there, and on one that is not.
    let others =
        |there: i64, absent: i64| [("/a/1".to_owned(), there), ("/a/no".to_owned(), absent)];
    for stale in [others(first, 0), others(second, first)] {
        let swapped = etcd.swap_with("/a/3", 0, b"x", &stale).unwrap();
        assert_eq!(swapped, Swap::Changed(None));
    }
    let swapped = etcd.swap_with("/a/3", 0, b"x", &others(second, 0)).unwrap();
    assert!(matches!(swapped, Swap::Done(_)), "{swapped:?}");
    etcd.delete("/a/3").unwrap();

    etcd.put("/a/2", b"", None).unwrap();
    etcd.put("/b", b"not listed", None).unwrap();
    let listed = etcd.list("/a/").unwrap();
    let pairs: Vec<_> = listed
        .entries
        .iter()
        .map(|entry| (entry.key.as_str(), entry.value.as_slice()))
        .collect();
    assert_eq!(pairs, [("/a/1", &[0, 255][..]), ("/a/2", b"")]);
    assert_eq!(etcd.list("").unwrap().entries.len(), 3);
    etcd.delete("/a/1").unwrap();
    etcd.delete("/a/1").unwrap();
    assert_eq!(etcd.read("/a/1").unwrap(), None);
}

#[test]
fn what_etcd_refuses_is_said_in_its_words() {
    let Some(store) = Store::start() else { return };
    let refused = store.client().compact(1 << 40).unwrap_err();
    assert!(
        refused.to_string().contains("required revision"),
        "{refused}"
    );
    assert!(!refused.is_retryable());
}

#[test]
fn silent_endpoints_are_passed_over() {
    let Some(store) = Store::start() else { return };
    // Nobody listens at the first; the second takes connections and never answers.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = closed.local_addr().unwrap();
    drop(closed);
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = mute.local_addr().unwrap();
    let endpoints = format!("http://{dead}, http://{silent}/,{}", store.url);
    let etcd = Etcd::new(&endpoints, None).unwrap();
    etcd.put("/a", b"b", None).unwrap();
    assert_eq!(etcd.shared.preferred.load(Ordering::Relaxed), 2);
    let none = Etcd::new(&format!("http://{dead}"), None).unwrap();
    let error = none.read("/a").unwrap_err();
    assert!(error.is_retryable(), "{error}");
    for bad in ["", "localhost:2379", "http://", "http://a,", "http://a/b"] {
        let made = Etcd::new(bad, None);
        assert!(matches!(made, Err(EtcdError::Endpoint(_))), "{bad}");
    }
    let made = Etcd::new("https://a:1", None);
    assert!(matches!(made, Err(EtcdError::NoAuthority(_))));
}

#[test]
fn what_stands_before_an_etcd_that_is_down_does_not_speak_for_the_others() {
    let nothing = r#"{"header":{"cluster_id":"1","revision":"7"}}"#;
    let answering = |answer| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || answer_each(&listener, &[answer]));
        url
    };
    for proxys in [
        (503, "<html>no server is available</html>"),
        (404, "page not found"),
        (200, "<html>sign in first</html>"),
        (503, r#"{"message":"no healthy upstream","code":503}"#),
    ] {
        let endpoints = format!("{},{}", answering(proxys), answering((200, nothing)));
        let etcd = Etcd::new(&endpoints, None).unwrap();
        assert_eq!(etcd.read("/a").unwrap(), None, "{proxys:?}");
        assert_eq!(etcd.shared.preferred.load(Ordering::Relaxed), 1);
        // Where nobody else is, that is what there is to say.
        let error = Etcd::new(&answering(proxys), None).unwrap();
        let error = error.read("/a").unwrap_err();
        let is_told = matches!(error, EtcdError::Http { .. } | EtcdError::Malformed(_));
        assert!(is_told, "{error}");
        // And an etcd that has no leader yet may answer later, whoever else says something.
        let electing = answering((503, r#"{"code":14,"message":"etcdserver: no leader"}"#));
        let endpoints = format!("{electing},{}", answering(proxys));
        let error = Etcd::new(&endpoints, None).unwrap();
        let error = error.read("/a").unwrap_err();
        assert!(error.is_silence(), "{error}");
    }
}

/// A server that is silent on its first connection, and answers on those after it.
fn slow(answers: Vec<(u16, &'static str)>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let _silent = listener.accept().unwrap();
        answer_each(&listener, &answers);
    });
    url
}

/// Answers one connection after the other.
fn answer_each(listener: &TcpListener, answers: &[(u16, &'static str)]) {
    for (code, said) in answers {
        let (mut stream, _) = listener.accept().unwrap();
        // What was not read of a request would be told as a reset.
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            request.extend(byte);
        }
        let length = said.len();
        let head = format!("HTTP/1.1 {code} It\r\nConnection: close\r\n");
        let answer = format!("{head}Content-Length: {length}\r\n\r\n{said}");
        stream.write_all(answer.as_bytes()).unwrap();
    }
}

#[test]
fn who_is_patient_asks_again_while_etcd_is_silent_and_not_where_nobody_listens() {
    let nothing = r#"{"header":{"cluster_id":"1","revision":"7"}}"#;
    let etcd = Etcd::new(&slow(vec![(200, nothing)]), None).unwrap();
    let error = etcd.read("/a").unwrap_err();
    assert!(error.is_silence(), "{error}");
    let etcd = Etcd::new(&slow(vec![(200, nothing)]), None).unwrap();
    assert_eq!(etcd.patient(PATIENCE).read("/a").unwrap(), None);

    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", closed.local_addr().unwrap());
    drop(closed);
    // An hour, unless it is told at once.
    let patient = Etcd::new(&url, None)
        .unwrap()
        .patient(Duration::from_secs(3600));
    let error = patient.read("/a").unwrap_err();
    assert!(error.is_retryable() && !error.is_silence(), "{error}");
}

#[test]
fn what_was_done_and_not_answered_in_time_is_no_error_the_second_time() {
    let root = Credentials {
        name: "root".to_owned(),
        password: "open sesame".to_owned(),
    };
    let there =
        r#"{"error":"user name already exists","code":9,"message":"user name already exists"}"#;
    let url = slow(vec![(400, there), (200, "{}"), (200, "{}"), (200, "{}")]);
    let etcd = Etcd::new(&url, None).unwrap().patient(PATIENCE);
    etcd.enable_credentials(&root).unwrap();
}

/// An authority, and certificates of 127.0.0.1 and of clients that it has signed: as an operator makes them.
fn certificates(folder: &std::path::Path) -> bool {
    let openssl = |arguments: &str| {
        let mut command = std::process::Command::new("openssl");
        command.current_dir(folder).args(arguments.split(' '));
        command.output().is_ok_and(|output| output.status.success())
    };
    let new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    let of = |name: &str, more: &str| {
        let signed = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE";
        openssl(&format!(
            "{new} {signed} -keyout {name}.key -out {name}.pem {more}"
        ))
    };
    openssl(&format!("{new} -keyout ca.key -out ca.pem -subj /CN=ca"))
        && openssl(&format!(
            "{new} -keyout other.key -out other.pem -subj /CN=other"
        ))
        && of(
            "server",
            "-subj /CN=server -addext subjectAltName=IP:127.0.0.1",
        )
        && of(
            "client",
            "-subj /O=client -addext extendedKeyUsage=clientAuth",
        )
        && of(
            "named",
            "-subj /CN=named -addext extendedKeyUsage=clientAuth",
        )
}

#[test]
fn an_etcd_that_speaks_tls_is_reached_by_who_knows_its_authority_and_shows_a_certificate() {
    let folder = tempfile::tempdir().unwrap();
    if !certificates(folder.path()) {
        return eprintln!("skipped: no openssl 3 that makes certificates");
    }
    let file = |name: &str| folder.path().join(name);
    let port = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let (url, peer) = (
        format!("https://127.0.0.1:{}", port()),
        format!("http://127.0.0.1:{}", port()),
    );
    let mut command = std::process::Command::new("etcd");
    command
        .args(["--data-dir"])
        .arg(file("data"))
        .args([
            "--listen-client-urls",
            &url,
            "--advertise-client-urls",
            &url,
        ])
        .args([
            "--listen-peer-urls",
            &peer,
            "--initial-advertise-peer-urls",
            &peer,
        ])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args([
            "--logger",
            "zap",
            "--log-level",
            "error",
            "--client-cert-auth",
        ]);
    for (flag, name) in [
        ("--cert-file", "server.pem"),
        ("--key-file", "server.key"),
        ("--trusted-ca-file", "ca.pem"),
    ] {
        command.arg(flag).arg(file(name));
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return eprintln!("skipped: etcd: {error}"),
    };
    let tls = |authority: &str, own: Option<&str>| Tls {
        authority: file(authority),
        own: own.map(|own| (file(&format!("{own}.pem")), file(&format!("{own}.key")))),
    };
    let right = Etcd::with(&url, None, Some(&tls("ca.pem", Some("client")))).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    let put = loop {
        let put = right.put("/a", b"b", None);
        if put.is_ok() || std::time::Instant::now() >= deadline {
            break put;
        }
    };
    let watch = Watch::start(&right, "/a", None, || ());
    let told = watch.wait(PATIENCE);
    let wrong: Vec<_> = [tls("other.pem", Some("client")), tls("ca.pem", None)]
        .iter()
        .map(|tls| Etcd::with(&url, None, Some(tls)).unwrap().read("/a"))
        .collect();
    let root = Credentials {
        name: "root".to_owned(),
        password: "well".to_owned(),
    };
    let enabled = right.enable_credentials(&root);
    let nameless = right.read("/a");
    let by = |own: &str| {
        let etcd = Etcd::with(&url, Some(root.clone()), Some(&tls("ca.pem", Some(own))));
        etcd.unwrap().read("/a")
    };
    let (named, of_two_names) = (by("client"), by("named"));
    child.kill().unwrap();
    child.wait().unwrap();
    put.unwrap();
    enabled.unwrap();
    assert!(
        matches!(nameless, Err(EtcdError::Refused { .. })),
        "{nameless:?}"
    );
    assert_eq!(named.unwrap().unwrap().value, b"b");
    // Etcd's own rule, in plain text: beside users a certificate has no common name.
    let why = of_two_names.unwrap_err().to_string();
    assert!(why.contains("CommonName"), "{why}");
    let Some(Change::Reset(listing)) = told else {
        panic!("{told:?}");
    };
    assert_eq!(listing.entries[0].value, b"b");
    for refused in wrong {
        assert!(
            matches!(refused, Err(EtcdError::Unreachable { .. })),
            "{refused:?}"
        );
    }
    let missing = Etcd::with(&url, None, Some(&tls("none.pem", None)));
    assert!(matches!(missing, Err(EtcdError::Certificate { .. })));
    let empty = Etcd::with(&url, None, Some(&tls("ca.key", None)));
    assert!(matches!(empty, Err(EtcdError::Certificate { .. })));
    let plain = Etcd::with("http://127.0.0.1:1", None, Some(&tls("ca.pem", None)));
    assert!(matches!(plain, Err(EtcdError::Endpoint(_))));
}

#[test]
fn a_watch_tells_every_change_once_also_over_a_restart_of_etcd() {
    let Some(mut store) = Store::start() else {
        return;
    };
    let etcd = store.client();
    etcd.put("/w/1", b"before", None).unwrap();
    let watch = Watch::start(&etcd, "/w/", None, || ());
    let Some(Change::Reset(listing)) = watch.wait(PATIENCE) else {
        panic!("the first is what is there");
    };
    assert_eq!(listing.entries.len(), 1);
    etcd.put("/other", b"", None).unwrap();
    etcd.put("/w/2", b"two", None).unwrap();
    assert_eq!(put(watch.wait(PATIENCE)), ("/w/2".into(), b"two".to_vec()));

    store.restart();
    etcd.put("/w/3", b"three", None).unwrap();
    etcd.delete("/w/1").unwrap();
    assert_eq!(
        put(watch.wait(PATIENCE)),
        ("/w/3".into(), b"three".to_vec())
    );
    let deleted = watch.wait(PATIENCE);
    assert!(
        matches!(&deleted, Some(Change::Deleted { key, .. }) if key == "/w/1"),
        "{deleted:?}"
    );
    // Not held back until the round is over: it comes in the stream.
    etcd.put("/w/4", b"", None).unwrap();
    assert_eq!(put(watch.wait(PATIENCE)).0, "/w/4");
    assert_eq!(watch.poll(), None);
}

#[test]
fn a_watch_over_a_compaction_starts_again_with_all_there_is() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    let first = etcd.put("/w/1", b"old", None).unwrap();
    etcd.put("/w/1", b"new", None).unwrap();
    let last = etcd.put("/w/2", b"also", None).unwrap();
    etcd.compact(last).unwrap();
    let watch = Watch::start(&etcd, "/w/", Some(first), || ());
    let Some(Change::Reset(listing)) = watch.wait(PATIENCE) else {
        panic!("the changes in between are gone");
    };
    let values: Vec<_> = listing.entries.iter().map(|e| e.value.as_slice()).collect();
    assert_eq!(values, [&b"new"[..], b"also"]);
    etcd.put("/w/3", b"after", None).unwrap();
    assert_eq!(put(watch.wait(PATIENCE)).0, "/w/3");
}

#[test]
fn a_watch_from_a_revision_gives_what_came_after_it() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    let first = etcd.put("/w/1", b"", None).unwrap();
    for index in 0..300 {
        etcd.put(&format!("/w/{index:03}"), b"x", None).unwrap();
    }
    let watch = Watch::start(&etcd, "/w/", Some(first), || ());
    for index in 0..300 {
        assert_eq!(put(watch.wait(PATIENCE)).0, format!("/w/{index:03}"));
    }
}

#[test]
fn a_lease_lives_while_it_is_renewed_and_its_keys_go_with_it() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    let watch = Watch::start(&etcd, "/l/", None, || ());
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Reset(_))));
    let lease = etcd.grant(Duration::from_secs(6)).unwrap();
    etcd.put("/l/kept", b"", Some(lease)).unwrap();
    wait_until_told(&watch, "/l/kept", true);
    assert_eq!(etcd.read("/l/kept").unwrap().unwrap().lease, Some(lease));
    // Longer than it lasts when nobody renews it.
    for _ in 0..9 {
        match watch.wait(Duration::from_secs(1)) {
            None => {}
            Some(Change::Reset(listing)) => assert!(has(&listing, "/l/kept")),
            other => panic!("{other:?}"),
        }
        assert!(etcd.renew(lease).unwrap());
    }
    etcd.revoke(lease).unwrap();
    assert!(!etcd.renew(lease).unwrap());
    wait_until_told(&watch, "/l/kept", false);

    let lease = etcd.grant(Duration::from_secs(60)).unwrap();
    etcd.put("/l/revoked", b"", Some(lease)).unwrap();
    wait_until_told(&watch, "/l/revoked", true);
    let held = etcd.read("/l/revoked").unwrap().unwrap();
    let swapped = etcd.swap_value(&held.key, held.mod_revision, b"still the lease's");
    assert!(matches!(swapped.unwrap(), Swap::Done(_)));
    wait_until_told(&watch, "/l/revoked", true);
    etcd.revoke(lease).unwrap();
    wait_until_told(&watch, "/l/revoked", false);

    let lease = etcd.grant(Duration::from_secs(1)).unwrap();
    etcd.put("/l/left", b"", Some(lease)).unwrap();
    wait_until_told(&watch, "/l/left", true);
    wait_until_told(&watch, "/l/left", false);
}

#[test]
fn a_watch_tells_all_again_when_etcd_has_lost_its_data() {
    let Some(mut store) = Store::start() else {
        return;
    };
    let etcd = store.client();
    for _ in 0..20 {
        etcd.put("/w/1", b"old", None).unwrap();
    }
    let watch = Watch::start(&etcd, "/w/", None, || ());
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Reset(_))));
    store.server = None;
    std::fs::remove_dir_all(store.folder.path().join("data")).unwrap();
    store.restart();
    etcd.put("/w/2", b"new", None).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        match watch.wait(PATIENCE) {
            Some(Change::Reset(listing)) if listing.entries.len() == 1 => {
                assert_eq!(listing.entries[0].key, "/w/2");
                return;
            }
            // Of the moment before the key was put, which is then told.
            Some(Change::Reset(listing)) => assert_eq!(listing.entries, []),
            Some(Change::Put(entry)) => return assert_eq!(entry.key, "/w/2"),
            other => panic!("{other:?}"),
        }
        assert!(
            std::time::Instant::now() < deadline,
            "nothing is told again"
        );
    }
}

#[test]
fn hostile_answers_are_errors() {
    for bad in [
        &b""[..],
        b"{}",
        b"[]",
        b"{\"header\":{\"revision\":\"x\"}}",
        b"{\"header\":{\"cluster_id\":\"-1\"}}",
        b"{\"header\":{\"revision\":\"99999999999999999999\"}}",
        b"\xff\xfe",
    ] {
        assert!(message::parse::<message::Headed>(bad).is_err(), "{bad:?}");
    }
    let pair = |key: &str, value: &str| message::Pair {
        key: key.to_owned(),
        value: value.to_owned(),
        mod_revision: 1,
        lease: 0,
    };
    assert!(entry(pair("!", "")).is_err());
    assert!(entry(pair("", "=")).is_err());
    assert!(entry(pair("/w==", "")).is_err(), "not UTF-8");
}

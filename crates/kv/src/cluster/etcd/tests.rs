//! Against a real server. Without the program the tests say that they were left out.

use std::net::TcpListener;

use super::*;

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

    fn client(&self) -> Etcd {
        Etcd::new(&self.url, None).unwrap()
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
    for bad in [
        "",
        "localhost:2379",
        "http://",
        "http://a,",
        "https://a:1",
        "http://a/b",
    ] {
        let made = Etcd::new(bad, None);
        assert!(matches!(made, Err(EtcdError::Endpoint(_))), "{bad}");
    }
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
fn a_watch_over_a_compaction_starts_anew_with_all_there_is() {
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
fn a_lease_lives_while_it_is_kept_and_its_keys_go_with_it() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    let watch = Watch::start(&etcd, "/l/", None, || ());
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Reset(_))));
    let (told, lost) = std::sync::mpsc::channel();
    let lease = Lease::take(&etcd, Duration::from_secs(2), move || {
        told.send(()).unwrap();
    });
    let lease = lease.unwrap();
    etcd.put("/l/kept", b"", Some(&lease)).unwrap();
    assert_eq!(put(watch.wait(PATIENCE)).0, "/l/kept");
    // Longer than it lasts without its keeper.
    assert_eq!(watch.wait(Duration::from_secs(5)), None);
    assert!(!lease.is_lost());

    // Ended behind its back.
    let request = json!({ "ID": lease.id().to_string() });
    let _: message::Headed = etcd.call("lease/revoke", &request).unwrap();
    lost.recv_timeout(PATIENCE).unwrap();
    assert!(lease.is_lost());
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Deleted { .. })));

    let lease = Lease::take(&etcd, Duration::from_secs(60), || ()).unwrap();
    etcd.put("/l/revoked", b"", Some(&lease)).unwrap();
    assert_eq!(put(watch.wait(PATIENCE)).0, "/l/revoked");
    let held = etcd.read("/l/revoked").unwrap().unwrap();
    let swapped = etcd.swap_value(&held.key, held.mod_revision, b"still the lease's");
    assert!(matches!(swapped.unwrap(), Swap::Done(_)));
    assert_eq!(put(watch.wait(PATIENCE)).0, "/l/revoked");
    lease.revoke().unwrap();
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Deleted { .. })));

    // Dropped: nobody keeps it, so it runs out.
    let lease = Lease::take(&etcd, Duration::from_secs(1), || ()).unwrap();
    etcd.put("/l/dropped", b"", Some(&lease)).unwrap();
    drop(lease);
    assert_eq!(put(watch.wait(PATIENCE)).0, "/l/dropped");
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Deleted { .. })));
}

#[test]
fn a_user_and_a_password_are_shown_and_shown_again() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    let call = |method: &str, request: Value| {
        let _: Value = etcd.call(method, &request).unwrap();
    };
    call(
        "auth/user/add",
        json!({ "name": "root", "password": "well" }),
    );
    call("auth/role/add", json!({ "name": "root" }));
    call("auth/user/grant", json!({ "user": "root", "role": "root" }));
    call("auth/enable", json!({}));
    assert!(matches!(etcd.read("/a"), Err(EtcdError::Refused { .. })));
    let with = |password: &str| {
        let credentials = Credentials {
            name: "root".to_owned(),
            password: password.to_owned(),
        };
        Etcd::new(&store.url, Some(credentials)).unwrap()
    };
    assert!(matches!(
        with("dry").read("/a"),
        Err(EtcdError::Refused { .. })
    ));
    let member = with("well");
    member.put("/a", b"b", None).unwrap();
    // As after a restart of the server, which forgets its tokens.
    *member.shared.token.lock().unwrap() = Some("forgotten".to_owned());
    assert_eq!(member.read("/a").unwrap().unwrap().value, b"b");
    let shown = format!("{member:?}");
    assert!(!shown.contains("well"), "{shown}");
}

#[test]
fn hostile_answers_are_errors() {
    for bad in [
        &b""[..],
        b"{}",
        b"[]",
        b"{\"header\":{\"revision\":\"x\"}}",
        b"{\"header\":{\"revision\":\"99999999999999999999\"}}",
        b"\xff\xfe",
    ] {
        assert!(message::parse::<message::Headed>(bad).is_err(), "{bad:?}");
    }
    let pair = |key: &str, value: &str| message::Pair {
        key: key.to_owned(),
        value: value.to_owned(),
        mod_revision: 1,
    };
    assert!(entry(pair("!", "")).is_err());
    assert!(entry(pair("", "=")).is_err());
    assert!(entry(pair("/w==", "")).is_err(), "not UTF-8");
}

//! A name and a password at etcd, and the tokens that it gives for them.

use super::*;

fn root(password: &str) -> Credentials {
    Credentials {
        name: "root".to_owned(),
        password: password.to_owned(),
    }
}

/// A client with a token of its own.
fn member_of(store: &Store, password: &str) -> Etcd {
    let etcd = Etcd::new(&store.url, Some(root(password))).unwrap();
    etcd.patient(PATIENCE)
}

#[test]
fn a_user_and_a_password_are_shown_and_shown_again() {
    let Some(store) = Store::start() else { return };
    let etcd = store.client();
    etcd.enable_credentials(&root("well")).unwrap();
    assert!(matches!(etcd.read("/a"), Err(EtcdError::Refused { .. })));
    assert!(matches!(
        member_of(&store, "dry").read("/a"),
        Err(EtcdError::Refused { .. })
    ));
    let member = member_of(&store, "well");
    member.put("/a", b"b", None).unwrap();
    // As after a restart of the server, which forgets its tokens.
    *member.shared.token.lock().unwrap() = Some("forgotten".to_owned());
    assert_eq!(member.read("/a").unwrap().unwrap().value, b"b");
    let shown = format!("{member:?}");
    assert!(!shown.contains("well"), "{shown}");
}

#[test]
fn a_watch_goes_on_when_etcd_has_forgotten_its_token() {
    let Some(mut store) = Store::start() else {
        return;
    };
    store.client().enable_credentials(&root("well")).unwrap();
    let (member, writer) = (member_of(&store, "well"), member_of(&store, "well"));
    let first = writer.put("/w/0", b"", None).unwrap();
    *member.shared.token.lock().unwrap() = Some("forgotten".to_owned());
    let watch = Watch::start(&member, "/w/", Some(first), || ());
    writer.put("/w/1", b"", None).unwrap();
    wait_until_told(&watch, "/w/1", true);
    // Tokens are in the server's memory.
    store.restart();
    writer.put("/w/2", b"", None).unwrap();
    wait_until_told(&watch, "/w/2", true);
}

#[test]
fn a_token_is_forgotten_unless_another_took_its_place() {
    let etcd = Etcd::new("http://127.0.0.1:1", Some(root("well"))).unwrap();
    for (shown, left) in [
        (Some("old"), Some("new")),
        (None, Some("new")),
        (Some("new"), None),
    ] {
        *etcd.held_token() = Some("new".to_owned());
        etcd.forget_token(shown);
        assert_eq!(etcd.held_token().as_deref(), left, "{shown:?}");
    }
}

#[test]
fn a_token_of_former_users_and_roles_is_replaced() {
    for (code, words) in [
        (2, "auth: revision in header is old"),
        (3, "etcdserver: revision of auth store is old"),
    ] {
        let refused = format!(r#"{{"error":"{words}","code":{code},"message":"{words}"}}"#);
        let answers = [
            (200, r#"{"token":"first"}"#),
            (400, refused.leak()),
            (200, r#"{"token":"second"}"#),
            (200, r#"{"header":{"cluster_id":"1","revision":"7"}}"#),
        ];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || answer_each(&listener, &answers));
        let etcd = Etcd::new(&url, Some(root("well"))).unwrap();
        assert_eq!(etcd.read("/a").unwrap(), None, "{words}");
        assert_eq!(etcd.held_token().as_deref(), Some("second"));
        server.join().unwrap();
    }
}

#[test]
fn errors_of_calls_and_of_streams_are_understood() {
    let said = Some((14, "etcdserver: no leader".to_owned()));
    for answer in [
        r#"{"error":"etcdserver: no leader","code":14}"#,
        r#"{"error":"x","code":14,"message":"etcdserver: no leader"}"#,
        r#"{"code":14,"message":"etcdserver: no leader","details":[]}"#,
        r#"{"error":{"grpc_code":14,"http_code":503,"message":"etcdserver: no leader"}}"#,
        r#"{"error":{"code":14,"message":"etcdserver: no leader","details":[]}}"#,
    ] {
        assert_eq!(message::refusal(answer.as_bytes()), said, "{answer}");
    }
    for answer in ["", "Bad Gateway", r#"{"error":7}"#, r#"{"code":"x"}"#] {
        assert_eq!(message::refusal(answer.as_bytes()), None, "{answer}");
    }
}

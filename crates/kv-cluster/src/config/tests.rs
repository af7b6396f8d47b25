use cenote_fabric::{ClusterKey, WireProtection};
use proptest::prelude::*;

use super::super::etcd::{EtcdServer, ServerError};
use super::*;
use crate::etcd::Etcd;

fn config() -> ClusterConfig {
    ClusterConfig {
        groups: 5,
        code: "3+2".parse().unwrap(),
        scheme: Scheme::Coded,
        region_bytes: 64 << 20,
        memory_bytes: 512 << 20,
        lanes: 2,
        link_traffic: WireProtection::Encrypted,
        key: KeyFingerprint::of(&ClusterKey::from_hex(&"5a".repeat(32)).unwrap(), "well"),
        service: Service::Online,
        nodes: (0..5).map(|index| format!("n{index:02}")).collect(),
    }
}

const REGISTRATION: &str = r#"{"version":1,"name":"n00","clients":["127.0.0.1:11211"],
    "peers":["127.0.0.1:7001","[::1]:7002"],"incarnation":7,"state":"draining"}"#;

#[test]
fn documents_say_what_they_were_given() {
    let bytes = config().to_bytes();
    let text = r#"{"version":1,"groups":5,"code":"3+2","scheme":"coded","region_bytes":67108864,"memory_bytes":536870912,"lanes":2,"link_traffic":"encrypted","key":"KEY","nodes":["n00","n01","n02","n03","n04"]}"#;
    let text = text.replace("KEY", &config().key.to_string());
    assert_eq!(String::from_utf8(bytes.clone()).unwrap(), text);
    assert_eq!(ClusterConfig::parse("k", &bytes).unwrap(), config());
    let blocked = ClusterConfig {
        service: Service::Blocked,
        ..config()
    };
    let bytes = blocked.to_bytes();
    assert_eq!(ClusterConfig::parse("k", &bytes).unwrap(), blocked);
    let read = Registration::parse("k", REGISTRATION.as_bytes()).unwrap();
    assert_eq!((read.incarnation, read.state), (7, NodeState::Draining));
    assert_eq!(Registration::parse("k", &read.to_bytes()).unwrap(), read);
}

#[test]
fn a_configuration_that_cannot_be_is_refused_with_its_reason() {
    let good = String::from_utf8(config().to_bytes()).unwrap();
    for (from, to, reason) in [
        (
            "\"version\":1",
            "\"version\":2",
            "version 2 of the document",
        ),
        ("\"groups\":5", "\"groups\":0", "0 groups"),
        ("\"groups\":5", "\"groups\":-1", "invalid value"),
        ("3+2", "3+3", "code 3+3 needs 6 nodes, there are 5"),
        ("3+2", "0+5", "code 0+5"),
        ("coded", "replicated", "replicated groups are 1+M, not 3+2"),
        ("coded", "folded", "unknown variant"),
        ("67108864", "67108865", "a region of 67108865 bytes"),
        ("67108864", "4096", "a region of 4096 bytes"),
        ("536870912", "4096", "4096 bytes of memory"),
        ("encrypted", "sealed", "not a protection level"),
        ("\"key\":\"", "\"key\":\"0", "no fingerprint"),
        ("\"lanes\":2", "\"lanes\":0", "0 lanes"),
        ("\"lanes\":2", "\"lanes\":65", "65 lanes"),
        ("n04", "n03", "node n03 is named twice"),
        ("n04", "../4", "is no name"),
        ("n04", "", "is no name"),
        (
            "\"lanes\":2",
            "\"lanes\":2,\"colour\":\"blue\"",
            "unknown field",
        ),
        ("\"lanes\":2,", "", "missing field"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        let error = ClusterConfig::parse("/k", bad.as_bytes()).unwrap_err();
        assert!(error.to_string().contains(reason), "{error} for {bad}");
    }
}

#[test]
fn a_registration_that_makes_no_sense_is_refused() {
    for (from, to) in [
        ("\"n00\"", "\"n\\u001b[2J\""),
        ("127.0.0.1:7001", "localhost:7001"),
        ("127.0.0.1:7001", "127.0.0.1:70010"),
        ("[\"127.0.0.1:7001\",\"[::1]:7002\"]", "[]"),
        ("\"incarnation\":7", "\"incarnation\":-7"),
        ("draining", "away"),
        ("\"version\":1", "\"version\":0"),
    ] {
        let bad = REGISTRATION.replacen(from, to, 1);
        assert_ne!(bad, REGISTRATION);
        assert!(Registration::parse("/k", bad.as_bytes()).is_err(), "{bad}");
    }
    let long = format!("{}{}", REGISTRATION, " ".repeat(64 << 10));
    assert!(Registration::parse("/k", long.as_bytes()).is_err());
}

#[test]
fn keys_of_registrations_read_back_and_others_do_not() {
    let keys = DocumentKeys::of("c").unwrap();
    let key = keys.node(NodeId(7));
    assert_eq!(key, "/cenote/kv/c/node/00007");
    assert_eq!(keys.node_of(&key), Some(NodeId(7)));
    for bad in [
        "",
        "/cenote/kv/c/node/7",
        "/cenote/kv/c/node/+0007",
        "/cenote/kv/c/node/00256",
    ] {
        assert_eq!(keys.node_of(bad), None, "{bad}");
    }
    assert!(DocumentKeys::of("a/b").is_err());
}

#[test]
fn a_cluster_is_founded_once_and_numbers_are_given_once() {
    let folder = tempfile::tempdir().unwrap();
    let server = match EtcdServer::start(folder.path(), |_| ()) {
        Err(error @ ServerError::Missing) => return eprintln!("skipped: {error}"),
        other => other.unwrap(),
    };
    let etcd = Etcd::new(server.url(), None).unwrap();
    // How slow its disk is, is no matter of this test.
    let etcd = etcd.patient(std::time::Duration::from_secs(60));
    let keys = DocumentKeys::of("c").unwrap();
    let none = keys.read_config(&etcd).unwrap_err();
    assert_eq!(none.to_string(), "there is no cluster c in etcd");
    keys.found(&etcd, &config()).unwrap();
    keys.found(&etcd, &config()).unwrap();
    let other = ClusterConfig {
        groups: 10,
        ..config()
    };
    assert!(matches!(
        keys.found(&etcd, &other),
        Err(DocumentError::Another(_))
    ));
    assert_eq!(keys.read_config(&etcd).unwrap(), config());

    // Many at once: every name has a number of its own, and keeps it.
    let names: Vec<String> = (0..12).map(|index| format!("n{index:02}")).collect();
    let claim_all = || {
        std::thread::scope(|scope| {
            let claims: Vec<_> = names
                .iter()
                .map(|name| scope.spawn(|| keys.claim_number(&etcd, name).unwrap()))
                .collect();
            claims
                .into_iter()
                .map(|claim| claim.join().unwrap())
                .collect::<Vec<_>>()
        })
    };
    let given = claim_all();
    let mut sorted = given.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..12).map(NodeId).collect::<Vec<_>>());
    assert_eq!(claim_all(), given);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(ClusterConfig::parse("/k", &bytes).is_err());
        prop_assert!(Registration::parse("/k", &bytes).is_err());
    }

    #[test]
    fn a_changed_byte_is_refused_or_gives_a_document_that_writes_back(
        place in 0_usize..200, value in any::<u8>(),
    ) {
        let mut bytes = config().to_bytes();
        let place = place % bytes.len();
        bytes[place] = value;
        if let Ok(read) = ClusterConfig::parse("/k", &bytes) {
            prop_assert_eq!(ClusterConfig::parse("/k", &read.to_bytes()).unwrap(), read);
        }
    }
}

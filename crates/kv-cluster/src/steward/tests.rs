//! How often a steward asks a store that does not answer.

use std::cell::Cell;

use super::*;
use crate::config::{KeyFingerprint, VERSION};
use crate::store::EtcdError;
use cenote_fabric::WireProtection;
use cenote_kv::group::member::Service;

const MILLISECOND: u64 = 1_000_000;

/// A store that is away, but for its turns, and counts who asks.
#[derive(Default)]
struct Away {
    asked: Cell<u32>,
}

impl Away {
    fn refuse<T>(&self) -> Result<T, EtcdError> {
        self.asked.set(self.asked.get() + 1);
        Err(EtcdError::Unreachable {
            endpoints: "none".to_owned(),
            last: "silence".to_owned(),
            is_silent: true,
        })
    }
}

impl Store for Away {
    fn read(&self, _: &str) -> Result<Option<Entry>, EtcdError> {
        self.refuse()
    }

    fn swap(&self, _: &str, _: i64, _: &[u8], _: Option<LeaseId>) -> Result<Swap, EtcdError> {
        self.refuse()
    }

    fn swap_with(&self, _: &str, _: i64, _: &[u8], _: &[(String, i64)]) -> Result<Swap, EtcdError> {
        self.refuse()
    }

    fn list(&self, _: &str) -> Result<Listing, EtcdError> {
        self.refuse()
    }

    fn grant(&self, _: Duration) -> Result<LeaseId, EtcdError> {
        self.refuse()
    }

    fn renew(&self, _: LeaseId) -> Result<bool, EtcdError> {
        self.refuse()
    }

    fn revoke(&self, _: LeaseId) -> Result<(), EtcdError> {
        self.refuse()
    }
}

fn steward() -> Steward {
    let config = ClusterConfig {
        groups: 1,
        code: "1+1".parse().expect("a code"),
        scheme: Scheme::Coded,
        region_bytes: 4 << 20,
        memory_bytes: 64 << 20,
        lanes: 1,
        link_traffic: WireProtection::default(),
        key: KeyFingerprint::UNKNOWN,
        service: Service::Online,
        nodes: vec!["n0".to_owned(), "n1".to_owned()],
    };
    let me = Process {
        node: 0,
        incarnation: 1,
    };
    let keys = DocumentKeys::of("test").expect("a name");
    let plan = vec![vec![NodeId(0), NodeId(1)]];
    Steward::new(me, keys, Arc::new(config), &[], plan, 7)
}

fn register(steward: &mut Steward, node: u32) {
    let registration = Registration {
        version: VERSION,
        name: format!("n{node}"),
        clients: Vec::new(),
        peers: vec![([127, 0, 0, 1], 1).into()],
        incarnation: 1,
        state: NodeState::Up,
    };
    let keys = DocumentKeys::of("test").expect("a name");
    steward.take(Change::Put(Entry {
        key: keys.node(NodeId(node)),
        value: registration.to_bytes(),
        mod_revision: 1,
        lease: None,
    }));
}

#[test]
fn a_store_that_does_not_answer_is_asked_ever_more_seldom() {
    let (mut steward, away) = (steward(), Away::default());
    register(&mut steward, 0);
    register(&mut steward, 1);
    let ask: Ask<'_> = &|_, _| None;
    // Both of the plan are there: the first one proposes the group's first view.
    for turn in 0..20_000 {
        steward.turn(&away, ask, turn * MILLISECOND);
    }
    let asked = away.asked.get();
    // 20 s: once a second or so, and a few times before; 400 times without growing pauses.
    assert!((20..60).contains(&asked), "{asked}");
}

//! A host that is about to be replaced, step by step on the simulated network.

use std::time::Duration;

use cenote_fabric::sim::{self, Net};
use cenote_fabric::{Address, ClientId, ClusterKey, Connector, Hello, Incoming, Session};
use cenote_host::Stepped;
use cenote_pool::control::{Reply, Request};
use cenote_test_kit::host_config;

const SLAB_BYTES: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

struct Client(Box<dyn Session>);

impl Client {
    fn connect(net: &Net, address: &Address, id: u128) -> Self {
        let name = format!("client {id}");
        let hello = Hello {
            client: ClientId(id),
            name: name.clone(),
        };
        Self(
            net.client(&name)
                .connect(address, &hello, PATIENCE)
                .unwrap(),
        )
    }

    fn send(&mut self, request: &Request) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.0.send(&bytes).unwrap();
    }

    fn ask_for_a_slab(&mut self, volume: u128) {
        self.send(&Request::Map {
            request: 1,
            volume,
            extent: 0,
            member: 0,
        });
    }

    /// What has come so far.
    fn replies(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        while let Some(incoming) = self.0.receive().unwrap() {
            match incoming {
                Incoming::Message(bytes) => replies.push(Reply::decode(&bytes).unwrap()),
                other => panic!("{other:?}"),
            }
        }
        replies
    }
}

/// Lets everything arrive that is under way, the host handle it, and its answers arrive.
fn settle(net: &Net, host: &mut Stepped) {
    while net.step() {}
    host.turn().unwrap();
    while net.step() {}
}

/// It would take the end of its connection for the loss of the slab.
#[test]
fn who_gets_a_slab_during_a_farewell_is_told_and_waited_for() {
    let net = Net::new(7, sim::Config::default());
    let address = Address::Shm("/sim/host".into());
    let listener = net.host(address.clone(), "host");
    let outward: Box<dyn Connector> = Box::new(net.client_on(listener.node()));
    let key = ClusterKey::generate().unwrap();
    let config = host_config("host", address.clone(), 4, SLAB_BYTES, &key);
    let outward = (outward, ClientId(99));
    let mut host = Stepped::start(config, Box::new(listener), outward, sim::now, None).unwrap();
    let mut owner = Client::connect(&net, &address, 1);
    let mut late = Client::connect(&net, &address, 2);
    owner.ask_for_a_slab(7);
    settle(&net, &mut host);
    // The only slab that is made ahead.
    assert!(host.work());
    settle(&net, &mut host);
    assert!(matches!(owner.replies()[..], [Reply::Mapped { .. }]));
    late.ask_for_a_slab(8);
    settle(&net, &mut host);
    assert_eq!(late.replies(), [], "its slab has to be made");

    assert!(!host.bids_farewell());
    settle(&net, &mut host);
    let told = Reply::HandsOver {
        back_within_ms: 5_000,
    };
    assert_eq!(owner.replies(), std::slice::from_ref(&told));
    assert_eq!(late.replies(), [], "it has nothing yet");
    assert!(host.work());
    settle(&net, &mut host);
    let replies = late.replies();
    assert!(
        matches!(&replies[..], [Reply::Mapped { .. }, end] if *end == told),
        "{replies:?}"
    );

    owner.send(&Request::Awaits);
    settle(&net, &mut host);
    assert!(!host.bids_farewell(), "one has not answered");
    late.send(&Request::Awaits);
    settle(&net, &mut host);
    assert!(host.bids_farewell());
}

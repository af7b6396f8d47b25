//! Nodes of `cenote kv` that leave as planned while clients write and read all the time: no request
//! fails, nothing is lost and nothing stale. Without etcd it is left out.

mod support;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_kv_cluster::etcd::{EtcdServer, ServerError};
use rustix::net::sockopt::set_socket_recv_buffer_size;
use serde_json::Value;
use support::memcached::{connect, with_value};
use support::well::{FIVE, PATIENCE, Well, places, until};
use support::writer::{Load, WRITERS};
use support::{cenote, runs, signal};

const NAMES: [&str; 5] = ["n00", "n01", "n02", "n03", "n04"];

/// Tells a node to end, as a supervisor does, and waits until it has.
fn end(load: &Load, well: &Well, node: usize) {
    let told = &load.told.as_ref().expect("nodes are told")[node];
    let pid = well.pid(&format!("nodes/{}", NAMES[node]));
    told.fetch_add(1, Ordering::SeqCst);
    signal(pid, "TERM");
    let deadline = Instant::now() + PATIENCE;
    while runs(pid) {
        assert!(Instant::now() < deadline, "{} does not end", NAMES[node]);
        std::thread::yield_now();
    }
    told.fetch_add(1, Ordering::SeqCst);
    let log = well.log(NAMES[node]);
    assert!(!log.contains("nobody else has"), "{log}");
}

#[test]
fn five_nodes_are_restarted_one_by_one_and_no_request_fails() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        for (node, name) in NAMES.into_iter().enumerate() {
            end(&load, &well, node);
            load.until_more(100);
            // Where it was: clients keep their list of addresses.
            let address = addresses[node].to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
            well.until_whole();
            load.until_more(100);
        }
    });
    // Without being told it comes back where it was told to be before.
    end(&load, &well, 0);
    well.run(&["join", "--name", "n00"]).expect(0);
    well.until_whole();
    assert_eq!(well.clients(), addresses);
    let unknown = written.values().filter(|values| values.len() > 1).count();
    assert!(unknown <= WRITERS * NAMES.len(), "{unknown}");
    load.check(&written, &[0, 1, 2, 3, 4]);
}

#[test]
fn what_a_drained_node_has_goes_to_a_spare_and_nothing_is_missing_meanwhile() {
    let Some(well) = Well::up(&[&FIVE[..], &["--lanes", "2"]].concat()) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        // With nobody there to take them it gives its places up, and says so.
        let drained = well.run(&["drain", "n01", "--wait"]).expect(3);
        assert!(
            drained.stdout.contains("no node could take"),
            "{drained:#?}"
        );
        well.until("it has nothing", |status| places(status, "n01") == 0);
        well.run(&["join", "--name", "spare"]).expect(0);
        well.until_whole();
        load.until_more(100);

        let address = addresses[1].to_string();
        end(&load, &well, 1);
        well.run(&["join", "--name", "n01", "--clients", &address])
            .expect(0);
        well.until("it is there", |status| status["nodes_up"] == 5);
        let drained = well.run(&["drain", "n02", "--wait"]).expect(0);
        assert!(drained.stdout.contains("others took 5"), "{drained:#?}");
        well.until("it has nothing", |status| {
            places(status, "n02") == 0 && status["whole"] == true
        });
        load.until_more(100);
        end(&load, &well, 2);
    });
    load.check(&written, &[0, 1, 3, 4]);
}

/// A cluster of one node, in the foreground, that is given so long to end.
struct Alone {
    node: Child,
    // Ended in this order, behind the node.
    well: Well,
    _etcd: EtcdServer,
    address: SocketAddr,
}

impl Alone {
    /// `None` where there is no etcd.
    fn start(drain_timeout: &str) -> Option<Self> {
        let well = Well::empty();
        let etcd = match EtcdServer::start(&well.path("etcd"), |_| ()) {
            Err(error @ ServerError::Missing) => {
                eprintln!("skipped: {error}");
                return None;
            }
            etcd => etcd.expect("it starts"),
        };
        let url = etcd.url().to_owned();
        let shape = ["--nodes", "2", "--groups", "1", "--code", "1+1"];
        let up = ["up", "--plan-only", "--memory", "64M", "--etcd", &url];
        well.run(&[&up[..], &shape].concat()).expect(0);
        well.run(&["join", "--name", "n01", "--etcd", &url])
            .expect(0);
        let log = File::create(well.path("log")).expect("a file");
        let node = cenote()
            .args(["kv", "node", "--name", "n00", "--etcd", &url])
            .args(["--drain-timeout", drain_timeout, "--key"])
            .arg(well.path("cluster.key"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        let address = |status: &Value| {
            let nodes = status["nodes"].as_array()?;
            let node = nodes.iter().find(|node| node["name"] == "n00")?;
            let address = node["registration"]["clients"][0].as_str()?;
            address.parse().ok()
        };
        let ask = || {
            let arguments = ["status", "--json", "--timeout", "500ms", "--etcd", &url];
            well.run(&arguments)
        };
        let status = until("it serves", ask, |status| {
            status["whole"] == true && address(status).is_some()
        });
        let address = address(&status).expect("was just seen");
        Some(Self {
            node,
            well,
            _etcd: etcd,
            address,
        })
    }

    /// A client that asks for more than the system keeps, and has read the beginning of it.
    fn asked_much(&self) -> TcpStream {
        let mut client = connect(self.address).expect("it serves");
        let set = with_value("set big", &vec![b'v'; 900_000], "");
        assert_eq!(client.ask(&set).expect("it serves"), "STORED");
        let mut client = TcpStream::connect(self.address).expect("it serves");
        // Of a longer one the system tells only larger pieces as taken.
        set_socket_recv_buffer_size(&client, 128 << 10).expect("a socket");
        let get = "get big\r\n".repeat(200);
        client.write_all(get.as_bytes()).expect("it reads");
        client.read_exact(&mut [0; 1000]).expect("an answer");
        client
    }

    /// Tells it to end, and does something until it has, as it should; its log.
    fn end(mut self, mut meanwhile: impl FnMut()) -> String {
        signal(self.node.id(), "TERM");
        let deadline = Instant::now() + PATIENCE;
        let ended = loop {
            if let Some(ended) = self.node.try_wait().expect("it is ours") {
                break ended;
            }
            assert!(Instant::now() < deadline, "it does not end");
            meanwhile();
        };
        assert!(ended.success(), "{ended}");
        fs::read_to_string(self.well.path("log")).expect("its log")
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // It has ended where all went well.
        self.node.kill().ok();
        self.node.wait().expect("it is ours");
    }
}

const GIVEN_UP: &str = "end with places that nobody else has yet";

#[test]
fn a_node_that_is_told_to_end_does_not_wait_for_who_reads_nothing() {
    let Some(alone) = Alone::start("1d") else {
        return;
    };
    let client = alone.asked_much();
    let log = alone.end(|| std::thread::sleep(Duration::from_millis(20)));
    assert!(!log.contains(GIVEN_UP), "{log}");
    drop(client);
}

#[test]
fn a_node_that_is_told_to_end_waits_for_who_reads_slowly_as_long_as_it_may() {
    let Some(alone) = Alone::start("12s") else {
        return;
    };
    let mut client = alone.asked_much();
    let mut piece = vec![0; 20_000];
    let mut read = Vec::new();
    let log = alone.end(|| {
        // So little that the system does not say that it takes more, for longer than who reads
        // nothing has.
        std::thread::sleep(Duration::from_millis(200));
        read.push(client.read_exact(&mut piece));
    });
    // When the node ends what it still had to say is gone.
    let served = read.iter().take_while(|read| read.is_ok()).count();
    assert!(
        read.len() - served <= 2,
        "cut off after {served} of {}",
        read.len()
    );
    assert!(log.contains(GIVEN_UP), "{log}");
}

//! A client's own rules, over paths whose completions the test gives.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::{Address, ClientId, Hello, Listen, Region, RegionOptions, Rights, Time};
use cenote_fabric::{Connector, Incoming, RemoteWindow, sim};
use cenote_pool::control::Window;

use super::*;
use crate::owner::{Access, Copy, Entry};
use crate::path::{Failure, Loss};

const SLAB: u64 = 4096;
const GEOMETRY: Geometry = Geometry {
    slab_bytes: SLAB,
    slabs_per_region: 1,
};

/// What was submitted on one host's path and has not ended: offset, operation, token.
type Submitted = Arc<Mutex<VecDeque<(u64, Operation, Token)>>>;

struct Scripted {
    submitted: Submitted,
    ended: Arc<Mutex<VecDeque<Completion>>>,
}

impl Path for Scripted {
    fn submit(
        &mut self,
        _: &RemoteWindow,
        offset: u64,
        operation: Operation,
        token: Token,
    ) -> Result<(), Full> {
        let mut submitted = self.submitted.lock().unwrap();
        submitted.push_back((offset, operation, token));
        Ok(())
    }

    fn flush(&mut self) {}

    fn poll(&mut self, _: Time, completions: &mut VecDeque<Completion>) {
        completions.append(&mut self.ended.lock().unwrap());
    }

    fn outstanding(&self) -> usize {
        self.submitted.lock().unwrap().len()
    }

    fn is_lost(&self) -> bool {
        false
    }

    fn fd(&self) -> Option<RawFd> {
        None
    }
}

struct Bench {
    client: Client,
    submitted: Vec<Submitted>,
    ended: Vec<Arc<Mutex<VecDeque<Completion>>>>,
    now: Time,
    windows: Vec<Window>,
}

/// Windows can only be had of a fabric.
fn attached(count: u64) -> Vec<(Window, RemoteWindow)> {
    let net = sim::Net::new(1, sim::Config::default());
    let address: Address = "tcp:10.0.0.1:7000".parse().unwrap();
    let mut listener = net.host(address.clone(), "h");
    let hello = Hello {
        client: ClientId(1),
        name: "c".to_owned(),
    };
    let connector = net.client("c");
    let mut session = connector
        .connect(&address, &hello, Duration::from_secs(1))
        .unwrap();
    let mut windows = Vec::new();
    for _ in 0..count {
        let options = RegionOptions::default();
        let region = Arc::new(Region::create("slab", SLAB, options).unwrap());
        let descriptor = listener.register(region, Rights::ALL).unwrap();
        session.attach(descriptor).unwrap();
        let window = loop {
            while net.step() {}
            listener
                .poll(Some(Duration::ZERO), &mut Vec::new())
                .unwrap();
            if let Some(Incoming::Attached(_, window)) = session.receive().unwrap() {
                break window.unwrap();
            }
        };
        let name = Window {
            id: descriptor.id.0,
            generation: descriptor.generation.0,
            len_bytes: SLAB,
            rights: descriptor.rights.0,
        };
        windows.push((name, window));
    }
    windows
}

impl Bench {
    /// A client of one region, with a lease; host 0 and host 1 have a window each.
    fn new() -> Self {
        let mut bench = Self {
            client: Client::new(GEOMETRY, 2, Duration::from_secs(30)),
            submitted: vec![Submitted::default(), Submitted::default()],
            ended: vec![Arc::default(), Arc::default()],
            now: Time(1),
            windows: Vec::new(),
        };
        bench.client.handle_lease(bench.now, bench.now);
        for (host, (name, window)) in attached(2).into_iter().enumerate() {
            let path = Scripted {
                submitted: Arc::clone(&bench.submitted[host]),
                ended: Arc::clone(&bench.ended[host]),
            };
            bench.client.handle_path(host, Box::new(path));
            bench.client.handle_window(host, window);
            bench.windows.push(name);
        }
        bench
    }

    fn tell(&mut self, generation: u64, access: Access, hosts: &[usize]) {
        let copy = |&host: &usize| Copy::new(host, vec![self.windows[host]]);
        let entry = Entry {
            region: 0,
            generation,
            access,
            copies: hosts.iter().map(copy).collect(),
            losses: 0,
        };
        self.client.handle_entry(entry);
    }

    fn write(&mut self, address: u64, byte: u8, token: Token) {
        let bytes = Bytes::from(vec![byte; 8]);
        self.client
            .submit_write(self.now, address, bytes, token)
            .unwrap();
    }

    /// First bytes of what waits on a host's path.
    fn under_way(&self, host: usize) -> Vec<u8> {
        let submitted = self.submitted[host].lock().unwrap();
        let first = |(_, operation, _): &(u64, Operation, Token)| match operation {
            Operation::Write(bytes) => bytes[0],
            Operation::Read(_) => b'r',
        };
        submitted.iter().map(first).collect()
    }

    /// The oldest request on a host's path ends.
    fn end(&mut self, host: usize, result: Result<(), Failure>) -> Vec<Token> {
        let (_, operation, token) = self.submitted[host].lock().unwrap().pop_front().unwrap();
        self.ended[host].lock().unwrap().push_back(Completion {
            token,
            result,
            operation,
        });
        self.poll()
    }

    fn poll(&mut self) -> Vec<Token> {
        let mut ended = Vec::new();
        self.client.poll(self.now, &mut ended);
        ended.iter().map(|ended| ended.token).collect()
    }

    fn known(&mut self) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| self.client.take_known()).collect()
    }
}

#[test]
fn a_write_is_done_when_every_copy_has_it() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.write(0, 7, 1);
    assert!(bench.end(0, Ok(())).is_empty());
    assert_eq!(bench.end(1, Ok(())), [1]);
}

#[test]
fn a_region_that_moves_is_called_known_once_its_writes_have_ended_and_not_before() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    assert_eq!(bench.known(), [(0, 1)]);
    bench.write(0, 7, 1);
    bench.tell(2, Access::Frozen, &[0]);
    assert!(bench.known().is_empty());
    assert_eq!(bench.end(0, Ok(())), [1]);
    assert_eq!(bench.known(), [(0, 2)]);
}

#[test]
fn writes_wait_for_a_move_and_go_in_their_order_while_reads_go_on() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Frozen, &[0]);
    for (token, byte) in [(1, 11), (2, 12), (3, 13)] {
        bench.write(0, byte, token);
    }
    let buffer = BytesMut::zeroed(8);
    let (now, elsewhere) = (bench.now, 512);
    bench.client.submit_read(now, elsewhere, buffer, 4).unwrap();
    assert_eq!(bench.under_way(0), *b"r");
    assert_eq!(bench.end(0, Ok(())), [4]);
    bench.tell(2, Access::Open, &[1]);
    bench.poll();
    // They overlap: one after the other.
    for (token, byte) in [(1, 11), (2, 12), (3, 13)] {
        assert_eq!(bench.under_way(1), [byte]);
        assert_eq!(bench.end(1, Ok(())), [token]);
    }
}

#[test]
fn what_met_an_old_generation_waits_for_the_next_and_is_done_again() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    assert!(bench.end(0, Err(Failure::Stale)).is_empty());
    assert!(bench.under_way(0).is_empty(), "not again where it is stale");
    assert_eq!(bench.client.take_trouble(), Some(0));
    bench.tell(2, Access::Open, &[1]);
    bench.poll();
    assert_eq!(bench.end(1, Ok(())), [1]);
}

#[test]
fn a_write_that_a_lost_connection_left_open_is_done_again() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    let lost = Failure::Lost(Loss::Closed);
    assert!(bench.end(0, Err(lost)).is_empty());
    assert_eq!(bench.under_way(0), [7]);
    assert_eq!(bench.end(0, Ok(())), [1]);
}

#[test]
fn a_write_that_went_with_a_lost_copy_is_done_again_once_the_loss_is_told() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    let entry = Entry {
        region: 0,
        generation: 2,
        access: Access::Open,
        copies: vec![Copy::new(1, vec![bench.windows[1]])],
        losses: 1,
    };
    bench.client.handle_entry(entry);
    assert!(bench.end(0, Ok(())).is_empty());
    assert_eq!(bench.under_way(1), [7]);
    assert_eq!(bench.end(1, Ok(())), [1]);
}

#[test]
fn nothing_that_ends_after_the_lease_counts_also_if_there_is_another_by_then() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    bench.now = bench.now.after(crate::owner::LEASE);
    let now = bench.now;
    bench.client.handle_lease(now, now);
    assert!(bench.end(0, Ok(())).is_empty());
    assert_eq!(bench.under_way(0), [7], "it is done again");
    assert_eq!(bench.end(0, Ok(())), [1]);
}

#[test]
fn a_request_past_the_end_names_the_region_and_one_that_waits_too_long_may_be_tried_again() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Frozen, &[0]);
    let bytes = Bytes::from_static(&[0; 16]);
    let past = bench.client.submit_write(bench.now, SLAB - 8, bytes, 1);
    assert_eq!(past, Err(Error::OutOfRange { region: 1 }));
    bench.write(0, 7, 2);
    bench.now = bench.now.after(Duration::from_secs(30));
    let mut ended = Vec::new();
    bench.client.poll(bench.now, &mut ended);
    let error = ended[0].result.unwrap_err();
    assert_eq!(error, Error::Unavailable { region: 0 });
    assert!(error.is_retryable());
}

#[test]
fn entries_that_do_not_fit_the_cache_are_left_aside() {
    let mut bench = Bench::new();
    let entry = |region: u32, host: usize, len_bytes: u64| Entry {
        region,
        generation: 9,
        access: Access::Open,
        copies: vec![Copy::new(
            host,
            vec![Window {
                len_bytes,
                ..bench.windows[0]
            }],
        )],
        losses: 0,
    };
    let unfit = [
        entry(u32::MAX, 0, SLAB),
        entry(0, 2, SLAB),
        entry(0, 0, SLAB + 1),
    ];
    for entry in unfit {
        bench.client.handle_entry(entry);
        assert_eq!(bench.client.regions(), 0);
    }
}

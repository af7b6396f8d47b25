//! A client's own rules, over paths whose completions the test gives.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::{Address, ClientId, Hello, Listen, Region, RegionOptions, Rights, Time};
use cenote_fabric::{Connector, Incoming, RemoteWindow, sim};
use cenote_pool::control::Window;

use super::*;
use crate::owner::{Access, Copy, Entry};
use crate::path::Failure;
use crate::path::{Full, Operation};

mod ahead;
mod late;

const SLAB: u64 = 4096;
const GEOMETRY: Geometry = Geometry {
    slab_bytes: SLAB,
    slabs_per_region: 1,
};

/// What was submitted on one host's path and has not ended: offset, operation, token.
type Submitted = Arc<Mutex<VecDeque<(u64, Operation, Token)>>>;

struct Scripted {
    submitted: Submitted,
    /// Requests that it takes at once.
    room: Arc<AtomicUsize>,
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
        if submitted.len() >= self.room.load(Ordering::Relaxed) {
            return Err(Full(operation));
        }
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

thread_local! {
    /// What the client sees when it looks at the clock itself.
    static CLOCK: std::cell::Cell<Time> = const { std::cell::Cell::new(Time(0)) };
}

struct Bench {
    client: Client,
    submitted: Vec<Submitted>,
    rooms: Vec<Arc<AtomicUsize>>,
    ended: Vec<Arc<Mutex<VecDeque<Completion>>>>,
    now: Time,
    windows: Vec<Window>,
    /// What host 0 calls its window after it was renewed.
    renewed: Option<(Window, RemoteWindow)>,
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
        windows.push((descriptor.into(), window));
    }
    windows
}

impl Bench {
    /// A client of one region, with a lease; host 0 and host 1 have a window each.
    fn new() -> Self {
        let mut bench = Self {
            client: Client::new(GEOMETRY, 2, Duration::from_secs(30)).with_clock(|| CLOCK.get()),
            submitted: vec![Submitted::default(), Submitted::default()],
            rooms: (0..2).map(|_| Arc::new(AtomicUsize::new(16))).collect(),
            ended: vec![Arc::default(), Arc::default()],
            now: Time(1),
            windows: Vec::new(),
            renewed: None,
        };
        bench.client.handle_lease(bench.now, bench.now);
        let mut windows = attached(3);
        bench.renewed = windows.pop();
        for (host, (name, window)) in windows.into_iter().enumerate() {
            let path = Scripted {
                submitted: Arc::clone(&bench.submitted[host]),
                room: Arc::clone(&bench.rooms[host]),
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
            fell_back_ms: 0,
            next: Vec::new(),
        };
        self.client.handle_entry(entry);
    }

    /// Host 0 gives its window another name, as at a fence, and the client has attached it.
    fn renew(&mut self) {
        let (name, window) = self.renewed.take().expect("once");
        self.client.handle_window(0, window);
        self.windows[0] = name;
    }

    fn doubts(&mut self) -> Vec<(u32, u64)> {
        std::iter::from_fn(|| self.client.take_doubt()).collect()
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

    /// Polls once in a second.
    fn poll_for(&mut self, seconds: usize) -> Vec<Ended> {
        let mut ended = Vec::new();
        for _ in 0..seconds {
            self.now = self.now.after(Duration::from_secs(1));
            self.client.poll(self.now, &mut ended);
        }
        ended
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
    assert!(
        bench.under_way(0).is_empty(),
        "the copy that is read comes last"
    );
    assert!(bench.end(1, Ok(())).is_empty());
    assert_eq!(bench.end(0, Ok(())), [1]);
}

#[test]
fn a_write_that_one_copy_has_goes_on_to_the_other_also_when_its_region_stops_meanwhile() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.known();
    bench.write(0, 7, 1);
    bench.tell(2, Access::Frozen, &[0, 1]);
    assert!(bench.end(1, Ok(())).is_empty());
    assert!(bench.known().is_empty());
    assert_eq!(bench.end(0, Ok(())), [1]);
    assert_eq!(bench.known(), [(0, 2)]);
}

#[test]
fn a_write_that_one_copy_has_waits_for_room_on_the_way_to_the_other() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.write(0, 7, 1);
    bench.rooms[0].store(0, Ordering::Relaxed);
    assert!(bench.end(1, Ok(())).is_empty());
    assert!(bench.under_way(0).is_empty() && bench.under_way(1).is_empty());
    bench.rooms[0].store(1, Ordering::Relaxed);
    assert!(bench.poll().is_empty());
    assert_eq!(bench.under_way(0), [7]);
    assert!(bench.under_way(1).is_empty(), "not done again");
    assert_eq!(bench.end(0, Ok(())), [1]);
}

#[test]
fn a_write_in_one_copy_that_is_given_up_is_doubted() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.write(0, 7, 1);
    assert!(bench.end(1, Ok(())).is_empty());
    assert!(bench.end(0, Err(Failure::Stale)).is_empty());
    assert_eq!(bench.client.take_doubt(), None, "it is to be done again");
    // Nobody goes on with it meanwhile: it has not waited in vain.
    bench.now = bench.now.after(Duration::from_secs(600));
    assert!(bench.poll_for(1).is_empty());
    let ended = bench.poll_for(30);
    assert!(ended[0].result.is_err());
    assert_eq!(bench.client.take_doubt(), Some((0, 1)));
}

#[test]
fn what_counts_is_the_lease_when_a_write_is_seen_to_end() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    bench.write(0, 7, 1);
    // The thread is stopped between the caller's look at the clock and the completion.
    CLOCK.set(bench.now.after(crate::owner::LEASE));
    assert!(bench.end(0, Ok(())).is_empty());
    CLOCK.set(Time(0));
    bench.poll();
    assert_eq!(bench.under_way(0), [7], "it is done again");
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

/// A region goes to another host and comes back, to another window, while a read is under way.
#[test]
fn a_read_of_a_window_that_a_region_has_left_is_done_again_though_its_host_has_the_region() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0]);
    let now = bench.now;
    let buffer = BytesMut::zeroed(8);
    bench.client.submit_read(now, 0, buffer, 1).unwrap();
    assert_eq!(bench.under_way(0), *b"r");
    bench.tell(2, Access::Open, &[1]);
    bench.renew();
    bench.tell(3, Access::Open, &[0]);
    assert!(bench.end(0, Ok(())).is_empty(), "what the old window had");
    assert_eq!(bench.under_way(0), *b"r", "it is done again");
    assert_eq!(bench.end(0, Ok(())), [1]);
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
        fell_back_ms: 0,
        next: Vec::new(),
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
        fell_back_ms: 0,
        next: Vec::new(),
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

#[test]
fn a_write_that_waits_with_one_copy_written_is_doubted_before_its_stop_is_known() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.known();
    bench.write(0, 7, 1);
    // The way to the copy that is read is gone before the other one has it.
    bench.client.handle_session_ended(0);
    bench.poll();
    assert!(bench.end(1, Ok(())).is_empty());
    assert_eq!(bench.client.take_doubt(), None, "it is to be done again");
    bench.tell(2, Access::Frozen, &[0, 1]);
    assert_eq!(bench.client.take_doubt(), Some((0, 1)));
    assert_eq!(bench.known(), [(0, 2)]);
    // With one copy there is nothing to differ from.
    bench.tell(3, Access::Frozen, &[1]);
    assert_eq!(bench.client.take_doubt(), None);
}

#[test]
fn a_doubt_about_what_was_given_up_is_said_again_to_an_owner_that_was_found_again() {
    let mut bench = Bench::new();
    bench.tell(1, Access::Open, &[0, 1]);
    bench.write(0, 7, 1);
    assert!(bench.end(1, Ok(())).is_empty());
    assert!(bench.end(0, Err(Failure::Stale)).is_empty());
    bench.poll_for(30);
    assert_eq!(bench.client.take_doubt(), Some((0, 1)));
    bench.tell(1, Access::Open, &[0, 1]);
    assert_eq!(bench.client.take_doubt(), Some((0, 1)));
}

#[test]
fn a_window_that_could_not_be_had_is_wanted_again_after_a_pause() {
    let mut bench = Bench::new();
    let (name, window) = bench.renewed.take().unwrap();
    let old = std::mem::replace(&mut bench.windows[0], name);
    bench.tell(1, Access::Open, &[0]);
    assert_eq!(bench.client.take_wanted(), Some((0, name)));
    read(&mut bench, 0, 1);
    bench.client.handle_no_window(bench.now, 0, name.into());
    bench.poll();
    assert_eq!(bench.client.take_wanted(), None, "not at once");
    bench.poll_for(1);
    assert_eq!(bench.client.take_wanted(), Some((0, name)));
    bench.client.handle_window(0, window);
    bench.poll();
    assert_eq!(bench.under_way(0), *b"r");
    // One that nobody asked for is not wanted at all.
    bench.client.handle_no_window(bench.now, 0, old.into());
    bench.client.handle_no_window(bench.now, 9, old.into());
    bench.poll_for(1);
    assert_eq!(bench.client.take_wanted(), None);
}

/// A read of 8 bytes.
fn read(bench: &mut Bench, address: u64, token: Token) {
    let (now, buffer) = (bench.now, BytesMut::zeroed(8));
    bench
        .client
        .submit_read(now, address, buffer, token)
        .unwrap();
}

#[test]
fn what_waits_for_a_region_that_moves_costs_nothing_until_the_region_goes_on() {
    const COUNT: u64 = 4000;
    let mut bench = Bench::new();
    bench.tell(1, Access::Frozen, &[0]);
    let begun = queue::looks();
    // Writes to all of the region and reads behind half of them: each place has eight.
    for token in 0..COUNT {
        let address = token / 2 * 8 % SLAB;
        match token % 2 {
            0 => bench.write(address, 1, token),
            _ => read(&mut bench, address, token),
        }
    }
    let submitted = queue::looks() - begun;
    assert!(submitted <= 8 * COUNT, "{submitted} looks");
    bench.poll();
    let idle = queue::looks();
    for _ in 0..1000 {
        assert!(bench.poll().is_empty());
    }
    assert_eq!(queue::looks(), idle, "nothing has changed");
    // A read that nothing is in front of costs the same, whatever waits beside it.
    bench.tell(2, Access::Open, &[1]);
    let begun = queue::looks();
    let (mut ended, mut polls) = (Vec::new(), 0);
    bench.poll();
    while ended.len() < usize::try_from(COUNT).unwrap() {
        ended.extend(bench.end(1, Ok(())));
        polls += 1;
    }
    assert_eq!(polls, COUNT);
    let worked = queue::looks() - begun;
    assert!(worked <= 12 * COUNT, "{worked} looks");
    // Each place's requests ended in their order.
    for place in 0..SLAB / 8 {
        let of_place = |token: &&u64| **token / 2 * 8 % SLAB == place * 8;
        let tokens: Vec<u64> = ended.iter().filter(of_place).copied().collect();
        assert!(tokens.is_sorted(), "{tokens:?}");
    }
}

#[test]
fn a_read_beside_what_waits_costs_the_same_whatever_that_is() {
    let looks_with = |waiting: u64| {
        let mut bench = Bench::new();
        bench.tell(1, Access::Frozen, &[0]);
        for token in 0..waiting {
            bench.write(token * 8 % (SLAB / 2), 1, token);
        }
        bench.poll();
        let begun = queue::looks();
        read(&mut bench, SLAB - 8, waiting);
        assert_eq!(bench.end(0, Ok(())), [waiting]);
        queue::looks() - begun
    };
    assert_eq!(looks_with(10), looks_with(4000));
}

#[test]
fn parts_are_bounded_but_one_long_request_is_always_taken() {
    let mut bench = Bench::new();
    bench.client = std::mem::replace(&mut bench.client, Bench::new().client).with_pieces(1);
    bench.tell(1, Access::Frozen, &[0]);
    let long = || Bytes::from(vec![0; usize::try_from(SLAB).unwrap()]);
    let fit = PARTS_MAX as u64 / SLAB;
    for token in 0..fit {
        let taken = bench.client.submit_write(bench.now, 0, long(), token);
        assert_eq!(taken, Ok(()));
    }
    let refused = bench.client.submit_write(bench.now, 0, long(), fit);
    assert_eq!(refused, Err(Error::Full));
    assert_eq!(bench.client.outstanding() as u64, fit);
}

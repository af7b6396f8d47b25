//! Requests of up to 64 MiB, and the memory that clients may have in flight.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_block::disk::{Disk, Extent, Queue};
use cenote_block::ram::RamDisk;
use cenote_volume::{Done, IoError, Op, Request};

use crate::client::*;

const MIB: usize = 1 << 20;
const LONGEST: usize = 64 * MIB;

/// Bytes that say where they are and in which round they were written.
fn pattern(offset: u64, len: usize, round: u8) -> Vec<u8> {
    (offset..offset + len as u64)
        .map(|at| (at as u8) ^ ((at >> 8) as u8).wrapping_mul(31) ^ ((at >> 16) as u8) ^ round)
        .collect()
}

/// The pattern of nbd-tester-client's "integrityhuge": simple replies, long requests one behind the
/// other, at offsets and of lengths that are no round numbers, the last of the largest size.
#[test]
fn huge_requests_come_back_as_they_were_written() {
    let fixture = Fixture::ram(256 << 20);
    let mut client = fixture.simple();
    for (round, (offset, len)) in [
        (0, 50_000_000),
        (12_345, 33_554_433),
        (100_000_000, 50_001_337),
        (4096, LONGEST),
        ((256 << 20) - LONGEST as u64, LONGEST),
    ]
    .into_iter()
    .enumerate()
    {
        let round = round as u8;
        let bytes = pattern(offset, len, round);
        client.request((WRITE, 0), 1, offset, len as u32);
        client.put(&bytes);
        client.request((FLUSH, 0), 2, 0, 0);
        client.request((READ, 0), 3, offset, len as u32);
        assert_eq!(client.simple_reply(), (0, 1));
        assert_eq!(client.simple_reply(), (0, 2));
        assert_eq!(client.simple_reply(), (0, 3));
        assert!(client.take(len) == bytes, "round {round}");
    }
    let stats = fixture.server.stats();
    assert_eq!((stats.writes, stats.reads, stats.errors), (5, 5, 0));
    assert_eq!(stats.written_bytes, stats.read_bytes);
}

#[test]
fn what_is_announced_and_not_sent_takes_no_memory_from_others() {
    let disk = Arc::new(RamDisk::new(1 << 30));
    let fixture = Fixture::with(disk, |config| config.in_flight_bytes_max = LONGEST);
    let announcers: Vec<_> = (0..32)
        .map(|cookie| {
            let mut client = fixture.simple();
            client.request((WRITE, 0), cookie, 0, LONGEST as u32);
            client
        })
        .collect();
    fixture.wait_for("the announcements", |stats| stats.writes == 32);
    let mut client = fixture.simple();
    client.request((READ, 0), 1, 0, LONGEST as u32);
    assert_eq!(client.simple_reply(), (0, 1));
    assert_eq!(client.take(LONGEST).len(), LONGEST);
    assert_eq!(fixture.server.stats().connections_stalled, 0);
    drop(announcers);
}

#[test]
fn a_client_that_leaves_its_answer_is_closed_once_others_need_its_memory() {
    let disk = Arc::new(RamDisk::new(1 << 30));
    let fixture = Fixture::with(disk, |config| {
        config.in_flight_bytes_max = LONGEST;
        config.stall_limit = Duration::from_millis(300);
    });
    let mut lazy = fixture.simple();
    lazy.request((READ, 0), 1, 0, LONGEST as u32);
    fixture.wait_for("the answer", |stats| stats.read_bytes == LONGEST as u64);

    // Nobody waits for it yet: short requests have memory of their own.
    let mut short = fixture.simple();
    for cookie in 0..20 {
        short.request((READ, 0), cookie, 0, MIB as u32);
        assert_eq!(short.simple_reply(), (0, cookie));
        short.take(MIB);
    }
    assert_eq!(fixture.server.stats().connections_stalled, 0);

    let mut long = fixture.simple();
    long.request((READ, 0), 2, 0, LONGEST as u32);
    assert_eq!(long.simple_reply(), (0, 2));
    long.take(LONGEST);
    assert_eq!(fixture.server.stats().connections_stalled, 1);
}

#[test]
fn long_requests_of_many_clients_take_turns() {
    let disk = Arc::new(RamDisk::new(1 << 30));
    let fixture = Fixture::with(disk, |config| config.in_flight_bytes_max = LONGEST);
    std::thread::scope(|scope| {
        for number in 0..4u8 {
            let fixture = &fixture;
            scope.spawn(move || {
                let mut client = fixture.simple();
                let offset = u64::from(number) * LONGEST as u64;
                let bytes = pattern(offset, LONGEST, number);
                client.request((WRITE, 0), 1, offset, LONGEST as u32);
                client.put(&bytes);
                assert_eq!(client.simple_reply(), (0, 1));
                client.request((READ, 0), 2, offset, LONGEST as u32);
                assert_eq!(client.simple_reply(), (0, 2));
                assert!(client.take(LONGEST) == bytes, "client {number}");
            });
        }
    });
    assert_eq!(fixture.server.stats().errors, 0);
}

/// A disk of which reads bring pages nearer, and the third MiB cannot be written.
struct Layered {
    inner: RamDisk,
    read_bytes: Arc<AtomicU64>,
}

impl Disk for Layered {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(LayeredQueue {
            inner: self.inner.queue()?,
            read_bytes: Arc::clone(&self.read_bytes),
            failed: Vec::new(),
        }))
    }

    fn extents(&self, offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        self.inner.extents(offset, len_bytes, out);
    }

    fn description(&self) -> String {
        "layered".to_owned()
    }

    fn reads_bring_nearer(&self) -> bool {
        true
    }
}

struct LayeredQueue {
    inner: Box<dyn Queue>,
    read_bytes: Arc<AtomicU64>,
    failed: Vec<Done>,
}

impl Queue for LayeredQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        let bad = 2 * MIB as u64..3 * MIB as u64;
        match &request.op {
            Op::Read(buffer) => {
                self.read_bytes
                    .fetch_add(buffer.len() as u64, Ordering::Relaxed);
            }
            Op::Write(_) if bad.contains(&request.offset) => {
                self.failed.push(Done {
                    tag: request.tag,
                    op: request.op,
                    result: Err(IoError::Lost),
                });
                return Ok(());
            }
            _ => {}
        }
        self.inner.submit(request)
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.failed);
        self.inner.poll(done);
    }

    fn wait_fds(&self, _out: &mut Vec<RawFd>) {}

    fn deadline(&self) -> Option<Duration> {
        None
    }
}

fn layered() -> (Fixture, Arc<AtomicU64>) {
    let read_bytes = Arc::new(AtomicU64::new(0));
    let disk = Arc::new(Layered {
        inner: RamDisk::new(64 << 20),
        read_bytes: Arc::clone(&read_bytes),
    });
    (Fixture::with(disk, |_| {}), read_bytes)
}

#[test]
fn cache_reads_what_a_read_would_bring_nearer_and_sends_none_of_it() {
    let (fixture, read_bytes) = layered();
    let mut client = fixture.simple();
    let len = 5 * MIB as u32 + 17;
    client.request((CACHE, 0), 1, 4096, len);
    assert_eq!(client.simple_reply(), (0, 1));
    assert_eq!(read_bytes.load(Ordering::Relaxed), u64::from(len));
    client.request((READ, 0), 2, 0, 1);
    assert_eq!(client.simple_reply(), (0, 2));
    assert_eq!(client.take(1), [0]);
    let stats = fixture.server.stats();
    assert_eq!((stats.caches, stats.read_bytes), (1, 1));

    let plain = Fixture::ram(1 << 20);
    let mut client = plain.simple();
    client.request((CACHE, 0), 3, 0, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 3));
}

#[test]
fn a_write_of_which_one_piece_fails_fails_once_and_the_connection_goes_on() {
    let (fixture, _) = layered();
    let mut client = fixture.simple();
    client.request((WRITE, 0), 1, 0, 8 * MIB as u32);
    client.put(&vec![7; 8 * MIB]);
    client.request((FLUSH, 0), 2, 0, 0);
    assert_eq!(client.simple_reply(), (5, 1));
    assert_eq!(client.simple_reply(), (0, 2));
    client.request((WRITE, 0), 3, 4 * MIB as u64, 2 * MIB as u32);
    client.put(&vec![8; 2 * MIB]);
    assert_eq!(client.simple_reply(), (0, 3));
    let stats = fixture.server.stats();
    assert_eq!((stats.errors, stats.written_bytes), (1, 2 << 20));
}

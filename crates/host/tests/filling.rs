//! Lost splits rebuilt by one host from others, against the code that made them.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::Code;
use cenote_fabric::Status;
use cenote_pool::control::{FILL_BYTES_MAX, FillResult, Refusal, Reply, Request, Source, Window};
use support::{Client, Fabric, Host, Lab, SLAB_BYTES, noise};

/// The hosts of one stripe, and a client with a session to each.
struct Stripe {
    hosts: Vec<Host>,
    clients: Vec<Client>,
    /// Where each split is.
    sources: Vec<Source>,
}

/// Puts `splits` on hosts that take turns, each in a slab of its own.
fn stripe(lab: &Lab, host_count: usize, splits: &[Vec<u8>]) -> Stripe {
    let hosts: Vec<_> = (0..host_count)
        .map(|h| lab.host(&format!("source{h}"), splits.len() as u64))
        .collect();
    let mut clients: Vec<_> = hosts.iter().map(|host| lab.client(host, 1)).collect();
    let mut sources = Vec::new();
    for (split, bytes) in splits.iter().enumerate() {
        let at = split % host_count;
        let window = clients[at].map(7, u32::try_from(split).unwrap());
        let remote = clients[at].attach(window).unwrap();
        assert_eq!(clients[at].write(&remote, 0, bytes), Status::Ok);
        let (split, address) = (u8::try_from(split).unwrap(), hosts[at].address.to_string());
        sources.push(Source {
            split,
            address,
            window,
        });
    }
    Stripe {
        hosts,
        clients,
        sources,
    }
}

/// Random data of `k` slabs and its `r` parities.
fn code_word(k: usize, r: usize) -> Vec<Vec<u8>> {
    let len = usize::try_from(SLAB_BYTES).unwrap();
    let data = noise(11, k * len);
    let mut parity = vec![0; r * len];
    Code::new(k, r).unwrap().encode(&data, &mut parity);
    data.chunks(len)
        .chain(parity.chunks(len))
        .map(<[u8]>::to_vec)
        .collect()
}

/// A fill of code (k, r) over one range.
#[derive(Clone, Copy)]
struct Wish {
    code: (u8, u8),
    split: u8,
    offset: u64,
    len_bytes: u64,
}

impl Wish {
    /// Of a whole slab.
    fn slab(code: (u8, u8), split: u8) -> Self {
        Self {
            code,
            split,
            offset: 0,
            len_bytes: SLAB_BYTES,
        }
    }

    fn request(self, request: u64, target: Window, sources: Vec<Source>) -> Request {
        Request::Fill {
            request,
            target,
            split: self.split,
            k: self.code.0,
            r: self.code.1,
            offset: self.offset,
            len_bytes: self.len_bytes,
            sources,
        }
    }
}

fn fill(client: &mut Client, target: Window, wish: Wish, sources: Vec<Source>) -> FillResult {
    static REQUEST: AtomicU64 = AtomicU64::new(1);
    let request = REQUEST.fetch_add(1, Ordering::Relaxed);
    client.send(&wish.request(request, target, sources));
    match client.reply() {
        Reply::Filled {
            request: answered,
            result,
        } if answered == request => result,
        other => panic!("{other:?}"),
    }
}

fn every_split_is_rebuilt(fabric: Fabric) {
    let lab = Lab::new(fabric);
    let splits = code_word(8, 2);
    let stripe = stripe(&lab, 5, &splits);
    let target = lab.host("target", 1);
    let mut client = lab.client(&target, 1);
    for (lost, expected) in splits.iter().enumerate() {
        let window = client.map(7, 100);
        let remote = client.attach(window).unwrap();
        // Any eight of the other nine; another one left out each time.
        let mut sources = stripe.sources.clone();
        sources.remove(lost);
        sources.remove((lost * 5 + 3) % 9);
        sources.rotate_left(lost % 8);
        // Odd edges first; then what they left, so that nothing is written twice.
        let (edge, tail) = (4096 * 37 + 512, SLAB_BYTES - 1000);
        for (offset, end) in [(edge, tail), (0, edge), (tail, SLAB_BYTES)] {
            let len_bytes = end - offset;
            let wish = Wish {
                offset,
                len_bytes,
                ..Wish::slab((8, 2), u8::try_from(lost).unwrap())
            };
            let result = fill(&mut client, window, wish, sources.clone());
            assert_eq!(result, FillResult::Done);
            if end == tail {
                let bytes = client.read_all(&remote);
                let inner = edge as usize..tail as usize;
                let is_alike = bytes[inner.clone()] == expected[inner.clone()];
                assert!(is_alike, "split {lost}, inner range");
                let mut outer = bytes[..inner.start].iter().chain(&bytes[inner.end..]);
                assert!(outer.all(|&byte| byte == 0));
            }
        }
        let is_alike = client.read_all(&remote) == *expected;
        assert!(is_alike, "split {lost} differs");
        client.unmap(window);
    }
    let counters = client.status().counters;
    assert_eq!((counters.fills, counters.fills_failed), (30, 0));
    assert_eq!(counters.fill_bytes, 10 * SLAB_BYTES);
}

#[test]
fn every_split_of_8_2_is_rebuilt_over_shm() {
    every_split_is_rebuilt(Fabric::Shm);
}

#[test]
fn every_split_of_8_2_is_rebuilt_over_tcp() {
    every_split_is_rebuilt(Fabric::Tcp);
}

#[test]
fn a_mirror_is_copied_from_any_member_and_not_multiplied() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let data = noise(3, usize::try_from(SLAB_BYTES).unwrap());
        let stripe = stripe(&lab, 2, &[data.clone(), data.clone()]);
        let target = lab.host("target", 1);
        let mut client = lab.client(&target, 1);
        let window = client.map(7, 2);
        let len_bytes = FILL_BYTES_MAX;
        let wish = Wish {
            len_bytes,
            ..Wish::slab((1, 2), 2)
        };
        let result = fill(&mut client, window, wish, vec![stripe.sources[1].clone()]);
        assert_eq!(result, FillResult::Done);
        let remote = client.attach(window).unwrap();
        assert!(client.read_all(&remote) == data);
    }
}

fn a_failing_source_is_named(fabric: Fabric) {
    let lab = Lab::new(fabric);
    let splits = code_word(4, 2);
    let mut stripe = stripe(&lab, 6, &splits);
    let target = lab.host("target", 1);
    let mut client = lab.client(&target, 1);
    let window = client.map(7, 9);
    let remote = client.attach(window).unwrap();
    let wish = Wish::slab((4, 2), 0);
    let among = |members: [usize; 4], all: &[Source]| members.map(|m| all[m].clone()).to_vec();
    let failed = |split| FillResult::SourceFailed { split };

    let mut nowhere = among([1, 2, 3, 4], &stripe.sources);
    nowhere[2].address = lab_address_of_nobody(fabric);
    assert_eq!(fill(&mut client, window, wish, nowhere), failed(3));

    let mut stale = among([1, 2, 3, 4], &stripe.sources);
    stale[0].window.generation ^= 1;
    assert_eq!(fill(&mut client, window, wish, stale), failed(1));

    let well = among([1, 2, 3, 4], &stripe.sources);
    let result = fill(&mut client, window, wish, well.clone());
    assert_eq!(result, FillResult::Done);
    assert!(client.read_all(&remote) == splits[0], "after failures");

    // Attached and then given back: known to the filler, and gone.
    let given_back = stripe.sources[2].window;
    stripe.clients[2].unmap(given_back);
    assert_eq!(fill(&mut client, window, wish, well), failed(2));

    // Connected and then stopped.
    stripe.hosts[1].stop();
    let dead = among([1, 3, 4, 5], &stripe.sources);
    assert_eq!(fill(&mut client, window, wish, dead), failed(1));

    let two_lost = Wish { split: 2, ..wish };
    let left = among([0, 3, 4, 5], &stripe.sources);
    assert_eq!(fill(&mut client, window, two_lost, left), FillResult::Done);
    let is_alike = client.read_all(&remote) == splits[2];
    assert!(is_alike, "from the four that are left");
}

/// An address at which nothing listens.
fn lab_address_of_nobody(fabric: Fabric) -> String {
    match fabric {
        Fabric::Shm => "shm:/nonexistent/socket".to_owned(),
        Fabric::Tcp => {
            let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            drop(socket);
            format!("tcp:{address}")
        }
    }
}

#[test]
fn a_failing_source_is_named_and_the_next_fill_works_over_shm() {
    a_failing_source_is_named(Fabric::Shm);
}

#[test]
fn a_failing_source_is_named_and_the_next_fill_works_over_tcp() {
    a_failing_source_is_named(Fabric::Tcp);
}

#[test]
fn only_the_holder_fills_and_only_what_makes_sense() {
    let lab = Lab::new(Fabric::Shm);
    let data = noise(5, usize::try_from(SLAB_BYTES).unwrap());
    let stripe = stripe(&lab, 1, std::slice::from_ref(&data));
    let target = lab.host("target", 2);
    let (mut holder, mut other) = (lab.client(&target, 1), lab.client(&target, 2));
    let window = holder.map(7, 1);
    let remote = holder.attach(window).unwrap();
    let wish = Wish::slab((1, 1), 1);
    let filled = |client: &mut Client, wish| fill(client, window, wish, stripe.sources.clone());
    assert_eq!(filled(&mut other, wish), FillResult::TargetStale);
    let beyond = Wish { offset: 1, ..wish };
    assert_eq!(filled(&mut holder, beyond), FillResult::Bad);
    let itself = Wish { split: 0, ..wish };
    assert_eq!(filled(&mut holder, itself), FillResult::Bad);
    let bytes = holder.read_all(&remote);
    let is_empty = bytes.iter().all(|&byte| byte == 0);
    assert!(is_empty, "refused, yet written");
    assert_eq!(filled(&mut holder, wish), FillResult::Done);
    holder.unmap(window);
    assert_eq!(filled(&mut holder, wish), FillResult::TargetStale);
    assert_eq!(holder.status().counters.fills_failed, 4);
}

#[test]
fn many_fills_at_once_are_answered_and_too_many_end_the_connection() {
    let lab = Lab::new(Fabric::Shm);
    let data = noise(5, usize::try_from(SLAB_BYTES).unwrap());
    let stripe = stripe(&lab, 1, &[data]);
    let target = lab.host("target", 2);
    let mut client = lab.client(&target, 1);
    let window = client.map(7, 1);
    let wish = Wish::slab((1, 1), 1);
    let ask = |client: &mut Client, request| {
        client.send(&wish.request(request, window, stripe.sources.clone()));
    };
    for request in 0..32 {
        ask(&mut client, request);
    }
    for request in 0..32 {
        let result = FillResult::Done;
        assert_eq!(client.reply(), Reply::Filled { request, result });
    }
    // Behind a source that answers nothing a queue builds up.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sources = stripe.sources.clone();
    sources[0].address = format!("tcp:{}", silent.local_addr().unwrap());
    client.send(&wish.request(99, window, sources));
    for request in 0..32 {
        ask(&mut client, request);
    }
    assert!(client.incoming().is_err(), "33 outstanding");
}

/// The answer to a client that owns volume 7, which it may be told to ask for again.
fn owns(client: &mut Client, request: u64, epoch: u64) {
    let own = Request::Own {
        request,
        volume: 7,
        epoch,
    };
    loop {
        match client.ask(&own) {
            Reply::Owned { request: of, .. } if of == request => return,
            Reply::Refused {
                reason: Refusal::Owned,
                ..
            } => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
    }
}

/// Client 1 owns the volume and goes while the filler has a fill of it in hand; then `next` owns
/// it.
fn an_owner_follows_a_fill(next: u64, epoch: u64) {
    let lab = Lab::new(Fabric::Shm);
    let target = lab.host("target", 2);
    let mut client = lab.client(&target, 1);
    owns(&mut client, 1, 1);
    let window = client.map(7, 1);
    // Its source answers nothing for a while.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let source = Source {
        split: 0,
        address: format!("tcp:{}", silent.local_addr().unwrap()),
        window,
    };
    client.send(&Wish::slab((1, 1), 1).request(9, window, vec![source]));
    // The filler has it in hand.
    let _connected = silent.accept().unwrap();
    drop(client);
    let mut client = lab.client(&target, next.into());
    owns(&mut client, 2, epoch);
    assert_eq!(client.status().counters.fills_failed, 1, "it has ended");
}

#[test]
fn who_owns_a_volume_again_hears_so_when_no_fill_of_its_last_session_is_under_way() {
    an_owner_follows_a_fill(1, 1);
}

#[test]
fn who_takes_a_volume_over_hears_so_when_no_fill_of_the_last_owner_is_under_way() {
    an_owner_follows_a_fill(2, 2);
}

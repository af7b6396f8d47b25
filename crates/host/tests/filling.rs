//! Lost splits rebuilt by one host from others, against the code that made them.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_codec::Code;
use cenote_fabric::{Address, Status};
use cenote_pool::control::{FILL_BYTES_MAX, FillResult, Reply, Request, Source, Window};
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
struct Wish {
    code: (u8, u8),
    split: u8,
    offset: u64,
    len_bytes: u64,
}

fn fill(client: &mut Client, target: Window, wish: &Wish, sources: Vec<Source>) -> FillResult {
    static REQUEST: AtomicU64 = AtomicU64::new(1);
    let request = REQUEST.fetch_add(1, Ordering::Relaxed);
    let &Wish {
        code: (k, r),
        split,
        offset,
        len_bytes,
    } = wish;
    client.send(&Request::Fill {
        request,
        target,
        split,
        k,
        r,
        offset,
        len_bytes,
        sources,
    });
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
            let split = u8::try_from(lost).unwrap();
            let wish = Wish {
                code: (8, 2),
                split,
                offset,
                len_bytes: end - offset,
            };
            assert_eq!(
                fill(&mut client, window, &wish, sources.clone()),
                FillResult::Done
            );
            if end == tail {
                let bytes = client.read_all(&remote);
                let (edge, tail) = (edge as usize, tail as usize);
                assert!(
                    bytes[edge..tail] == expected[edge..tail],
                    "split {lost}, inner range"
                );
                assert!(
                    bytes[..edge]
                        .iter()
                        .chain(&bytes[tail..])
                        .all(|&byte| byte == 0)
                );
            }
        }
        assert!(
            client.read_all(&remote) == *expected,
            "split {lost} differs"
        );
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
        let wish = Wish {
            code: (1, 2),
            split: 2,
            offset: 0,
            len_bytes: FILL_BYTES_MAX,
        };
        let result = fill(&mut client, window, &wish, vec![stripe.sources[1].clone()]);
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
    let wish = Wish {
        code: (4, 2),
        split: 0,
        offset: 0,
        len_bytes: SLAB_BYTES,
    };
    let among = |members: [usize; 4], all: &[Source]| members.map(|m| all[m].clone()).to_vec();

    let mut nowhere = among([1, 2, 3, 4], &stripe.sources);
    nowhere[2].address = lab_address_of_nobody(fabric);
    let named = FillResult::SourceFailed { split: 3 };
    assert_eq!(fill(&mut client, window, &wish, nowhere), named);

    let mut stale = among([1, 2, 3, 4], &stripe.sources);
    stale[0].window.generation ^= 1;
    assert_eq!(
        fill(&mut client, window, &wish, stale),
        FillResult::SourceFailed { split: 1 }
    );

    let well = among([1, 2, 3, 4], &stripe.sources);
    assert_eq!(
        fill(&mut client, window, &wish, well.clone()),
        FillResult::Done
    );
    assert!(client.read_all(&remote) == splits[0], "after failures");

    // Attached and then given back: known to the filler, and gone.
    let given_back = stripe.sources[2].window;
    stripe.clients[2].unmap(given_back);
    assert_eq!(
        fill(&mut client, window, &wish, well),
        FillResult::SourceFailed { split: 2 }
    );

    // Connected and then stopped.
    stripe.hosts[1].stop();
    let dead = among([1, 3, 4, 5], &stripe.sources);
    assert_eq!(
        fill(&mut client, window, &wish, dead),
        FillResult::SourceFailed { split: 1 }
    );

    let two_lost = Wish { split: 2, ..wish };
    let left = among([0, 3, 4, 5], &stripe.sources);
    assert_eq!(fill(&mut client, window, &two_lost, left), FillResult::Done);
    assert!(
        client.read_all(&remote) == splits[2],
        "from the four that are left"
    );
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
                .parse::<Address>()
                .unwrap()
                .to_string()
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
    let wish = Wish {
        code: (1, 1),
        split: 1,
        offset: 0,
        len_bytes: SLAB_BYTES,
    };
    let sources = || stripe.sources.clone();
    assert_eq!(
        fill(&mut other, window, &wish, sources()),
        FillResult::TargetStale
    );
    let beyond = Wish {
        offset: 1,
        code: (1, 1),
        split: 1,
        len_bytes: SLAB_BYTES,
    };
    assert_eq!(
        fill(&mut holder, window, &beyond, sources()),
        FillResult::Bad
    );
    let itself = Wish {
        split: 0,
        code: (1, 1),
        offset: 0,
        len_bytes: SLAB_BYTES,
    };
    assert_eq!(
        fill(&mut holder, window, &itself, sources()),
        FillResult::Bad
    );
    assert!(
        holder.read_all(&remote).iter().all(|&byte| byte == 0),
        "refused, yet written"
    );
    assert_eq!(
        fill(&mut holder, window, &wish, sources()),
        FillResult::Done
    );
    holder.unmap(window);
    assert_eq!(
        fill(&mut holder, window, &wish, sources()),
        FillResult::TargetStale
    );
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
    let ask = |client: &mut Client, request| {
        let sources = stripe.sources.clone();
        let (offset, len_bytes) = (0, SLAB_BYTES);
        client.send(&Request::Fill {
            request,
            target: window,
            split: 1,
            k: 1,
            r: 1,
            offset,
            len_bytes,
            sources,
        });
    };
    for request in 0..32 {
        ask(&mut client, request);
    }
    for request in 0..32 {
        assert_eq!(
            client.reply(),
            Reply::Filled {
                request,
                result: FillResult::Done
            }
        );
    }
    // Behind a source that answers nothing a queue builds up.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut sources = stripe.sources.clone();
    sources[0].address = format!("tcp:{}", silent.local_addr().unwrap());
    let (offset, len_bytes) = (0, SLAB_BYTES);
    let stuck = Request::Fill {
        request: 99,
        target: window,
        split: 1,
        k: 1,
        r: 1,
        offset,
        len_bytes,
        sources,
    };
    client.send(&stuck);
    for request in 0..32 {
        ask(&mut client, request);
    }
    assert!(client.incoming().is_err(), "33 outstanding");
}

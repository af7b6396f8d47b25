//! READ and WRITE over `tcp`, one at a time and pipelined, and messages, beside [`raw`].
//!
//! Both clients send what they may, wait once, and take all that has arrived. The memory is
//! warm: what is measured is the way there and back. Each case is taken in both [`Placement`]s.

use std::time::Instant;

use anyhow::Context;
use cenote_fabric::{CompletionQueue, Status};
use cenote_measure::random::Random;

use super::super::page::histogram;
use super::link::Link;
use super::peer::{Peer, Role};
use super::placement::{Cores, Placement};
use super::raw::{self, Kind};
use super::{Buffer, DEPTH, Figure, Options, SIZES, Verb};
use crate::cluster::LocalCluster;

/// Verbs per slice, one at a time and pipelined.
const OPS_ALONE: usize = 600;
const OPS_PIPELINED: usize = 8_000;
/// Length of a message, and how many are outstanding.
const MESSAGE_BYTES: usize = 64;
const MESSAGE_DEPTH: usize = 256;
const MESSAGES: usize = 40_000;
/// What the one host lends; its slabs are 1/64 of it.
const HOST_MIB: u64 = 64;
const PEER: &str = "raw request and answer";

struct Case {
    verb: Verb,
    bytes: usize,
    depth: usize,
    figure: Figure,
}

/// The figures of one placement.
struct Placed {
    placement: Placement,
    cases: Vec<Case>,
    messages: Figure,
}

pub(super) fn measure(options: &Options) -> anyhow::Result<Vec<Figure>> {
    eprintln!("fabric: one host over tcp, a raw server and one that takes messages");
    let cluster = LocalCluster::start(1, HOST_MIB, "tcp")?;
    let mut link = Link::open(
        cluster.connector(),
        cluster.address(0),
        raw::MEMORY_BYTES as u64,
    )?;
    let raw_server = Peer::start(Role::Raw)?;
    let mut raw = raw::Client::connect(raw_server.raw_address()?)?;
    let sink = Peer::start(Role::Messages)?;
    let (address, connector) = sink.host()?;
    let mut sender = Link::open(&connector, &address, 0)?;
    let host = cluster.pid(0).context("the host is gone")?;
    let cores = Cores::pin(&[host, raw_server.pid(), sink.pid()])?;
    let mut placed = Placement::BOTH.map(Placed::new);
    for round in 0..options.rounds {
        for of in &mut placed {
            cores.place_servers(of.placement)?;
            for case in &mut of.cases {
                let (verb, bytes, depth) = (case.verb, case.bytes, case.depth);
                case.figure.round(
                    round,
                    || ours(&mut link, verb, bytes, depth, round),
                    || bare(&mut raw, verb, bytes, depth, round),
                )?;
            }
            of.messages
                .round(round, || send(&mut sender), || bare_send(&mut raw))?;
        }
    }
    let figures = |of: Placed| {
        let figures = of.cases.into_iter().map(|case| case.figure);
        figures.chain([of.messages])
    };
    Ok(placed.into_iter().flat_map(figures).collect())
}

impl Placed {
    fn new(placement: Placement) -> Self {
        let on = placement.name();
        let mut cases = Vec::new();
        for (verb, depth) in Verb::BOTH
            .map(|verb| [(verb, 1), (verb, DEPTH)])
            .as_flattened()
        {
            for bytes in SIZES {
                let name = format!("tcp {} {bytes} B, {depth} outstanding, {on}", verb.name());
                let metric = if *depth == 1 {
                    ("latency_p50", "us")
                } else {
                    ("throughput", "ops/s")
                };
                cases.push(Case {
                    verb: *verb,
                    bytes,
                    depth: *depth,
                    figure: Figure::new(name, metric, PEER),
                });
            }
        }
        let name = format!("tcp SEND {MESSAGE_BYTES} B, {MESSAGE_DEPTH} outstanding, {on}");
        Self {
            placement,
            cases,
            messages: Figure::new(name, ("throughput", "messages/s"), PEER),
        }
    }
}

fn place(random: &mut Random, bytes: usize) -> u64 {
    random.next() & (raw::MEMORY_BYTES as u64 - 1) & !(bytes as u64 - 1)
}

fn ours(
    link: &mut Link,
    verb: Verb,
    bytes: usize,
    depth: usize,
    seed: usize,
) -> anyhow::Result<f64> {
    let mut random = Random::new(seed as u64);
    // As the pages of a block device lie.
    let mut local = Buffer::new(bytes * depth, 0);
    let local = local.bytes();
    if depth == 1 {
        let mut histogram = histogram();
        for _ in 0..OPS_ALONE {
            let start = Instant::now();
            let place = place(&mut random, bytes);
            // SAFETY: `local` outlives the verb, which is awaited just below.
            unsafe { link.post(verb, place, bytes, local.as_mut_ptr())? };
            link.endpoint.flush(&mut link.queue);
            link.wait()?;
            link.pop()?;
            histogram.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
        }
        return Ok(histogram.value_at_quantile(0.5) as f64 / 1e3);
    }
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < OPS_PIPELINED {
        while posted < OPS_PIPELINED && posted - done < depth {
            let landing = local[posted % depth * bytes..].as_mut_ptr();
            let place = place(&mut random, bytes);
            // SAFETY: a part of `local` that no outstanding verb uses, since they complete in
            // order. Bytes land only in polls, and after an error nobody polls again.
            unsafe { link.post(verb, place, bytes, landing)? };
            posted += 1;
        }
        link.endpoint.flush(&mut link.queue);
        link.wait()?;
        while link.pop()? {
            done += 1;
        }
    }
    Ok(OPS_PIPELINED as f64 / start.elapsed().as_secs_f64())
}

fn bare(
    raw: &mut raw::Client,
    verb: Verb,
    bytes: usize,
    depth: usize,
    seed: usize,
) -> anyhow::Result<f64> {
    let kind = match verb {
        Verb::Read => Kind::Read,
        Verb::Write => Kind::Write,
    };
    let mut random = Random::new(seed as u64);
    let local = vec![0x5a_u8; bytes];
    if depth == 1 {
        let mut histogram = histogram();
        for _ in 0..OPS_ALONE {
            let start = Instant::now();
            raw.send(kind, &local, &[place(&mut random, bytes)])?;
            raw.receive(kind, bytes)?;
            histogram.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
        }
        return Ok(histogram.value_at_quantile(0.5) as f64 / 1e3);
    }
    pipeline(raw, kind, &local, depth, OPS_PIPELINED, || {
        place(&mut random, bytes)
    })
}

fn pipeline(
    raw: &mut raw::Client,
    kind: Kind,
    local: &[u8],
    depth: usize,
    ops: usize,
    mut place: impl FnMut() -> u64,
) -> anyhow::Result<f64> {
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    let mut places = Vec::with_capacity(depth);
    while done < ops {
        places.clear();
        while posted < ops && posted - done < depth {
            places.push(place());
            posted += 1;
        }
        if !places.is_empty() {
            raw.send(kind, local, &places)?;
        }
        done += raw.receive(kind, local.len())?;
    }
    Ok(ops as f64 / start.elapsed().as_secs_f64())
}

/// Messages per second that the host took; one that it had no room for is sent again.
fn send(link: &mut Link) -> anyhow::Result<f64> {
    let message = [0x5a_u8; MESSAGE_BYTES];
    let start = Instant::now();
    let (mut outstanding, mut taken) = (0, 0);
    while taken < MESSAGES {
        while outstanding < MESSAGE_DEPTH && taken + outstanding < MESSAGES {
            link.endpoint.post_send(&message, 0, &mut link.queue)?;
            outstanding += 1;
        }
        link.endpoint.flush(&mut link.queue);
        link.wait()?;
        taken += take_statuses(&mut link.queue, &mut outstanding)?;
    }
    Ok(MESSAGES as f64 / start.elapsed().as_secs_f64())
}

fn take_statuses(queue: &mut CompletionQueue, outstanding: &mut usize) -> anyhow::Result<usize> {
    let mut taken = 0;
    while let Some(completion) = queue.pop() {
        *outstanding -= 1;
        match completion.status {
            Status::Ok => taken += 1,
            Status::ReceiverNotReady => {}
            status => anyhow::bail!("a message ended with {status:?}"),
        }
    }
    Ok(taken)
}

fn bare_send(raw: &mut raw::Client) -> anyhow::Result<f64> {
    let message = [0x5a_u8; MESSAGE_BYTES];
    pipeline(raw, Kind::Message, &message, MESSAGE_DEPTH, MESSAGES, || 0)
}

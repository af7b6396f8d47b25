//! One run of one configuration: the events, and what comes of them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Network;
use crate::tuner::Measurement;
use crate::{Configuration, Writes};
use cenote_pool::random::Random;

/// Where a message is going to be next.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Stage {
    /// At its client thread, to be packed and posted.
    Client,
    /// At the client's card.
    There,
    /// At its server thread.
    Server,
    /// At the server's card.
    Back,
    /// At its client thread, answered.
    Answer,
}

/// Something that serves one at a time, in the order of arrival.
#[derive(Clone, Copy, Debug, Default)]
struct Station {
    free_ps: u64,
}

impl Station {
    /// When who arrives at `now_ps` and takes `service_ps` is done.
    fn serve(&mut self, now_ps: u64, service_ps: u64) -> u64 {
        self.free_ps = self.free_ps.max(now_ps) + service_ps;
        self.free_ps
    }
}

/// Times of a message at each station, before jitter, in picoseconds.
struct Costs {
    post: f64,
    there: f64,
    server: f64,
    back: f64,
    take: f64,
}

pub(super) struct Run<'a> {
    network: &'a Network,
    configuration: Configuration,
    costs: Costs,
    random: Random,
    clients: Vec<Station>,
    servers: Vec<Station>,
    there: Station,
    back: Station,
    /// By time, then by the order in which they were made, so that nothing is left to the heap.
    events: BinaryHeap<Reverse<(u64, u64, usize, Stage)>>,
    made: u64,
    /// When each message that is under way was begun, by message: connection * q + its number there.
    began_ps: Vec<u64>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        network: &'a Network,
        configuration: Configuration,
        what: (u32, Writes),
        seed: u64,
    ) -> Self {
        let Configuration { c, s, b, q } = configuration;
        assert!(c > 0 && b > 0 && q > 0 && s <= c && (s > 0 || b == 1));
        let messages = c as usize * q as usize;
        Self {
            network,
            configuration,
            costs: costs(network, configuration, what),
            random: Random::new(seed),
            clients: vec![Station::default(); c as usize],
            servers: vec![Station::default(); s as usize],
            there: Station::default(),
            back: Station::default(),
            events: BinaryHeap::with_capacity(messages),
            made: 0,
            began_ps: vec![0; messages],
        }
    }

    /// Runs until `messages` were answered after the warm-up.
    pub(super) fn finish(mut self, messages: usize) -> Measurement {
        let under_way = self.began_ps.len();
        let warm_up = (3 * under_way).max(messages / 4);
        let messages = messages.max(10 * under_way);
        for message in 0..under_way {
            self.schedule(0, message, Stage::Client);
        }
        let (mut answered, mut from_ps) = (0_usize, 0_u64);
        let mut latencies_ps: Vec<u64> = Vec::with_capacity(messages);
        loop {
            let Reverse((now_ps, _, message, stage)) =
                self.events.pop().expect("a closed loop does not end");
            let Some(ended_ps) = self.step(now_ps, message, stage) else {
                continue;
            };
            answered += 1;
            if answered == warm_up {
                from_ps = ended_ps;
            } else if answered > warm_up {
                latencies_ps.push(ended_ps - self.began_ps[message]);
            }
            if latencies_ps.len() == messages {
                let elapsed_s = (ended_ps - from_ps) as f64 / 1e12;
                let requests = messages as f64 * f64::from(self.configuration.b);
                return measurement(requests / elapsed_s, &mut latencies_ps);
            }
            self.began_ps[message] = ended_ps;
            self.schedule(ended_ps, message, Stage::Client);
        }
    }

    /// Moves a message on; when it is answered, the time.
    fn step(&mut self, now_ps: u64, message: usize, stage: Stage) -> Option<u64> {
        let connection = message / self.configuration.q as usize;
        let distance_ps = self.network.distance_ns * 1000;
        match stage {
            Stage::Client => {
                let service = self.jitter(self.costs.post);
                let done = self.clients[connection].serve(now_ps, service);
                self.schedule(done, message, Stage::There);
            }
            Stage::There => {
                let service = self.jitter(self.costs.there);
                let done = self.there.serve(now_ps, service) + distance_ps + self.late();
                let next = if self.servers.is_empty() {
                    Stage::Back
                } else {
                    Stage::Server
                };
                self.schedule(done, message, next);
            }
            Stage::Server => {
                let service = self.jitter(self.costs.server);
                let thread = connection % self.servers.len();
                let done = self.servers[thread].serve(now_ps, service);
                self.schedule(done, message, Stage::Back);
            }
            Stage::Back => {
                let service = self.jitter(self.costs.back);
                let done = self.back.serve(now_ps, service) + distance_ps + self.late();
                self.schedule(done, message, Stage::Answer);
            }
            Stage::Answer => {
                let service = self.jitter(self.costs.take);
                return Some(self.clients[connection].serve(now_ps, service));
            }
        }
        None
    }

    fn schedule(&mut self, at_ps: u64, message: usize, stage: Stage) {
        self.made += 1;
        self.events
            .push(Reverse((at_ps, self.made, message, stage)));
    }

    fn jitter(&mut self, ps: f64) -> u64 {
        (ps * (1.0 + self.network.jitter * self.random.unit())) as u64
    }

    fn late(&mut self) -> u64 {
        let one_in = f64::from(self.network.late_one_in.max(1));
        let draw = self.random.unit() * one_in;
        match draw < 1.0 && self.network.late_ns > 0 {
            true => (draw * self.network.late_ns as f64 * 1000.0) as u64,
            false => 0,
        }
    }
}

fn costs(
    network: &Network,
    configuration: Configuration,
    (record_bytes, writes): (u32, Writes),
) -> Costs {
    let Configuration { c, s, b, q } = configuration;
    let (records, record_bytes) = (f64::from(b), u64::from(record_bytes));
    let batch_bytes = u64::from(b) * record_bytes;
    // Each message has the average's share: what is written goes there, what is read comes back.
    let written_bytes = batch_bytes * u64::from(writes.percent()) / 100;
    let copied = batch_bytes as f64 * network.copy_byte_ns;
    let messages = u64::from(c) * u64::from(q);
    // A one-sided verb lands where it is wanted, and carries no list of requests.
    let (request_bytes, per_client_request, copied) = match s {
        0 => (0, 0.0, 0.0),
        _ => (
            u64::from(b) * u64::from(network.request_bytes),
            network.client_request_ns,
            copied,
        ),
    };
    let client = network.client_message_ns + records * per_client_request;
    let polled = f64::from(c.div_ceil(s.max(1)) - 1) * network.server_poll_ns;
    let server = network.server_message_ns + polled + records * network.server_request_ns + copied;
    let (clients_slower, servers_slower) = (network.slower(c), network.slower(s));
    Costs {
        post: client * clients_slower * 1000.0,
        there: network.way_ps(request_bytes + written_bytes, messages),
        server: server * servers_slower * 1000.0,
        back: network.way_ps(batch_bytes - written_bytes, messages),
        take: (client + copied) * clients_slower * 1000.0,
    }
}

fn measurement(throughput_per_second: f64, latencies_ps: &mut [u64]) -> Measurement {
    latencies_ps.sort_unstable();
    let us = |ps: u64| ps as f64 / 1e6;
    let at = |share: f64| {
        let rank = (share * latencies_ps.len() as f64).ceil() as usize;
        us(latencies_ps[rank.clamp(1, latencies_ps.len()) - 1])
    };
    let sum: u64 = latencies_ps.iter().sum();
    let mean = us(sum) / latencies_ps.len() as f64;
    Measurement::new(throughput_per_second, mean, at(0.5), at(0.99))
        .expect("time passes between messages")
}

//! READ and WRITE of a page over `rdma`, beside the programs of `perftest` on the same device.
//!
//! Both sides look for completions without waiting for events. A slice of perftest's is a server
//! and a client of its own, on this machine as the host is. The latency of a READ is the same
//! thing on both sides; `ib_write_lat` has no acknowledgement, but half of a WRITE there and one
//! back, so its figure is not of the same thing and is told as what it is.

use std::net::IpAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use cenote_fabric::rdma::{Support, support};
use cenote_fabric::{Address, Time};
use cenote_measure::random::Random;

use super::super::page::histogram;
use super::link::Link;
use super::{Buffer, DEPTH, Figure, Options, Verb};
use crate::cluster::LocalCluster;

/// A round starts eight processes of perftest.
const ROUNDS_MAX: usize = 5;
/// Bytes per verb.
const PAGE_BYTES: usize = 4096;
/// Verbs per slice, one at a time and pipelined.
const OPS_ALONE: usize = 1_000;
const OPS_PIPELINED: usize = 4_000;
/// What the one host lends, and what of it is used.
const HOST_MIB: u64 = 64;
const MEMORY_BYTES: u64 = 16 << 20;

pub(super) fn measure(options: &Options) -> anyhow::Result<Vec<Figure>> {
    let Support::Devices(devices) = support() else {
        bail!("rdma: {}", support());
    };
    eprintln!("fabric: one host over rdma, and perftest");
    let cluster = LocalCluster::start(1, HOST_MIB, "rdma")?;
    let Address::Rdma(address) = cluster.address(0) else {
        bail!("the host is not reached over rdma");
    };
    let address = address.socket().context("the host's address is a name")?;
    let device = devices
        .iter()
        .find(|device| device.addresses.contains(&address.ip()))
        .context("the host's device is not on this machine")?;
    let peer = Perftest {
        device: device.name.clone(),
        ip: address.ip(),
    };
    let mut link = Link::open(cluster.connector(), cluster.address(0), MEMORY_BYTES)?;
    let case = |name: String, metric, program| (Figure::new(name, metric, program), program);
    let (latency, rate) = (("latency_p50", "us"), ("throughput", "ops/s"));
    let mut figures = Vec::new();
    for (verb, lat, bw) in [
        (Verb::Read, "ib_read_lat", "ib_read_bw"),
        (Verb::Write, "ib_write_lat", "ib_write_bw"),
    ] {
        let name = |depth| format!("rdma {} {PAGE_BYTES} B, {depth} outstanding", verb.name());
        figures.push((verb, 1, case(name(1), latency, lat)));
        figures.push((verb, DEPTH, case(name(DEPTH), rate, bw)));
    }
    for round in 0..options.rounds.min(ROUNDS_MAX) {
        for (verb, depth, (figure, program)) in &mut figures {
            figure.round(
                round,
                || ours(&mut link, *verb, *depth, round),
                || peer.run(program, *depth),
            )?;
        }
    }
    Ok(figures
        .into_iter()
        .map(|(_, _, (figure, _))| figure)
        .collect())
}

fn ours(link: &mut Link, verb: Verb, depth: usize, seed: usize) -> anyhow::Result<f64> {
    let mut random = Random::new(seed as u64);
    let mut place = || random.next() & (MEMORY_BYTES - 1) & !(PAGE_BYTES as u64 - 1);
    let mut local = Buffer::new(PAGE_BYTES * depth, 0);
    let local = local.bytes();
    let mut histogram = histogram();
    let ops = if depth == 1 { OPS_ALONE } else { OPS_PIPELINED };
    let begun = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < ops {
        let start = Instant::now();
        while posted < ops && posted - done < depth {
            let landing = local[posted % depth * PAGE_BYTES..].as_mut_ptr();
            // SAFETY: a part of `local` that no outstanding verb uses, since they complete in
            // order. Bytes land only in polls, and after an error nobody polls again.
            unsafe { link.post(verb, place(), PAGE_BYTES, landing)? };
            posted += 1;
        }
        link.endpoint.flush(&mut link.queue);
        while link.queue.is_empty() {
            link.endpoint.poll(Time::now(), &mut link.queue);
        }
        while link.pop()? {
            done += 1;
        }
        histogram.saturating_record(u64::try_from(start.elapsed().as_nanos())?);
    }
    Ok(if depth == 1 {
        histogram.value_at_quantile(0.5) as f64 / 1e3
    } else {
        ops as f64 / begun.elapsed().as_secs_f64()
    })
}

/// How perftest's programs reach the device.
struct Perftest {
    device: String,
    ip: IpAddr,
}

impl Perftest {
    /// Typical latency in microseconds, or operations per second.
    fn run(&self, program: &str, depth: usize) -> anyhow::Result<f64> {
        let mut server = Server(
            self.command(program, depth)
                .spawn()
                .with_context(|| format!("start {program} (Debian package perftest)"))?,
        );
        let begun = Instant::now();
        loop {
            let mut client = self.command(program, depth);
            let output = client
                .arg(self.ip.to_string())
                .stdout(Stdio::piped())
                .output()
                .with_context(|| format!("start {program}"))?;
            if output.status.success() {
                server.0.wait()?;
                let text = String::from_utf8_lossy(&output.stdout);
                return figure(&text, depth).with_context(|| format!("{program} printed {text:?}"));
            }
            // The server may not listen yet.
            if begun.elapsed() > PATIENCE || server.0.try_wait()?.is_some() {
                bail!("{program}: {}", String::from_utf8_lossy(&output.stdout));
            }
        }
    }

    fn command(&self, program: &str, depth: usize) -> Command {
        let mut command = Command::new(program);
        let ops = if depth == 1 { OPS_ALONE } else { OPS_PIPELINED };
        command
            .args(["-F", "-d", &self.device, "-s", &PAGE_BYTES.to_string()])
            .args(["-n", &ops.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if depth > 1 {
            command.args(["-t", &depth.to_string()]);
        }
        command
    }
}

/// Ends with its owner.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended or is to end: both are fine.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Out of the row of figures that follows the row of names.
fn figure(text: &str, depth: usize) -> Option<f64> {
    let mut lines = text.lines().map(str::trim);
    lines.find(|line| line.starts_with("#bytes"))?;
    let row: Vec<f64> = lines
        .next()?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    // bytes, iterations, and then: t_min, t_max, t_typical, ...; or peak, average, millions of
    // messages a second.
    let figure = *row.get(4)?;
    Some(if depth == 1 { figure } else { figure * 1e6 })
}

/// How long perftest's server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_perftest_are_found_in_its_tables() {
        let latency = "---\n #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]\n \
                       4096    1000          26.00          97.10        38.60       40.1\n---\n";
        assert_eq!(figure(latency, 1), Some(38.6));
        let rate = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n \
                    4096       4000             310.11             300.02              0.076805\n";
        assert_eq!(figure(rate, 32), Some(76805.0));
        assert_eq!(figure("no table", 1), None);
    }
}

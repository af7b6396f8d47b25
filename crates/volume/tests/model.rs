//! A volume equals a plain byte array, whatever is read, written, discarded and lost.
//!
//! The seed is printed; `CENOTE_SEED` replays it.

mod support;

use cenote_volume::{Health, Mode, Resilience, Volume, VolumeConfig, Worker};
use support::{Cluster, Random, Transport, wait_for_health, wait_until};

const SLAB: u64 = 2 << 20;
const PAGE: u64 = 4096;

/// A volume beside its model.
struct Pair {
    volume: Volume,
    workers: Vec<Worker>,
    model: Vec<u8>,
}

impl Pair {
    fn new(cluster: &Cluster, resilience: Resilience, size_bytes: u64) -> Self {
        let config = VolumeConfig {
            resilience,
            ..cluster.config("plain", size_bytes)
        };
        let volume = Volume::open(config, cluster.connector()).unwrap();
        let workers = (0..2).map(|_| volume.worker().unwrap()).collect();
        Self {
            volume,
            workers,
            model: vec![0; size_bytes as usize],
        }
    }

    /// One random operation on one of the workers.
    fn step(&mut self, random: &mut Random) {
        let worker = &mut self.workers[random.below(2) as usize];
        let len = match random.below(4) {
            0 => 1 + random.below(600),
            1 => PAGE,
            2 => PAGE * (1 + random.below(8)),
            _ => 1 + random.below(70_000),
        } as usize;
        let limit = self.model.len() - len;
        let mut offset = random.below(limit as u64) as usize;
        if random.below(2) == 0 {
            offset -= offset % PAGE as usize;
        }
        let range = offset..offset + len;
        match random.below(8) {
            0 => {
                worker.discard(offset as u64, len as u64).unwrap();
                self.model[range].fill(0);
            }
            1..=4 => {
                let mut bytes = vec![0; len];
                bytes
                    .iter_mut()
                    .for_each(|byte| *byte = random.next() as u8);
                worker.write(offset as u64, &bytes).unwrap();
                self.model[range].copy_from_slice(&bytes);
            }
            _ => {
                let mut bytes = vec![0xee; len];
                worker.read(offset as u64, &mut bytes).unwrap();
                assert!(
                    bytes == self.model[range],
                    "read of {len} bytes at {offset}"
                );
            }
        }
    }

    fn check_all(&mut self) {
        let mut bytes = vec![0xee; self.model.len()];
        self.workers[0].read(0, &mut bytes).unwrap();
        let wrong = bytes
            .iter()
            .zip(&self.model)
            .position(|(ours, model)| ours != model);
        assert_eq!(wrong, None, "first wrong byte");
    }
}

fn seed() -> u64 {
    let seed = std::env::var("CENOTE_SEED")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    eprintln!("replay with CENOTE_SEED={seed}");
    seed
}

fn run_with_losses(transport: Transport, scheme: &str, losses: usize) {
    let resilience = Resilience::of(scheme.parse().unwrap());
    run_in_mode(transport, resilience, losses);
}

/// Random operations with hosts lost and coming back, never more than the scheme survives at a time.
fn run_in_mode(transport: Transport, resilience: Resilience, losses: usize) {
    let mut random = Random(seed());
    let mut cluster = Cluster::start(12, transport, 64 << 20, SLAB);
    let mut pair = Pair::new(&cluster, resilience, 24 << 20);
    for _ in 0..3 {
        for _ in 0..120 {
            pair.step(&mut random);
        }
        for _ in 0..losses {
            let running: Vec<usize> = (0..12).filter(|&host| cluster.is_running(host)).collect();
            let victim = running[random.below(running.len() as u64) as usize];
            cluster.stop(victim);
            for _ in 0..20 {
                pair.step(&mut random);
            }
        }
        pair.check_all();
        wait_for_health(&pair.volume, Health::Healthy);
        pair.check_all();
        for host in 0..12 {
            if !cluster.is_running(host) {
                cluster.restart(host);
            }
        }
        let volume = &pair.volume;
        let all_up = || {
            volume
                .status()
                .unwrap()
                .hosts
                .iter()
                .all(|host| host.connected)
        };
        wait_until(all_up, || format!("{:?}", volume.status().unwrap().hosts));
    }
    assert!(losses == 0 || pair.volume.status().unwrap().counters.slabs_rebuilt > 0);
}

#[test]
fn erasure_coded_over_shm_equals_a_byte_array_across_losses() {
    run_with_losses(Transport::Shm, "rs:8+2", 2);
}

#[test]
fn erasure_coded_over_tcp_equals_a_byte_array_across_losses() {
    run_with_losses(Transport::Tcp, "rs:8+2", 2);
}

#[test]
fn wider_and_narrower_codes_equal_a_byte_array_across_losses() {
    run_with_losses(Transport::Shm, "rs:4+3", 3);
    run_with_losses(Transport::Shm, "rs:2+1", 1);
}

#[test]
fn copies_equal_a_byte_array_across_losses() {
    run_with_losses(Transport::Shm, "mirror:3", 2);
}

#[test]
fn every_mode_equals_a_byte_array_across_losses() {
    for (scheme, mode, delta) in [
        ("rs:4+2", Mode::Detection, 1),
        ("rs:4+4", Mode::Correction, 1),
        ("rs:4+2", Mode::EcOnly, 0),
        ("rs:4+2", Mode::FailureRecovery, 2),
        ("mirror:3", Mode::FailureRecovery, 1),
    ] {
        let resilience = Resilience::new(scheme.parse().unwrap(), mode, delta).unwrap();
        run_in_mode(Transport::Tcp, resilience, 1);
    }
}

#[test]
fn plain_equals_a_byte_array() {
    run_with_losses(Transport::Shm, "plain", 0);
}

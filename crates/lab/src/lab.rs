//! `cenote lab`: experiments that need no cluster of ours, one file each.

mod cache;
mod efactory;
mod history;
mod hydra;
mod infiniswap;
mod kv;
mod latency;
pub mod output;
mod redy;
mod seeds;
mod sim;
mod store;

use anyhow::Result;

/// `lab` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote lab sim --seed 7 --duration 2h
  cenote lab hydra loss --k 8 --r 2 --l 2
  cenote lab efactory write --json")]
pub struct Args {
    #[command(subcommand)]
    lab: Lab,
    /// Also log warnings of simulated hosts and clients, with virtual time
    #[arg(short, long, global = true)]
    verbose: bool,
}

impl Args {
    /// Whether hosts and clients run here that are simulated, in virtual time.
    pub fn simulates(&self) -> bool {
        matches!(
            self.lab,
            Lab::Sim(_) | Lab::Kv(_) | Lab::Cache(_) | Lab::Store(_) | Lab::Latency(_)
        )
    }

    /// Whether what they say is to be seen.
    pub fn is_verbose(&self) -> bool {
        self.verbose
    }
}

#[derive(clap::Subcommand, Debug)]
enum Lab {
    /// Simulate a whole cluster under faults and check every byte
    #[command(after_help = "Examples:
  cenote lab sim --seed 7 --duration 2h
  cenote lab sim --hosts 30 --scheme rs:8+2 --json
  cenote lab sim --swarm
  cenote lab sim --seed 7 -v

Hosts and volumes run their real code; network, time and faults are simulated. The same options give
the same trace hash on every machine. If a guarantee is violated, it prints the seed, the last events
and the command that reproduces it, and exits with 1.")]
    Sim(sim::Args),
    /// Simulate a group of key-value nodes under faults and check linearizability
    #[command(after_help = "Examples:
  cenote lab kv --runs 100
  cenote lab kv --seed 7 --k 4 --m 3 --units 70 --focus recovery
  cenote lab kv --scheme replicated --json
  cenote lab kv --whole-nodes --k 2 --m 1 --runs 20

The group runs its real code; links, views, time, clients and faults are drawn from the seed. Client
histories must be linearizable, and once faults end, parities must match the data. If a guarantee is
violated, it prints the last events, the seed and the command that reproduces it, and exits with
1.")]
    Kv(kv::Args),
    /// Simulate a remote cache whose machines are taken back, die and stall, and check every word
    #[command(after_help = "Examples:
  cenote lab cache --seeds 100
  cenote lab cache --seed 7 --copies 2 --duration 120s

Owner, clients and hosts run their real code; network, time and faults are simulated. An acknowledged
write may be lost only with a region that is reported lost; with two copies, never. If a guarantee is
violated, it prints the last events, the seed and the command that reproduces it, and exits with
1.")]
    Cache(cache::Args),
    /// Crash the object store at every write-back and fence of random workloads, under each scheme
    #[command(after_help = "Example:
  cenote lab store crash --rounds 1000

The store runs its real code; the medium, its crashes and clients are simulated. If a guarantee is
violated, it prints the seed and the crash point, and exits with 1.")]
    Store(store::Args),
    /// Simulate page latencies by scheme, in virtual time
    #[command(after_help = "Examples:
  cenote lab latency
  cenote lab latency --scheme rs:8+2 --scheme rs:4+2 --operations 100000
  cenote lab latency --seed 7 --json

One page at a time over a network with the papers' latencies: a one-sided READ of 512 bytes takes
1.5 us, one of 4 KiB 4 us. Networks: quiet; with stragglers (one message in a hundred is late by 10 us
or more); with background flows through two of the hosts; with both. Volumes and hosts run their real
code. Processor time is not modelled, except for encoding, which is charged in full.")]
    Latency(latency::Args),
    /// Infiniswap's placement, eviction and cost, compared with the paper
    #[command(after_help = "Example:
  cenote lab infiniswap cost

Each experiment has its own --help. Placement, pressure and eviction are the code that hosts and
clients run; machines and programs are models.")]
    Infiniswap(infiniswap::Args),
    /// Hydra's page path, placement and data loss, compared with the paper
    #[command(after_help = "Examples:
  cenote lab hydra ablation
  cenote lab hydra loss --k 8 --r 2 --l 2

Each experiment has its own --help.")]
    Hydra(hydra::Args),
    /// Redy's configurations for SLOs, compared with the paper
    #[command(after_help = "Example:
  cenote lab redy slo --samples 100 --seed 7

Each experiment has its own --help.")]
    Redy(redy::Args),
    /// Simulate eFactory against six other object stores over one-sided verbs
    #[command(after_help = "Examples:
  cenote lab efactory write
  cenote lab efactory scale --value-bytes 4096 --cores 10 --json

Each experiment has its own --help. Clients run the store's own steps for each scheme; network, server
and time are a model. Every figure is simulated.")]
    Efactory(efactory::Args),
    /// Record client operations of a key-value store for a linearizability check
    #[command(after_help = "Example:
  cenote lab history --address 127.0.0.1:11211 --out history.jsonl
  cd tests/porcupine && go run . ../../history.jsonl

The clients speak memcached's protocol and get, set, add, cas, incr and delete a few keys of their own.
A client whose node fails moves to the next one. The program in tests/porcupine checks whether the
history is linearizable, and names the key that is not.")]
    History(history::Args),
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.lab {
        Lab::Sim(args) => sim::run(args),
        Lab::Kv(args) => kv::run(args),
        Lab::Cache(args) => cache::run(args),
        Lab::Store(args) => store::run(args),
        Lab::Efactory(args) => efactory::run(args),
        Lab::Latency(args) => latency::run(args),
        Lab::Infiniswap(args) => infiniswap::run(args),
        Lab::History(args) => history::run(args),
        Lab::Hydra(args) => hydra::run(args),
        Lab::Redy(args) => redy::run(args),
    }
}

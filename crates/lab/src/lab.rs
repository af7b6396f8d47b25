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
    /// Also say what simulated hosts and clients warn of, with the virtual time
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
    /// Simulate a whole cluster under faults, and check every byte
    #[command(after_help = "Examples:
  cenote lab sim --seed 7 --duration 2h
  cenote lab sim --hosts 30 --scheme rs:8+2 --json
  cenote lab sim --swarm
  cenote lab sim --seed 7 -v

The code of hosts and volumes is the real one; network, time and faults are simulated. The same
options give the same trace hash on every machine. Ends with 1 when a promise was broken, after
the seed, what happened last, and the command that repeats it.")]
    Sim(sim::Args),
    /// Simulate a coding group of key-value nodes under faults, and check what clients see
    #[command(after_help = "Examples:
  cenote lab kv --runs 100
  cenote lab kv --seed 7 --k 4 --m 3 --units 70 --focus recovery
  cenote lab kv --scheme replicated --json
  cenote lab kv --whole-nodes --k 2 --m 1 --runs 20

The code of the group is the real one; links, views, time, clients and faults are drawn from the
seed. What clients saw has to be linearizable, and once faults end parities have to be the sums
of the data. Ends with 1 when a promise was broken, after what happened last, the seed, and the
command that repeats it.")]
    Kv(kv::Args),
    /// Simulate a remote cache whose machines are taken back, die and stop, and check every word
    #[command(after_help = "Examples:
  cenote lab cache --seeds 100
  cenote lab cache --seed 7 --copies 2 --duration 120s

The code of owner, clients and hosts is the real one; network, time and faults are simulated. No
acknowledged write may be lost but with a region that is told as lost, and with two copies none. Ends
with 1 when a promise was broken, after what happened last, the seed, and the command that repeats it.")]
    Cache(cache::Args),
    /// Crash the object store at every boundary of random workloads, under each scheme
    #[command(after_help = "Example:
  cenote lab store crash --rounds 1000

The code of the store is the real one; the medium, its crashes and clients are simulated. Ends with 1
when a promise was broken, after the seed and the boundary.")]
    Store(store::Args),
    /// Latencies of a page by scheme, in virtual time: every figure is simulated
    #[command(after_help = "Examples:
  cenote lab latency
  cenote lab latency --scheme rs:8+2 --scheme rs:4+2 --operations 100000
  cenote lab latency --seed 7 --json

One page at a time over a network of the papers' figures: a one-sided READ of 512 bytes takes
1.5 us, one of 4 KiB 4 us. Networks: quiet; with stragglers (one message of a hundred is late by
10 us or more); with flows of others through two of the hosts; with both. The code of volumes and
hosts is the real one. Processors cost nothing but for encoding, which is charged in full.")]
    Latency(latency::Args),
    /// Infiniswap's placement, eviction and cost, beside the paper's figures
    #[command(after_help = "Example:
  cenote lab infiniswap cost

Each experiment has --help of its own. Placement, pressure and eviction are the code that hosts
and clients run; machines and programs are models.")]
    Infiniswap(infiniswap::Args),
    /// Hydra's page path, placement and loss, beside the paper's figures
    #[command(after_help = "Examples:
  cenote lab hydra ablation
  cenote lab hydra loss --k 8 --r 2 --l 2

Each experiment has --help of its own.")]
    Hydra(hydra::Args),
    /// Redy's configurations for SLOs, beside the paper's figures
    #[command(after_help = "Example:
  cenote lab redy slo --samples 100 --seed 7

Each experiment has --help of its own.")]
    Redy(redy::Args),
    /// eFactory beside six other ways to keep objects behind one-sided verbs: every figure is simulated
    #[command(after_help = "Examples:
  cenote lab efactory write
  cenote lab efactory scale --value-bytes 4096 --cores 10 --json

Each experiment has --help of its own. What clients do are the steps that the store has for each scheme;
network, server and time are a model.")]
    Efactory(efactory::Args),
    /// Record what clients of a key-value store asked and were answered, to be judged
    #[command(after_help = "Example:
  cenote lab history --address 127.0.0.1:11211 --out history.jsonl
  cd tests/porcupine && go run . ../../history.jsonl

The clients speak memcached's protocol and get, set, add, cas, incr and delete a few keys that are
their own. A client whose node goes turns to the next. The program in tests/porcupine says whether
the history is linearizable, and which key is not.")]
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

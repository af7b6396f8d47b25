//! Rebuilt bytes per second of one host over `shm` or `tcp`, beside memcpy on one core.
//!
//! `cargo run --release -p cenote-host --example fill_speed [shm|tcp] [k] [huge|small] [compared]`
//!
//! `compared`: one source more than k, as of volumes that compare or whose pages have tags.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use cenote_host::Config;
use cenote_pool::control::{FILL_BYTES_MAX, FillResult, Reply, Request, Source};
use support::{Fabric, Host, Lab};

const SLAB_BYTES: u64 = 64 << 20;
/// Fills under way at the same time, so that the filler never waits for a request.
const OUTSTANDING: usize = 4;
/// Fills of the whole slab. In the first, small pages are mapped for the first time.
const ROUNDS: usize = 9;

fn main() {
    let mut args = std::env::args().skip(1);
    let fabric = match args.next().as_deref() {
        None | Some("shm") => Fabric::Shm,
        Some("tcp") => Fabric::Tcp,
        Some(other) => panic!("{other}: shm or tcp"),
    };
    let k: u8 = args
        .next()
        .map_or(8, |text| text.parse().expect("a number of data splits"));
    let pages = args.next().unwrap_or_else(|| "huge".into());
    let compares = args.next().is_some_and(|text| text == "compared");
    let lab = Lab::new(fabric);
    let config = |name: &str| Config {
        memory_bytes: SLAB_BYTES,
        slab_bytes: SLAB_BYTES,
        huge_pages: pages == "huge",
        ..lab.config(name, 1)
    };
    let hosts: Vec<_> = (0..k + u8::from(compares))
        .map(|h| Host::start(config(&format!("h{h}"))))
        .collect();
    let mut sources = Vec::new();
    // The split after the data splits is the one that is filled.
    for (host, split) in hosts.iter().zip((0..k).chain([k + 1])) {
        let mut client = lab.client(host, 1);
        let window = client.map(1, 0);
        let remote = client.attach(window).unwrap();
        let len_bytes = usize::try_from(SLAB_BYTES).unwrap();
        let bytes = match compares {
            // What is compared must be of one code word.
            true => vec![0; len_bytes],
            false => support::noise(split.into(), len_bytes),
        };
        client.write(&remote, 0, &bytes);
        sources.push(Source {
            split,
            address: host.address.to_string(),
            window,
        });
    }
    // The one filler that has work: those of the sources sleep.
    let target = Host::start(config("target"));
    let mut client = lab.client(&target, 1);
    let window = client.map(1, 0);
    let mut copy = Copy::new();
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        let before = copy.bytes_per_s();
        let (wall, cpu) = (Instant::now(), cpu_s("filler"));
        let offsets: Vec<u64> = (0..SLAB_BYTES).step_by(FILL_BYTES_MAX as usize).collect();
        let mut asked = offsets.iter();
        let mut ask = |client: &mut support::Client| {
            if let Some(&offset) = asked.next() {
                client.send(&Request::Fill {
                    request: offset,
                    target: window,
                    split: k,
                    k,
                    r: 2,
                    offset,
                    len_bytes: FILL_BYTES_MAX,
                    sources: sources.clone(),
                });
            }
        };
        (0..OUTSTANDING).for_each(|_| ask(&mut client));
        for &request in &offsets {
            let done = Reply::Filled {
                request,
                result: FillResult::Done,
            };
            assert_eq!(client.reply(), done);
            ask(&mut client);
        }
        let filled = SLAB_BYTES as f64 / (cpu_s("filler") - cpu);
        let elapsed = SLAB_BYTES as f64 / wall.elapsed().as_secs_f64();
        let copied = (before + copy.bytes_per_s()) / 2.0;
        println!(
            "{fabric:?} k={k} round {round}: fill {:.0} MB/s ({:.0} by the wall clock), \
             memcpy {:.0} MB/s, ratio {:.3}",
            filled / 1e6,
            elapsed / 1e6,
            copied / 1e6,
            filled / copied
        );
        ratios.push(filled / copied);
    }
    println!(
        "{fabric:?} k={k}: median ratio {:.3} of {ROUNDS}",
        median(ratios)
    );
}

/// CPU time so far of the threads of one name: on a machine that does other things as well, the clock on
/// the wall measures those.
fn cpu_s(thread: &str) -> f64 {
    let folder = std::fs::read_dir("/proc/self/task").expect("a Linux system");
    let spent = folder.flatten().filter_map(|task| {
        let read = |file| std::fs::read_to_string(task.path().join(file)).ok();
        let found = read("comm")?.trim_end() == thread;
        let spent_ns = read("schedstat")?.split(' ').next()?.parse::<u64>().ok()?;
        found.then_some(spent_ns as f64 / 1e9)
    });
    spent.sum()
}

/// Two buffers that no cache holds, written before they are timed.
struct Copy {
    source: Vec<u8>,
    target: Vec<u8>,
}

impl Copy {
    fn new() -> Self {
        let source = vec![1_u8; usize::try_from(4 * SLAB_BYTES).unwrap()];
        let target = vec![2_u8; source.len()];
        Self { source, target }
    }

    /// Copies once, timed by the clock of this thread.
    fn bytes_per_s(&mut self) -> f64 {
        let started = thread_cpu_s();
        self.target
            .copy_from_slice(std::hint::black_box(&self.source));
        std::hint::black_box(&self.target);
        self.source.len() as f64 / (thread_cpu_s() - started)
    }
}

/// CPU time of this thread, exact; what `/proc` says of a running thread is as of the last tick.
#[allow(unsafe_code, reason = "the system call takes a pointer")]
fn thread_cpu_s() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is exclusive and lives through the call.
    let result = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(result, 0);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

//! What the protection of page traffic costs: processor time of both ends for each verb over
//! loopback TCP, for each protection, interleaved so that whatever else the machine does meets all.
//!
//! `cargo run --release -p cenote-fabric --example tcp_protection [ROUNDS]`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_fabric::{
    ClientId, ClusterKey, CompletionQueue, Connector, Endpoint, Error, Hello, Incoming, Listen,
    Listener, Region, RegionOptions, RemoteWindow, Rights, Session, Status, Time, WireProtection,
    connector_with, wait,
};

const MEMORY_BYTES: u64 = 64 << 20;
/// Verbs of one slice.
const VERBS: u64 = 8_000;
const DEPTHS: [u64; 2] = [1, 32];
const SIZES: [usize; 3] = [512, 4096, 65536];

struct Case {
    is_write: bool,
    bytes: usize,
    depth: u64,
    /// Per protection, each round's processor time and wall time for each verb, in us.
    taken: Vec<Vec<(f64, f64)>>,
}

struct Client {
    endpoint: Box<dyn Endpoint>,
    // Ends the data connection when dropped.
    _session: Box<dyn Session>,
    window: RemoteWindow,
}

fn main() -> Result<(), Error> {
    let rounds = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(15);
    let key = ClusterKey::generate()?;
    let address = "tcp:127.0.0.1:0".parse()?;
    let mut listener = Listener::bind_with(&[address], &key, WireProtection::Plain, Vec::new())?;
    let region = Arc::new(Region::create(
        "cost",
        MEMORY_BYTES,
        RegionOptions::default(),
    )?);
    region.populate()?;
    let window = listener.register(region, Rights::ALL)?;
    let address = listener.addresses().remove(0);
    let stop = Arc::new(AtomicBool::new(false));
    let (theirs, waker) = (Arc::clone(&stop), listener.waker());
    let host = std::thread::spawn(move || {
        let mut events = Vec::new();
        while !theirs.load(Ordering::Relaxed) {
            if let Err(error) = listener.poll(Some(Duration::from_secs(1)), &mut events) {
                eprintln!("host: {error}");
            }
            events.clear();
        }
    });
    let mut clients = Vec::new();
    for (number, protection) in (0..).zip(WireProtection::ALL) {
        let hello = Hello {
            client: ClientId(number),
            name: protection.to_string(),
        };
        let connector = connector_with(key.clone(), protection);
        let mut session = connector.connect(&address, &hello, Duration::from_secs(5))?;
        session.attach(window)?;
        let window = loop {
            if let Some(Incoming::Attached(_, window)) = session.receive()? {
                break window?;
            }
            wait(&session.fd().into_iter().collect::<Vec<_>>(), None)?;
        };
        let endpoint = session.endpoint(Duration::from_secs(5))?;
        clients.push(Client {
            endpoint,
            _session: session,
            window,
        });
    }
    let mut cases = Vec::new();
    for is_write in [false, true] {
        for bytes in SIZES {
            for depth in DEPTHS {
                let taken = vec![Vec::new(); clients.len()];
                cases.push(Case {
                    is_write,
                    bytes,
                    depth,
                    taken,
                });
            }
        }
    }
    for round in 0..=rounds {
        for case in &mut cases {
            for (client, taken) in clients.iter_mut().zip(&mut case.taken) {
                let verbs = VERBS.min((64 << 20) / case.bytes as u64);
                let (cpu, wall) = (processor_us(), Instant::now());
                run(client, case.is_write, case.bytes, case.depth, verbs)?;
                let cpu = (processor_us() - cpu) / verbs as f64;
                let wall = wall.elapsed().as_secs_f64() * 1e6 / verbs as f64;
                // The first round warms up.
                if round > 0 {
                    taken.push((cpu, wall));
                }
            }
        }
    }
    println!(
        "processor time of both ends for each verb, us: median of {rounds} rounds; and time\n"
    );
    println!(
        "| verb | depth | plain | authenticated | encrypted | encrypted / plain | time plain | time encrypted |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for case in &cases {
        let cpu = |of: usize| median(case.taken[of].iter().map(|taken| taken.0));
        let wall = |of: usize| median(case.taken[of].iter().map(|taken| taken.1));
        println!(
            "| {} {} B | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} | {:.2} |",
            if case.is_write { "WRITE" } else { "READ" },
            case.bytes,
            case.depth,
            cpu(0),
            cpu(1),
            cpu(2),
            cpu(2) / cpu(0),
            wall(0),
            wall(2),
        );
    }
    stop.store(true, Ordering::Relaxed);
    waker.wake();
    host.join().expect("the host does not panic");
    Ok(())
}

fn run(
    client: &mut Client,
    is_write: bool,
    bytes: usize,
    depth: u64,
    verbs: u64,
) -> Result<(), Error> {
    let mut buffers = vec![vec![7_u8; bytes]; depth as usize];
    let mut queue = CompletionQueue::default();
    let (mut posted, mut done) = (0, 0);
    while done < verbs {
        while posted < verbs && posted - done < depth {
            let buffer = &mut buffers[(posted % depth) as usize];
            let offset = ((posted * 7919 * bytes as u64) % (MEMORY_BYTES - bytes as u64)) & !4095;
            let (start, endpoint) = (buffer.as_mut_ptr(), &mut client.endpoint);
            // SAFETY: the buffers live until all is completed, below, and each has one verb at a time
            // since verbs complete in order.
            unsafe {
                if is_write {
                    endpoint.post_write(
                        &client.window,
                        offset,
                        start,
                        bytes,
                        None,
                        posted,
                        &mut queue,
                    )
                } else {
                    endpoint.post_read(&client.window, offset, start, bytes, posted, &mut queue)
                }
            }
            .expect("the depth is below the queue's");
            posted += 1;
        }
        client.endpoint.flush(&mut queue);
        wait(&client.endpoint.fd().into_iter().collect::<Vec<_>>(), None)?;
        client.endpoint.poll(Time::now(), &mut queue);
        while let Some(completion) = queue.pop() {
            assert_eq!(completion.status, Status::Ok);
            done += 1;
        }
    }
    Ok(())
}

/// User and system time of this process, both ends.
fn processor_us() -> f64 {
    // SAFETY: all-zero is a valid `rusage` for the call to fill.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is exclusive and lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let us = |time: libc::timeval| time.tv_sec as f64 * 1e6 + time.tv_usec as f64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

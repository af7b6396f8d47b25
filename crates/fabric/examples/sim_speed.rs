//! How many 512-byte reads a second of real time the simulated network carries: one client, thirty
//! hosts, sixteen reads outstanding on each.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_fabric::sim::{Config, Net};
use cenote_fabric::{
    Address, ClientId, CompletionQueue, Connector, Hello, Incoming, Listen, Region, RegionOptions,
    Rights, Status,
};

const HOSTS: u64 = 30;
const DEPTH: u64 = 16;
const READ_BYTES: usize = 512;
const WINDOW_BYTES: u64 = 4 << 20;
const READS: u64 = 4_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let net = Net::new(1, Config::default());
    let connector = net.client("client");
    let mut queue = CompletionQueue::with_capacity((HOSTS * DEPTH) as usize);
    let mut landings = vec![[0_u8; READ_BYTES]; (HOSTS * DEPTH) as usize];
    let mut lanes = Vec::new();
    for number in 0..HOSTS {
        let address = Address::Shm(format!("/sim/{number}").into());
        let mut listener = net.host(address.clone(), "host");
        let region = Region::create("sim_speed", WINDOW_BYTES, RegionOptions::default())?;
        region.populate()?;
        let window = listener.register(Arc::new(region), Rights::ALL)?;
        let hello = Hello {
            client: ClientId(1),
            name: "sim_speed".into(),
        };
        let mut session = connector.connect(&address, &hello, Duration::ZERO)?;
        session.attach(window)?;
        let attached = loop {
            if let Some(Incoming::Attached(_, attached)) = session.receive()? {
                break attached?;
            }
            assert!(net.step(), "nothing is under way");
            listener.poll(None, &mut Vec::new())?;
        };
        lanes.push((
            listener,
            session.endpoint(Duration::ZERO)?,
            session,
            attached,
        ));
    }

    let started = (Instant::now(), net.now());
    let (mut posted, mut ended) = (0, 0);
    while ended < READS {
        for (lane, (_, endpoint, _, window)) in lanes.iter_mut().enumerate() {
            while posted < READS && endpoint.outstanding() < DEPTH as usize {
                let offset = posted * READ_BYTES as u64 % WINDOW_BYTES;
                let landing = &mut landings[lane * DEPTH as usize + (posted % DEPTH) as usize];
                // SAFETY: landings live to the end of `main`. Two reads of a lane may share one:
                // nobody looks at the bytes.
                unsafe {
                    let start = landing.as_mut_ptr();
                    endpoint.post_read(window, offset, start, READ_BYTES, posted, &mut queue)?;
                }
                posted += 1;
            }
            endpoint.flush(&mut queue);
        }
        // About as long as a read takes: every lane is polled once for several ends.
        net.advance_to(net.now().after(Duration::from_nanos(1500)));
        for (_, endpoint, ..) in &mut lanes {
            endpoint.poll(net.now(), &mut queue);
        }
        while let Some(end) = queue.pop() {
            assert_eq!(end.status, Status::Ok);
            ended += 1;
        }
    }
    let real = started.0.elapsed();
    let simulated = net.now().since(started.1);
    println!(
        "{READS} reads of {READ_BYTES} bytes over {HOSTS} hosts: {} verbs/s of real time \
         ({} ns each), simulated {:?}, fingerprint {:016x}",
        u128::from(READS) * 1_000_000_000 / real.as_nanos(),
        real.as_nanos() / u128::from(READS),
        simulated,
        net.trace_hash(),
    );
    Ok(())
}

//! Somebody without the key on the network: changes bytes on their way, or floods hosts with connections.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use cenote_fabric::Address;
use cenote_volume::{Health, PAGE_BYTES, Volume};
use support::{
    Cluster, Random, Transport, assert_pages, page, wait_for, wait_for_health, wait_until,
};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;
const PAGES: u64 = SIZE / PAGE_BYTES as u64;

fn target(address: &Address) -> SocketAddr {
    match address {
        Address::Tcp(target) => target.socket().expect("an address"),
        other => panic!("{other} is not of tcp"),
    }
}

/// Passes connections on to a host, and flips a bit of what goes by now and then.
struct Relay {
    address: SocketAddr,
    is_changing: Arc<AtomicBool>,
    changed: Arc<AtomicU64>,
}

impl Relay {
    fn start(host: SocketAddr, seed: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            is_changing: Arc::default(),
            changed: Arc::default(),
        };
        let (is_changing, changed) = (relay.is_changing.clone(), relay.changed.clone());
        // Ends with the test's process; each connection's threads end with it.
        std::thread::spawn(move || {
            let mut random = Random(seed);
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(host) else {
                    continue;
                };
                let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                for (from, to) in [(near, far), (far_too, near_too)] {
                    let flips = Random(random.next());
                    let (is_changing, changed) = (is_changing.clone(), changed.clone());
                    std::thread::spawn(move || carry(from, to, flips, &is_changing, &changed));
                }
            }
        });
        relay
    }
}

fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    mut random: Random,
    is_changing: &AtomicBool,
    changed: &AtomicU64,
) {
    let mut buffer = [0; 16 << 10];
    let mut until_next = random.below(50_000);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if until_next >= count as u64 {
            until_next -= count as u64;
        } else if is_changing.load(Ordering::Relaxed) {
            let at = usize::try_from(until_next).unwrap();
            buffer[at] ^= 1 << random.below(8);
            changed.fetch_add(1, Ordering::Relaxed);
            until_next = random.below(200_000);
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // One of them may be closed already, which is as well.
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

#[test]
fn bits_that_flip_on_the_way_to_a_host_are_never_read_and_the_host_is_found_again() {
    let seed = 20_261_123;
    println!("seed {seed}");
    // As many hosts as there are splits: the volume cannot do without the one behind the relay.
    let cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
    let relay = Relay::start(target(&cluster.configs[0].address), seed);
    let mut config = cluster.config("rs:2+1", SIZE);
    config.hosts[0].address = Address::Tcp(relay.address.into());
    let volume = Volume::open(config, cluster.connector()).unwrap();
    let mut worker = volume.worker().unwrap();
    let mut random = Random(seed);
    let mut rounds = vec![0; PAGES as usize];
    for index in 0..PAGES {
        worker
            .write(index * PAGE_BYTES as u64, &page(index, 0))
            .unwrap();
    }
    relay.is_changing.store(true, Ordering::Relaxed);
    let mut done = 0_u64;
    while relay.changed.load(Ordering::Relaxed) < 8 {
        let index = random.below(PAGES);
        let offset = index * PAGE_BYTES as u64;
        if random.below(2) == 0 {
            rounds[index as usize] += 1;
            let bytes = page(index, rounds[index as usize]);
            worker.write(offset, &bytes).unwrap();
        } else {
            let mut bytes = vec![0; PAGE_BYTES];
            worker.read(offset, &mut bytes).unwrap();
            assert!(
                bytes == page(index, rounds[index as usize]),
                "page {index} is another"
            );
        }
        done += 1;
        assert!(done < 10_000_000, "the relay changed {:?}", relay.changed);
    }
    relay.is_changing.store(false, Ordering::Relaxed);
    wait_for_health(&volume, Health::Healthy);
    wait_for(&volume, |status| status.hosts[0].connected);
    for index in 0..PAGES {
        let mut bytes = vec![0; PAGE_BYTES];
        worker.read(index * PAGE_BYTES as u64, &mut bytes).unwrap();
        assert!(bytes == page(index, rounds[index as usize]), "page {index}");
    }
}

/// Holds so many connections to a host, and makes each again that the host closes.
struct Flood {
    stop: Arc<AtomicBool>,
    is_there: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn start(host: SocketAddr, count: usize) -> Self {
        let (stop, is_there) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let (stopped, there) = (Arc::clone(&stop), Arc::clone(&is_there));
        let thread = std::thread::spawn(move || {
            let mut held: Vec<TcpStream> = Vec::new();
            while !stopped.load(Ordering::Acquire) {
                held.retain(|stream| {
                    let mut byte = [0];
                    stream.set_nonblocking(true).is_ok()
                        && matches!(stream.peek(&mut byte), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
                });
                while held.len() < count && !stopped.load(Ordering::Acquire) {
                    let Ok(stream) = TcpStream::connect(host) else {
                        break;
                    };
                    held.push(stream);
                    if held.len().is_multiple_of(100) {
                        break;
                    }
                }
                there.store(true, Ordering::Release);
            }
        });
        Self {
            stop,
            is_there,
            thread: Some(thread),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

#[test]
fn a_volume_opens_and_serves_while_strangers_flood_a_host_that_it_needs() {
    for count in [200, 1000] {
        let cluster = Cluster::start(3, Transport::Tcp, 16 << 20, SLAB);
        let flood = Flood::start(target(&cluster.configs[0].address), count);
        wait_until(
            || flood.is_there.load(Ordering::Acquire),
            || "no flood".to_owned(),
        );
        let volume = cluster.volume("rs:2+1", SIZE);
        let mut worker = volume.worker().unwrap();
        for index in 0..PAGES {
            worker
                .write(index * PAGE_BYTES as u64, &page(index, 1))
                .unwrap();
        }
        wait_for_health(&volume, Health::Healthy);
        drop(worker);
        assert_pages(&volume, PAGES, 1);
        drop(flood);
    }
}

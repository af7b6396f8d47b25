//! A cache on hosts that are threads of this process: notices, losses, and checkpoints.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_cache::checkpoint::format::Reader;
use cenote_cache::client::{Client, Ended, FellBack, Geometry, Lost};
use cenote_cache::connections::Attached;
use cenote_cache::links::{Caller, HostConfig, Threads};
use cenote_cache::manager::{CheckpointError, Made, Manager, News};
use cenote_cache::owner::{Owner, Renewal, Settings};
use cenote_fabric::{ClientId, ClusterKey, Connector, Hello, Time, Waker, connector, wait};
use cenote_host::{Config, Daemon};
use cenote_test_kit::host_config;

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const SLAB_BYTES: u64 = 256 << 10;
const REGION_BYTES: u64 = 2 * SLAB_BYTES;
const CLIENT: u64 = 1;

struct Host {
    config: HostConfig,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn start(name: &str, key: &ClusterKey, grace: Duration, slabs: u64) -> Self {
        let address = "tcp:127.0.0.1:0".parse().unwrap();
        let mut daemon = Daemon::start(Config {
            clients_max: 8,
            ..host_config(name, address, slabs, SLAB_BYTES, key)
        })
        .unwrap();
        daemon.set_grace(grace);
        let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            daemon.run(&stopped).unwrap();
            // As when its process ends: nobody listens any more.
            drop(daemon);
        });
        let name = name.to_owned();
        Self {
            config: HostConfig {
                domain: name.clone(),
                name,
                address,
            },
            waker,
            stop,
            thread: Some(thread),
        }
    }

    /// As SIGTERM does.
    fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.tell_to_stop();
        // A second one ends those that still have time.
        if let Some(thread) = self.thread.take()
            && thread.is_finished()
        {
            thread.join().unwrap();
        }
    }
}

/// Hosts, an owner and a client, all driven by this thread.
struct Rig {
    manager: Manager,
    attached: Attached,
    hosts: Vec<Host>,
    asked_at: Time,
    tokens: u64,
    ended: VecDeque<Ended>,
    lost: Vec<Lost>,
    fallen: Vec<FellBack>,
}

fn caller(key: &ClusterKey, id: u128, with_data: bool) -> Caller {
    let connector: Arc<dyn Connector> = Arc::new(connector(key.clone()));
    Caller {
        connector,
        hello: Hello {
            client: ClientId(id),
            name: "test".into(),
        },
        with_data,
    }
}

impl Rig {
    /// `count` hosts with a grace period, and a cache of `regions` regions on all but the last of them.
    fn new(count: usize, regions: u32, grace: Duration) -> Self {
        let key = ClusterKey::generate().unwrap();
        // The first ones are full with it; the last has room for all.
        let slabs = 2 * u64::from(regions).div_ceil(count as u64 - 1);
        let slabs = |index| if index + 1 < count { slabs } else { 32 };
        let hosts: Vec<Host> = (0..count)
            .map(|index| Host::start(&format!("h{index}"), &key, grace, slabs(index)))
            .collect();
        let configs: Vec<HostConfig> = hosts.iter().map(|host| host.config.clone()).collect();
        let settings = Settings {
            cache: 7,
            slab_bytes: SLAB_BYTES,
            slabs_per_region: 2,
            copies: 1,
            give_up_after: DEADLINE,
        };
        let now = Time::now();
        let mut owner = Owner::new(settings, regions, &Manager::domains(&configs), now);
        owner.handle_notice(now, count - 1, None);
        assert!(owner.handle_client_joined(now, CLIENT));
        let dial = Box::new(Threads::new(caller(&key, 1, false)));
        let mut manager = Manager::new(owner, settings, 1, configs.clone(), dial);
        manager.enable_checkpoints(caller(&key, 3, true)).unwrap();
        let geometry = Geometry {
            slab_bytes: SLAB_BYTES,
            slabs_per_region: 2,
        };
        let client = Client::new(geometry, count, DEADLINE);
        let dial = Box::new(Threads::new(caller(&key, 2, true)));
        let attached = Attached::new(client, configs, dial, 16);
        let mut rig = Self {
            manager,
            attached,
            hosts,
            asked_at: Time(0),
            tokens: 0,
            ended: VecDeque::new(),
            lost: Vec::new(),
            fallen: Vec::new(),
        };
        rig.until("all regions", |rig| {
            rig.manager.owner.is_settled() && rig.attached.client.regions() == regions as usize
        });
        let now = Time::now();
        rig.manager.owner.handle_notice_withdrawn(now, count - 1);
        rig
    }

    fn turn(&mut self) {
        let now = Time::now();
        self.manager.step(now);
        self.pass_on(now);
        if now.since(self.asked_at) >= Duration::from_millis(300) {
            self.asked_at = now;
            let renewal = self.manager.owner.handle_client_alive(now, CLIENT);
            self.manager.flush(now);
            self.pass_on(now);
            match renewal {
                Renewal::Granted => self.attached.client.handle_lease(now, now),
                Renewal::Withheld => {}
                Renewal::Superseded => panic!("there is one owner"),
                Renewal::Unknown => {
                    assert!(self.manager.owner.handle_client_joined(now, CLIENT));
                }
            }
        }
        self.attached.step(now);
        let client = &mut self.attached.client;
        let mut ended = Vec::new();
        client.poll(now, &mut ended);
        self.ended.extend(ended);
        self.lost.extend(std::iter::from_fn(|| client.take_lost()));
        self.fallen
            .extend(std::iter::from_fn(|| client.take_fallen_back()));
        while let Some((region, generation)) = client.take_doubt() {
            let owner = &mut self.manager.owner;
            owner.handle_doubt(now, CLIENT, region as usize, generation);
        }
        while let Some((region, generation)) = client.take_known() {
            let region = region as usize;
            let owner = &mut self.manager.owner;
            owner.handle_known(now, CLIENT, region, generation);
        }
        while let Some(host) = self.attached.client.take_trouble() {
            self.manager.handle_trouble(host);
        }
        let mut fds: Vec<_> = self.manager.fds().map(|(fd, _)| fd).collect();
        fds.extend(self.attached.client.fds());
        wait(&fds, Some(Duration::from_millis(2))).unwrap();
    }

    fn pass_on(&mut self, now: Time) {
        while let Some(news) = self.manager.take_news() {
            match news {
                News::Record => self.manager.confirm_record(now),
                News::Tell { entry, .. } => self.attached.client.handle_entry(entry),
            }
        }
    }

    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(
                begun.elapsed() < DEADLINE,
                "{what}: never; {:?}, {:?}, {:?}",
                self.lost,
                self.fallen,
                self.manager.owner.entries()
            );
            self.turn();
        }
    }

    /// Begins a write; its token.
    fn begin_write(&mut self, address: u64, bytes: Vec<u8>) -> u64 {
        self.tokens += 1;
        let (now, bytes) = (Time::now(), Bytes::from(bytes));
        let client = &mut self.attached.client;
        client
            .submit_write(now, address, bytes, self.tokens)
            .unwrap();
        self.tokens
    }

    fn write(&mut self, address: u64, bytes: Vec<u8>) {
        self.begin_write(address, bytes);
        self.until("a write", |rig| !rig.ended.is_empty());
        self.ended.pop_front().unwrap().result.unwrap();
    }

    fn read(&mut self, address: u64, len: usize) -> Vec<u8> {
        let buffer = BytesMut::zeroed(len);
        let client = &mut self.attached.client;
        client.submit_read(Time::now(), address, buffer, 0).unwrap();
        self.until("a read", |rig| !rig.ended.is_empty());
        let ended = self.ended.pop_front().unwrap();
        ended.result.unwrap();
        ended.buffer.to_vec()
    }

    fn fill(&mut self, regions: u64) {
        for region in 0..regions {
            self.write(region * REGION_BYTES, content(region));
        }
    }

    fn regions_on(&self, host: usize) -> Vec<u32> {
        let on = |copy: &cenote_cache::owner::Copy| copy.host == host;
        let entries = self.manager.owner.entries();
        let there = entries.iter().filter(|entry| entry.copies.iter().any(on));
        there.map(|entry| entry.region).collect()
    }

    fn checkpoint(&mut self, path: &Path) -> Made {
        self.try_checkpoint(path).unwrap()
    }

    fn try_checkpoint(&mut self, path: &Path) -> Result<Made, CheckpointError> {
        self.manager.begin_checkpoint(path).unwrap();
        let mut end = None;
        self.until("the checkpoint", |rig| {
            end = rig.manager.take_checkpoint();
            end.is_some()
        });
        end.unwrap()
    }

    /// Waits until these are lost and the cache is whole again. What is lost then: others besides, where the
    /// thread of a second host had no processor for so long that the host was taken for dead.
    fn wait_until_lost(&mut self, regions: &[u32]) -> BTreeSet<u32> {
        let lost = |rig: &Self| rig.lost.iter().map(|lost| lost.region).collect();
        let regions: BTreeSet<u32> = regions.iter().copied().collect();
        self.until("losses", |rig| regions.is_subset(&lost(rig)));
        self.until("new memory", |rig| rig.manager.owner.is_settled());
        lost(self)
    }
}

fn content(region: u64) -> Vec<u8> {
    let bytes = (0..REGION_BYTES).map(|at| (at * 7 + region * 13 + (at >> 8)) as u8);
    bytes.collect()
}

#[test]
fn three_hosts_that_are_taken_back_in_one_notice_take_nothing_with_them() {
    let mut rig = Rig::new(4, 6, Duration::from_secs(3600));
    rig.fill(6);
    for host in &rig.hosts[..3] {
        host.tell_to_stop();
    }
    // They end once nobody holds anything, long before their time is over.
    rig.until("the hosts' end", |rig| {
        rig.hosts[..3].iter().all(Host::has_ended)
    });
    rig.until("rest", |rig| rig.manager.owner.is_settled());
    assert_eq!(rig.regions_on(3).len(), 6);
    for region in 0..6 {
        let bytes = rig.read(region * REGION_BYTES, content(region).len());
        assert!(bytes == content(region), "region {region}");
    }
    assert!(rig.lost.is_empty());
}

#[test]
fn what_a_host_takes_with_it_is_told_by_region() {
    let mut rig = Rig::new(3, 4, Duration::ZERO);
    rig.fill(4);
    let gone = rig.regions_on(0);
    assert!(!gone.is_empty() && gone.len() < 4, "{gone:?}");
    rig.hosts[0].tell_to_stop();
    let gone = rig.wait_until_lost(&gone);
    for region in 0..4 {
        let bytes = rig.read(region * REGION_BYTES, content(region).len());
        let is_lost = gone.contains(&u32::try_from(region).unwrap());
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        assert!(if is_lost {
            is_zero
        } else {
            bytes == content(region)
        });
    }
    assert!(rig.fallen.is_empty());
}

#[test]
fn a_checkpoint_does_not_replace_the_one_that_alone_has_a_lost_region() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let mut rig = Rig::new(2, 2, Duration::ZERO);
    rig.fill(2);
    assert_eq!(rig.checkpoint(&path).regions, 2);
    let made = std::fs::read(&path).unwrap();
    // No host has room for what is lost.
    for host in rig.hosts.iter().rev() {
        host.tell_to_stop();
    }
    rig.until("losses", |rig| rig.lost.len() >= 2);
    let error = rig.try_checkpoint(&path).unwrap_err();
    let is_named = |error: &CheckpointError| matches!(error, CheckpointError::Region { .. });
    assert!(is_named(&error), "{error}");
    assert!(std::fs::read(&path).unwrap() == made);
}

#[test]
fn a_region_that_is_lost_comes_back_from_the_checkpoint_and_that_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let mut rig = Rig::new(3, 4, Duration::ZERO);
    rig.fill(4);
    let made = rig.checkpoint(&path);
    assert_eq!(made.regions, 4);
    let reader = Reader::open(std::fs::File::open(&path).unwrap()).unwrap();
    let taken: Vec<u64> = reader.saved().iter().map(|saved| saved.taken_ms).collect();
    // Written afterwards: lost with its host, kept elsewhere.
    for region in 0..4 {
        rig.write(region * REGION_BYTES, vec![1; 100]);
    }
    let gone = rig.regions_on(0);
    rig.hosts[0].tell_to_stop();
    let gone = rig.wait_until_lost(&gone);
    rig.until("what fell back", |rig| rig.fallen.len() >= gone.len());
    for fell_back in &rig.fallen {
        assert_eq!(fell_back.taken_ms, taken[fell_back.region as usize]);
        assert!(gone.contains(&fell_back.region));
    }
    for region in 0..4 {
        let bytes = rig.read(region * REGION_BYTES, content(region).len());
        let mut expected = content(region);
        if !gone.contains(&u32::try_from(region).unwrap()) {
            expected[..100].fill(1);
        }
        assert!(bytes == expected, "region {region}");
    }
}

#[test]
fn a_region_whose_checkpoint_is_damaged_comes_back_empty() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let mut rig = Rig::new(2, 1, Duration::ZERO);
    rig.fill(1);
    rig.checkpoint(&path);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    rig.hosts[0].tell_to_stop();
    rig.wait_until_lost(&[0]);
    let bytes = rig.read(0, content(0).len());
    assert!(
        bytes.iter().all(|&byte| byte == 0),
        "none of what was read before"
    );
    assert!(rig.fallen.is_empty());
}

#[test]
fn a_region_that_is_cut_off_before_a_checkpoint_was_read_is_none_of_it() {
    let mut rig = Rig::new(2, 1, Duration::ZERO);
    rig.manager.owner.handle_resize(Time::now(), 0);
    let names = ["h0".to_owned(), "h1".to_owned()];
    let outdated = rig.manager.owner.record(&names).outdated;
    assert_eq!(outdated.keys().collect::<Vec<_>>(), [&0]);
}

/// Writes go on all the while, one under way in each region: each stores its number in two places of the region.
#[test]
fn a_checkpoint_of_a_cache_in_use_has_each_region_as_it_was_at_one_moment() {
    const REGIONS: u64 = 4;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("checkpoint");
    let mut rig = Rig::new(2, u32::try_from(REGIONS).unwrap(), Duration::ZERO);
    let number = |region: u64, end: u64| region * REGION_BYTES + end * (REGION_BYTES - 8);
    let mut acknowledged = [0_u64; REGIONS as usize];
    let mut under_way = std::collections::BTreeMap::new();
    let (mut floor, mut begun, mut end) = (None, false, None);
    let (mut during, since) = (0, Instant::now());
    while end.is_none() || !under_way.is_empty() {
        for region in 0..REGIONS {
            let is_busy = under_way.values().any(|&(of, _)| of == region);
            if !is_busy && end.is_none() {
                let next = acknowledged[region as usize] + 1;
                // The first is acknowledged before the second is begun.
                let token = rig.begin_write(number(region, 0), next.to_le_bytes().to_vec());
                under_way.insert(token, (region, false));
            }
        }
        rig.turn();
        while let Some(ended) = rig.ended.pop_front() {
            ended.result.unwrap();
            let (region, is_second) = under_way.remove(&ended.token).unwrap();
            let at = region as usize;
            if is_second {
                acknowledged[at] += 1;
                during += u64::from(begun && end.is_none());
            } else {
                let next = (acknowledged[at] + 1).to_le_bytes().to_vec();
                let token = rig.begin_write(number(region, 1), next);
                under_way.insert(token, (region, true));
            }
        }
        if !begun && acknowledged.iter().all(|&count| count > 20) {
            begun = true;
            floor = Some(acknowledged);
            rig.manager.begin_checkpoint(&path).unwrap();
        }
        end = end.or_else(|| rig.manager.take_checkpoint());
        assert!(since.elapsed() < DEADLINE, "{acknowledged:?}");
        if end.is_some() && during == 0 {
            // Nothing was written meanwhile: another one, then.
            (begun, end) = (false, None);
        }
    }
    let made = end.unwrap().unwrap();
    assert_eq!(u64::from(made.regions), REGIONS);
    let mut reader = Reader::open(std::fs::File::open(&path).unwrap()).unwrap();
    for region in 0..REGIONS {
        let mut bytes = Vec::new();
        let of = u32::try_from(region).unwrap();
        reader
            .region(of, |_, chunk| {
                bytes.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        let value = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let (first, second) = (value(0), value(bytes.len() - 8));
        // Nothing that was acknowledged before is missing, and no write is there without the one before it.
        let floor = floor.unwrap()[region as usize];
        assert!(second >= floor, "region {region}: {second} < {floor}");
        assert!(
            first == second || first == second + 1,
            "region {region}: {first}, {second}"
        );
    }
}

//! Hosts that are killed or stopped with procedures under way: each request ends once, and says
//! whether to try again.
//!
//! The hosts are this test program again, told by the environment what to play.

#[path = "support/cache.rs"]
mod cache;
#[path = "support/part.rs"]
mod part;
mod support;

use std::process::Child;
use std::time::{Duration, Instant};

use cache::{Cache, OWNER, Site, poll_until, remote};
use cenote_fabric::{ClusterKey, Status as Fault, Time};
use cenote_proc::remote::{Ended, Remote};
use cenote_proc::service::{Heard, Word};
use cenote_proc::{ECHO, Status, WALK};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Walk};
use part::{play, say};
use support::{Client, DEADLINE, Fabric, Host, Lab, SLAB_BYTES};

const ROLE: &str = "CENOTE_TEST_HOST";
/// Nobody listens there.
const NOBODY: &str = "tcp:127.0.0.1:1";
const REQUESTS: u64 = 40;

/// A host in a process of its own, which ends with the test.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(lab: &Lab, name: &str) -> Self {
        let address = lab.address(name).to_string();
        let (child, address) = play("a_host_in_another_test", ROLE, &address, lab);
        Self { child, address }
    }

    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: no pointers; the child was not waited for, so the number is its own.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn a_host_in_another_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (address, key) = role.rsplit_once(' ').unwrap();
    let lab = Lab::new(Fabric::Shm);
    let host = Host::start(cenote_host::Config {
        key: ClusterKey::from_hex(key).unwrap(),
        addresses: vec![address.parse().unwrap()],
        cache_threads: 2,
        ..lab.config("other", 4)
    });
    say(&host.address.to_string());
}

/// A list from slab to slab, one node on each.
fn write_list(cache: &mut Cache, slabs: u64) -> Walk {
    for slab in 0..slabs {
        let next = (slab + 1) * SLAB_BYTES + 64;
        cache.write(slab * SLAB_BYTES + 64, &next.to_le_bytes());
    }
    Walk {
        node: 64,
        hops: 100,
        next_at: 0,
        value_at: 8,
        away: Away::Move,
    }
}

fn submit(remote: &mut Remote, cache: &Cache, walk: Walk) {
    for token in 0..REQUESTS {
        remote
            .submit(cache.id, WALK, &walk.to_bytes(), token)
            .unwrap();
    }
    remote.flush();
}

/// Polls for so long.
fn poll_for(duration: Duration, remote: &mut Remote, ended: &mut Vec<Ended>) {
    let until = Instant::now() + duration;
    while Instant::now() < until {
        remote.poll(Time::now(), ended);
        remote.wait(Duration::from_millis(5));
    }
}

fn tokens(ended: &[Ended]) -> Vec<u64> {
    let mut tokens: Vec<_> = ended.iter().map(|end| end.token).collect();
    tokens.sort_unstable();
    tokens
}

/// A host with requests that wait for bytes of a machine that is not there.
fn waiting(lab: &Lab, process: &Process) -> (Client, Remote, Cache) {
    let mut cache = Cache::at(lab, &[&process.address], &[NOBODY], &[0]);
    cache.promise(1, 1);
    cache.open(0);
    cache.map_all(false);
    let walk = write_list(&mut cache, 1);
    let walk = Walk {
        away: Away::Fetch,
        ..walk
    };
    let user = lab.client_of(&process.address, 2);
    let mut remote = remote(&user);
    // The connection works.
    assert_eq!(remote.run(cache.id, ECHO, b"x").unwrap().0, Status::Done);
    submit(&mut remote, &cache, walk);
    (user, remote, cache)
}

#[test]
fn requests_of_a_host_that_is_killed_or_stopped_end_once_and_may_have_run() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        for signal in [libc::SIGKILL, libc::SIGSTOP] {
            let lab = Lab::new(fabric);
            let process = Process::start(&lab, "other");
            let (_user, mut remote, _cache) = waiting(&lab, &process);
            let mut ended = Vec::new();
            // It is alive, however long they wait: it gives signs of life.
            poll_for(Duration::from_millis(1500), &mut remote, &mut ended);
            assert_eq!((ended.len(), remote.is_lost()), (0, false));
            process.signal(signal);
            poll_until(&mut remote, &mut ended, |ended| {
                ended.len() >= usize::try_from(REQUESTS).unwrap()
            });
            assert_eq!(tokens(&ended), (0..REQUESTS).collect::<Vec<_>>());
            for end in &ended {
                let cut = end.result.clone().unwrap_err();
                assert!(cut.may_have_run, "{cut:?}");
                let stopped = signal == libc::SIGSTOP;
                assert!(!stopped || cut.why == Fault::Timeout, "{cut:?}");
            }
            if signal == libc::SIGSTOP {
                process.signal(libc::SIGCONT);
                let user = lab.client_of(&process.address, 3);
                let mut again = cache::remote(&user);
                let (status, _) = again.run(cenote_proc::CacheId(77), ECHO, b"x").unwrap();
                assert_eq!(status, Status::Done, "it goes on");
            }
        }
    }
}

#[test]
fn requests_that_went_to_a_host_that_is_killed_are_answered_by_their_home() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let mut config = lab.config("home", 4);
        config.cache_threads = 1;
        let home = Host::start(config);
        let process = Process::start(&lab, "other");
        let addresses = [home.address.to_string(), process.address.clone()];
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let mut cache = Cache::at(&lab, &addresses, &[NOBODY], &[0, 1]);
        cache.promise(2, 2);
        for site in 0..2 {
            cache.open(site);
        }
        cache.map_all(false);
        // By way of the home and the other to where nobody is.
        let walk = write_list(&mut cache, 2);
        let user = lab.client(&home, 2);
        let mut remote = remote(&user);
        submit(&mut remote, &cache, walk);
        let mut ended = Vec::new();
        // They wait over there, and their home waits for them.
        poll_for(Duration::from_millis(500), &mut remote, &mut ended);
        assert!(ended.is_empty(), "{ended:?}");
        process.signal(libc::SIGKILL);
        poll_until(&mut remote, &mut ended, |ended| {
            ended.len() >= usize::try_from(REQUESTS).unwrap()
        });
        assert_eq!(tokens(&ended), (0..REQUESTS).collect::<Vec<_>>());
        for end in &ended {
            let (status, _) = end.result.clone().unwrap();
            let says = status.is_retryable() && status.may_have_run();
            assert!(says, "{status:?}");
        }
        // The home serves on, and takes words.
        assert_eq!(remote.run(cache.id, ECHO, b"x").unwrap().0, Status::Done);
        let word = cache.map_word(0, 0, false);
        assert!(matches!(cache.say(0, &word), Heard::Taken { .. }));
    }
}

/// Tells a host where these slabs are, as if its owner knew of no others.
fn map(cache: &mut Cache, site: usize, indices: &[u32]) {
    let until = Time::now().after(DEADLINE * 10).0;
    let mut word = cache.map_word(site, until, false);
    if let Word::Map { slabs, .. } = &mut word {
        slabs.retain(|slab| indices.contains(&slab.slab));
    }
    let heard = cache.say(site, &word);
    let is_whole = matches!(heard, Heard::Taken { missing: 0, .. });
    assert!(is_whole, "{heard:?}");
}

/// From a node of the other host's slab, by way of this one.
fn walk_from(node: u64) -> Walk {
    Walk {
        node,
        hops: 100,
        next_at: 0,
        value_at: 8,
        away: Away::Move,
    }
}

/// Has a request wait on the other host. Of one connection they run and travel in order: when one
/// has come home that ends there, the one before is there, too.
fn park(remote: &mut Remote, cache: &Cache, node: u64) {
    let mut ended = Vec::new();
    for (token, node) in [(1, node), (2, SLAB_BYTES + 192)] {
        let walk = walk_from(node).to_bytes();
        remote.submit(cache.id, WALK, &walk, token).unwrap();
    }
    remote.flush();
    poll_until(remote, &mut ended, |ended| !ended.is_empty());
    assert_eq!(tokens(&ended), [2]);
    assert_eq!(ended[0].result.as_ref().unwrap().0, Status::Done);
}

#[test]
fn a_host_that_was_restarted_gives_nobody_the_answer_to_a_request_of_before() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let mut config = lab.config("home", 8);
        config.cache_threads = 1;
        let home = Host::start(config.clone());
        let mut other = lab.config("other", 8);
        other.cache_threads = 1;
        let other = Host::start(other);
        let addresses = [home.address.to_string(), other.address.to_string()];
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let mut cache = Cache::at(&lab, &addresses, &[], &[0, 1, 1, 1]);
        // Two lists, whose ends the other host is not told of yet, and a node that is one.
        for (node, next) in [(64, 2), (128, 3)] {
            let end = next * SLAB_BYTES + 64;
            cache.write(SLAB_BYTES + node, &end.to_le_bytes());
            cache.write(end + 8, &next.to_le_bytes());
        }
        for site in 0..2 {
            cache.open(site);
            map(&mut cache, site, &[0, 1]);
        }
        let user = lab.client(&home, 2);
        park(&mut remote(&user), &cache, SLAB_BYTES + 64);

        // The home comes back where it was, and its owner says all again.
        config.addresses = vec![home.address.clone()];
        drop((user, home));
        let home = Host::start(config);
        let client = lab.client(&home, OWNER);
        let caller = client.session.caller_opener()(DEADLINE).unwrap();
        cache.sites[0] = Site { client, caller };
        cache.slabs[0] = cache.lend(0, 0);
        cache.open(0);
        map(&mut cache, 0, &[0, 1]);

        // The first that leaves, as the last one was.
        let user = lab.client(&home, 3);
        let mut remote = remote(&user);
        park(&mut remote, &cache, SLAB_BYTES + 128);
        // The last one's request ends first.
        map(&mut cache, 1, &[2]);
        map(&mut cache, 1, &[3]);
        let mut ended = Vec::new();
        poll_until(&mut remote, &mut ended, |ended| !ended.is_empty());
        let (status, answer) = ended[0].result.clone().unwrap();
        let value = Reached::of(&answer).map(|reached| reached.value);
        assert_eq!((status, value), (Status::Done, Some(3)));
    }
}

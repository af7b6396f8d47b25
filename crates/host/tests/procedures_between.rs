//! Procedures between hosts of which one is late, silent, or not to be reached for a while; and the
//! books that hosts keep of clients, owners and each other.

#[path = "support/cache.rs"]
mod cache;
mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use cache::{Cache, poll_for, poll_until, remote};
use cenote_fabric::calls::Caller;
use cenote_fabric::{Time, wait};
use cenote_proc::message::{Message, Sender};
use cenote_proc::remote::Remote;
use cenote_proc::service::{Heard, Opened, REQUESTS, SLABS_MAX, SlabPlace, SlabWord, Word};
use cenote_proc::{CacheId, ECHO, Status, WALK};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::Walk;
use support::{DEADLINE, Fabric, Host, Lab, SLAB_BYTES};

/// The token of a request that is sent behind all others.
const LAST: u64 = 99;

fn host(lab: &Lab, name: &str) -> Host {
    let mut config = lab.config(name, 8);
    config.cache_threads = 2;
    Host::start(config)
}

/// From a node in slab 0 to the first of slab `to`, which is the last.
fn write_hop(cache: &mut Cache, to: u64, away: Away) -> Walk {
    let node = 64 * to;
    cache.write(node, &(to * SLAB_BYTES + 64).to_le_bytes());
    Walk {
        node,
        hops: 100,
        next_at: 0,
        value_at: 8,
        away,
    }
}

fn map(cache: &mut Cache, site: usize, slabs: Vec<SlabWord>) {
    let word = Word::Map {
        cache: cache.id,
        writes_until: 0,
        slabs,
    };
    let heard = cache.say(site, &word);
    assert!(
        matches!(heard, Heard::Taken { missing: 0, .. }),
        "{heard:?}"
    );
}

fn at(slab: u32, generation: u64, machine: u32) -> SlabWord {
    SlabWord {
        slab,
        generation,
        place: SlabPlace::At(machine),
    }
}

/// The statuses of what ended, by token.
fn statuses(mut ended: Vec<cenote_proc::remote::Ended>) -> Vec<Status> {
    ended.sort_by_key(|end| end.token);
    let status = |end: cenote_proc::remote::Ended| end.result.unwrap().0;
    ended.into_iter().map(status).collect()
}

/// Makes a call of `count` requests for a cache that nobody knows.
fn call(caller: &mut dyn Caller, count: u32) {
    let mut bytes = vec![REQUESTS, 1];
    bytes.extend(count.to_le_bytes());
    for number in 0..u64::from(count) {
        bytes.extend(number.to_le_bytes());
        bytes.extend(555_u128.to_le_bytes());
        bytes.extend(ECHO.0.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
    }
    caller.call(&bytes, 0).unwrap();
    caller.flush();
}

#[test]
fn answers_that_nobody_asked_for_come_together_with_the_next_call() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let host = host(&lab, "a");
        let user = lab.client(&host, 2);
        let mut caller = user.session.caller_opener()(DEADLINE).unwrap();
        let mut responses = 0;
        for requests in [1000, 0] {
            call(&mut *caller, requests);
            let deadline = Instant::now() + DEADLINE;
            while caller.outstanding() > 0 {
                assert!(Instant::now() < deadline, "no answer");
                caller.poll(Time::now(), &mut |_, answer| {
                    let message = Message::read(answer.unwrap(), Sender::Server).unwrap();
                    let Message::Responses(some) = message else {
                        panic!("{message:?}");
                    };
                    responses += some.len();
                });
                let fds: Vec<_> = caller.fd().into_iter().collect();
                wait(&fds, Some(Duration::from_millis(5))).unwrap();
            }
        }
        assert_eq!(responses, 1000);
    }
}

/// The number of a cache is its volume's, and volumes have owners that follow each other.
#[test]
fn a_new_owner_of_a_cache_is_believed_from_its_first_generation_on() {
    let lab = Lab::new(Fabric::Shm);
    let host = host(&lab, "a");
    let address = host.address.to_string();
    let mut first = Cache::new(&lab, &[&host], &[0], false);
    first.slabs[0].generation = 9;
    first.tell();
    let old = first.slabs[0].window;
    first.sites[0].client.unmap(old);

    let mut second = Cache::of(&lab, 4, &[&address], &[], &[0]);
    second.tell();
    let walk = Walk {
        node: 64,
        hops: 1,
        next_at: 0,
        value_at: 8,
        away: Away::Fetch,
    };
    let user = lab.client(&host, 2);
    let mut remote = remote(&user);
    let (status, _) = remote.run(second.id, WALK, &walk.to_bytes()).unwrap();
    assert_eq!(status, Status::Done);

    // And who is late is told so.
    second.slabs[0].generation = 0;
    let late = second.map_word(0, 0, false);
    assert!(matches!(
        second.say(0, &late),
        Heard::Taken { missing: 1, .. }
    ));
}

#[test]
fn a_machine_that_is_silent_does_not_make_the_one_before_it_look_dead() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let hosts = [host(&lab, "a"), host(&lab, "b")];
        // It takes connections into its queue, and says nothing ever.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let silent = (silent.local_addr().unwrap(), silent);
        let addresses = hosts.each_ref().map(|host| host.address.to_string());
        let addresses = addresses.each_ref().map(String::as_str);
        let mut cache = Cache::at(&lab, &addresses, &[&format!("tcp:{}", silent.0)], &[0]);
        cache.promise(1, 2);
        // Only who has slabs there is heard.
        let _spare = cache.lend(1, 9);
        cache.open(0);
        cache.open(1);
        // Of slab 1 b knows that it went on to the third; of slab 2 it was not told yet.
        let word = cache.map_word(0, 0, false);
        cache.say(0, &word);
        map(&mut cache, 0, vec![at(2, 2, 1)]);
        map(&mut cache, 1, vec![at(1, 2, 2)]);
        let user = lab.client(&hosts[0], 2);
        let mut remote = remote(&user);
        let waits = write_hop(&mut cache, 2, Away::Move);
        let fetches = write_hop(&mut cache, 1, Away::Fetch);
        for (token, walk) in [(1, waits), (2, fetches)] {
            let argument = walk.to_bytes();
            remote.submit(cache.id, WALK, &argument, token).unwrap();
        }
        remote.flush();
        let mut ended = Vec::new();
        poll_for(&mut remote, &mut ended, Duration::from_millis(2500));
        assert_eq!(ended, []);

        // Both slabs come to b.
        for slab in [1, 2] {
            let mut new = cache.lend(1, slab);
            new.generation = 3;
            cache.slabs.push(new);
        }
        for site in 0..2 {
            let Word::Map { slabs, .. } = cache.map_word(site, 0, false) else {
                unreachable!()
            };
            map(&mut cache, site, slabs[1..3].to_vec());
        }
        poll_until(&mut remote, &mut ended, |ended| ended.len() == 2);
        assert_eq!(statuses(ended), [Status::Done; 2]);
    }
}

#[test]
fn a_request_that_comes_before_the_word_about_its_cache_goes_on_once_that_is_there() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let hosts = [host(&lab, "a"), host(&lab, "b")];
        let mut cache = Cache::new(&lab, &[&hosts[0], &hosts[1]], &[0, 1], false);
        cache.open(0);
        let word = cache.map_word(0, 0, false);
        cache.say(0, &word);
        let walk = write_hop(&mut cache, 1, Away::Move);
        let user = lab.client(&hosts[0], 2);
        let mut remote = remote(&user);
        remote.submit(cache.id, WALK, &walk.to_bytes(), 1).unwrap();
        remote.flush();
        let mut ended = Vec::new();
        poll_for(&mut remote, &mut ended, Duration::from_millis(300));
        assert_eq!(ended, []);
        cache.open(1);
        let word = cache.map_word(1, 0, false);
        cache.say(1, &word);
        poll_until(&mut remote, &mut ended, |ended| ended.len() == 1);
        assert_eq!(statuses(ended), [Status::Done]);
    }
}

/// Everything that comes to `from` goes to `to`, and back.
fn forward(from: &TcpListener, to: &str) {
    let copy = |mut source: TcpStream, mut target: TcpStream| {
        let mut bytes = [0; 4096];
        while let Ok(len) = source.read(&mut bytes) {
            if len == 0 || target.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        drop(target.shutdown(std::net::Shutdown::Both));
    };
    for client in from.incoming() {
        let Ok(client) = client else { return };
        let Ok(host) = TcpStream::connect(to) else {
            return;
        };
        let ways = (client.try_clone().unwrap(), host.try_clone().unwrap());
        std::thread::spawn(move || copy(client, host));
        std::thread::spawn(move || copy(ways.1, ways.0));
    }
}

#[test]
fn answers_reach_a_home_that_could_not_be_reached_for_a_while() {
    let lab = Lab::new(Fabric::Tcp);
    let hosts = [host(&lab, "a"), host(&lab, "b")];
    let mut cache = Cache::new(&lab, &[&hosts[0], &hosts[1]], &[0, 1], false);
    // The way from b to a is another one, and closed.
    let way = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = way.local_addr().unwrap();
    drop(way);
    cache.machines[0] = format!("tcp:{address}");
    cache.tell();
    let walk = write_hop(&mut cache, 1, Away::Move);
    let user = lab.client(&hosts[0], 2);
    let mut remote = remote(&user);
    remote.submit(cache.id, WALK, &walk.to_bytes(), 1).unwrap();
    remote.flush();
    let mut ended = Vec::new();
    poll_for(&mut remote, &mut ended, Duration::from_millis(300));
    assert_eq!(ended, []);

    let way = TcpListener::bind(address).unwrap();
    let text = hosts[0].address.to_string();
    let home = text.strip_prefix("tcp:").unwrap().to_owned();
    // It ends with the test's process.
    std::thread::spawn(move || forward(&way, &home));
    poll_until(&mut remote, &mut ended, |ended| ended.len() == 1);
    assert_eq!(statuses(ended), [Status::Done]);
}

#[test]
fn machines_of_caches_that_were_closed_make_room_for_others() {
    let lab = Lab::new(Fabric::Shm);
    let host = host(&lab, "a");
    let mut cache = Cache::new(&lab, &[&host], &[0], false);
    let own = cache.machines.clone();
    for round in 0..5 {
        let others = (0..250).map(|index| format!("tcp:10.0.{round}.{index}:7"));
        cache.machines = own.iter().cloned().chain(others).collect();
        // Said twice: that counts once.
        for _ in 0..2 {
            cache.open(0);
        }
        let close = Word::Close { cache: CacheId(77) };
        assert!(matches!(cache.say(0, &close), Heard::Taken { .. }));
    }
}

/// Says where the slabs are that there are; of others nothing is said.
fn map_slabs(cache: &mut Cache) {
    let Word::Map { mut slabs, .. } = cache.map_word(0, 0, false) else {
        unreachable!("it maps");
    };
    slabs.truncate(cache.slabs.len());
    map(cache, 0, slabs);
}

/// What has ended once a request has that was sent last: of one client they run in order.
fn ended_by_now(remote: &mut Remote, cache: &Cache) -> Vec<(u64, Status)> {
    remote.submit(cache.id, ECHO, b"x", LAST).unwrap();
    remote.flush();
    let mut ended = Vec::new();
    poll_until(remote, &mut ended, |ended| {
        ended.iter().any(|end| end.token == LAST)
    });
    let ended = ended.into_iter().filter(|end| end.token != LAST);
    let ended = ended.map(|end| (end.token, end.result.unwrap().0));
    ended.collect()
}

/// An owner that says another number of slabs says all of them again.
#[test]
fn requests_wait_while_their_cache_becomes_longer_and_end_where_it_is_cut_off() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let host = host(&lab, "a");
        let mut cache = Cache::new(&lab, &[&host], &[0], false);
        cache.promise(0, 2);
        cache.open(0);
        map_slabs(&mut cache);
        let user = lab.client(&host, 2);
        let mut remote = remote(&user);
        for token in 1..=2 {
            let walk = write_hop(&mut cache, token, Away::Fetch).to_bytes();
            remote.submit(cache.id, WALK, &walk, token).unwrap();
        }
        assert_eq!(ended_by_now(&mut remote, &cache), []);

        cache.promise(0, 1);
        cache.open(0);
        assert_eq!(ended_by_now(&mut remote, &cache), []);
        let shorter = Opened {
            slabs: 2,
            ..cache.opened(0)
        };
        let heard = cache.say(0, &Word::Open(shorter));
        assert!(matches!(heard, Heard::Taken { .. }), "{heard:?}");
        let ended = ended_by_now(&mut remote, &cache);
        assert_eq!(ended, [(2, Status::OutOfBounds)]);

        let slab = cache.lend(0, 1);
        cache.slabs.push(slab);
        map_slabs(&mut cache);
        assert_eq!(ended_by_now(&mut remote, &cache), [(1, Status::Done)]);
    }
}

/// What a host keeps of caches is bounded as a whole, also for those whose owners are gone.
#[test]
fn caches_whose_owners_are_gone_make_room_for_others() {
    let lab = Lab::new(Fabric::Shm);
    let host = host(&lab, "a");
    let mut cache = Cache::new(&lab, &[&host], &[], false);
    let own = cache.machines.clone();
    let most = usize::try_from(SLABS_MAX).unwrap() - 1;
    for (slabs, machines) in [(0, 250), (most, 0)] {
        cache.promise(0, slabs);
        for number in 0..9_u8 {
            let others = (0..machines).map(|index| format!("tcp:10.0.{number}.{index}:7"));
            cache.machines = own.iter().cloned().chain(others).collect();
            cache.id = CacheId(u128::from(number));
            let slab = cache.lend(0, 0);
            cache.slabs.push(slab);
            cache.open(0);
            // As when its owner has ended and its time is over.
            let window = cache.slabs.remove(0).window;
            cache.sites[0].client.unmap(window);
        }
    }
}

//! A machine that leaves a cache sends the requests on that wait there, and answers their clients.

#[path = "support/cache.rs"]
mod cache;
mod support;

use cache::{Cache, poll_until, remote};
use cenote_proc::service::{Heard, Named, SlabPlace, SlabWord, Word};
use cenote_proc::{ECHO, Status, WALK};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Walk};
use support::{Fabric, Host, Lab, SLAB_BYTES};

/// Nothing listens there.
const NOBODY: &str = "tcp:127.0.0.1:1";
const REQUESTS: u64 = 16;
/// The last node.
const END: u64 = 2 * SLAB_BYTES + 64;

fn host(lab: &Lab, name: &str) -> Host {
    let mut config = lab.config(name, 8);
    config.cache_threads = 2;
    Host::start(config)
}

fn say(cache: &mut Cache, site: usize, word: &Word) {
    let heard = cache.say(site, word);
    assert!(
        matches!(heard, Heard::Taken { missing: 0, .. }),
        "{heard:?}"
    );
}

#[test]
fn requests_that_wait_where_a_machine_leaves_end_once_by_way_of_its_successor() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let hosts = [host(&lab, "a"), host(&lab, "b")];
        let addresses: Vec<_> = hosts.iter().map(|host| host.address.to_string()).collect();
        let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
        let mut cache = Cache::at(&lab, &addresses, &[NOBODY], &[0, 1]);
        // The third slab is on a machine that is not there.
        cache.promise(2, 1);
        cache.tell();
        cache.write(64, &END.to_le_bytes());
        let user = lab.client(&hosts[0], 2);
        let mut remote = remote(&user);
        for token in 0..REQUESTS {
            let walk = Walk {
                node: 64,
                hops: 100,
                next_at: 0,
                value_at: 8,
                away: [Away::Fetch, Away::Move][usize::try_from(token % 2).unwrap()],
            };
            remote
                .submit(cache.id, WALK, &walk.to_bytes(), token)
                .unwrap();
        }
        // Of one client requests run in order: when this one has ended, the others wait for bytes.
        remote.submit(cache.id, ECHO, b"x", REQUESTS).unwrap();
        remote.flush();
        let mut ended = Vec::new();
        poll_until(&mut remote, &mut ended, |ended| !ended.is_empty());
        let tokens: Vec<_> = ended.drain(..).map(|end| end.token).collect();
        assert_eq!(tokens, [REQUESTS]);

        // What is left there goes, then the machine.
        cache.relocate(0, 1, || {});
        let (id, successor) = (cache.id, 1);
        say(
            &mut cache,
            0,
            &Word::Leave {
                cache: id,
                successor,
            },
        );

        // The successor gets the bytes; the machine that left hears nothing of it.
        let mut slab = cache.lend(1, 2);
        slab.generation = 2;
        let window = Named {
            window: slab.window.id,
            generation: slab.window.generation,
        };
        let client = &mut cache.sites[1].client;
        assert_eq!(
            client.write(&slab.remote, 72, &77_u64.to_le_bytes()),
            cenote_fabric::Status::Ok
        );
        let here = SlabWord {
            slab: 2,
            generation: slab.generation,
            place: SlabPlace::Here(window),
        };
        let word = Word::Map {
            cache: id,
            writes_until: 0,
            slabs: vec![here],
        };
        say(&mut cache, 1, &word);

        poll_until(&mut remote, &mut ended, |ended| {
            ended.len() >= usize::try_from(REQUESTS).unwrap()
        });
        ended.sort_by_key(|end| end.token);
        for (token, end) in (0..).zip(ended) {
            let (status, answer) = end.result.unwrap();
            let reached = Reached::of(&answer).map(|reached| (reached.node, reached.value));
            let whole = (token, Status::Done, Some((END, 77)));
            assert_eq!((end.token, status, reached), whole);
        }
        assert_eq!(remote.outstanding(), 0);
    }
}

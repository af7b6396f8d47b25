//! The load against stores that lie, and what is printed of stores that do not.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use anyhow::bail;

use super::contender::{Client, Promise, Request, Role};
use super::*;
use crate::kv::wire::Reply;
use crate::swap_rig::turn;

type Map = Arc<Mutex<HashMap<Vec<u8>, Vec<u8>>>>;

/// How a store answers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mood {
    Honest,
    /// One byte of a value is another.
    Flips,
    /// PUTs are answered and not done.
    Forgets,
}

/// A store in memory, with two loops to a client.
struct Memory {
    map: Map,
    mood: Mood,
    ended: Vec<(usize, Option<Vec<u8>>)>,
}

impl Memory {
    fn clients(map: &Map, mood: Mood) -> Clients {
        let client = || -> Box<dyn Client> {
            Box::new(Self {
                map: map.clone(),
                mood,
                ended: Vec::new(),
            })
        };
        (0..3).map(|_| client()).collect()
    }
}

impl Client for Memory {
    fn loops(&self) -> usize {
        2
    }

    fn submit(&mut self, at: usize, request: Request<'_>) -> Result<()> {
        let mut map = self.map.lock().expect("nobody panics");
        let ended = match request {
            Request::Get { key } => {
                let mut value = map.get(key).cloned();
                if self.mood == Mood::Flips
                    && let Some(last) = value.as_mut().and_then(|value| value.last_mut())
                {
                    *last ^= 1;
                }
                Some(value.unwrap_or_default())
            }
            Request::Put { key, value } => {
                if self.mood != Mood::Forgets || !map.contains_key(key) {
                    map.insert(key.to_vec(), value.to_vec());
                }
                None
            }
        };
        self.ended.push((at, ended));
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()> {
        if self.ended.is_empty() {
            bail!("nothing is under way");
        }
        for (at, value) in self.ended.drain(..) {
            take(at, value.as_deref().map_or(Reply::Stored, Reply::Value));
        }
        Ok(())
    }
}

fn load(mood: Mood) -> Result<load::Ran> {
    let _turn = turn();
    let interrupt = Interrupt::catch()?;
    let items = Items::new(40, Sizes::Fixed(100), 1);
    let known = Known {
        items: &items,
        book: &Book::new(&items),
    };
    let map = Map::default();
    known.fill(&mut Memory::clients(&map, Mood::Honest))?;
    let mut clients = Memory::clients(&map, mood);
    let ran = known.run(&mut clients, (Mix::HALF, 1), (SHORT, &interrupt))?;
    known.read_back(&mut clients)?;
    Ok(ran)
}

const SHORT: Duration = Duration::from_millis(60);

#[test]
fn a_store_that_is_right_is_measured() {
    let ran = load(Mood::Honest).unwrap();
    let counted = ran.tally.total();
    assert!(counted > 0 && counted <= ran.ended.all);
    assert!(ran.ended.puts > 0 && ran.ended.puts < ran.ended.all);
}

#[test]
fn a_store_that_lies_ends_the_run() {
    for (mood, word) in [(Mood::Flips, "values wrong"), (Mood::Forgets, "stale")] {
        let error = load(mood).err().expect("it lies").to_string();
        assert!(error.contains(word), "{mood:?}: {error}");
        assert!(!error.contains(&format!(" 0 {word}")), "{mood:?}: {error}");
    }
}

fn measured(
    (scheme, transport): (&'static str, &'static str),
    promise: Promise,
    role: Role,
    ops_per_second: f64,
) -> Measured {
    let way = Way {
        scheme,
        label: format!("{scheme} 1.0"),
        transport,
        promise,
        role,
        reads_like_another: false,
    };
    let round = Round {
        ops_per_second,
        p50_us: 2.0,
        p99_us: 3.0,
        server_cpu_us: 4.0,
        write_amplification: Some(1.5),
    };
    (way, vec![round; 3])
}

#[test]
fn ours_stands_beside_those_that_promise_the_same_over_the_same() {
    let (later, durable) = (Promise::Later, Promise::Durable);
    let all = [
        measured(("efactory", "shm"), later, Role::Ours, 300.0),
        measured(("efactory-durable", "tcp"), durable, Role::Ours, 14.0),
        measured(("saw", "shm"), durable, Role::Rival, 30.0),
        measured(("redis-everysec", "unix"), later, Role::Peer, 100.0),
        measured(("redis-everysec", "tcp"), later, Role::Peer, 100.0),
        measured(("redis-always", "tcp"), durable, Role::Peer, 10.0),
        measured(("rocksdb", "in-process"), later, Role::Peer, 150.0),
    ];
    let case = Case {
        mix: Mix { get_percent: 0 },
        value_bytes: 64,
        clients: 32,
    };
    let mut report = Report::default();
    report.add(case, &all);
    let throughput = report.rows.iter().filter(|row| row.metric == "throughput");
    let ratios: Vec<_> = throughput
        .map(|row| (row.peer.as_str(), row.ratio))
        .collect();
    let expected = [
        ("saw 1.0", 10.0),
        ("redis-everysec 1.0", 3.0),
        ("rocksdb 1.0", 2.0),
        ("redis-always 1.0", 1.4),
    ];
    assert_eq!(ratios, expected);
    let ends = [
        "put: efactory shm, 64 B, 0:100, 32 clients: at least 2 of \
         redis-everysec 1.0: 3.00, reached",
        "put_durable: efactory-durable tcp, 64 B, 0:100, 32 clients: at least 1.5 of \
         redis-always 1.0: 1.40, missed",
    ];
    assert_eq!(report.goals.len(), 2, "{:?}", report.goals);
    for (line, end) in report.goals.iter().zip(ends) {
        assert_eq!(line, &format!("goal: {end}"));
    }
}

#[test]
fn a_figure_is_a_json_line_with_the_agreed_keys() {
    let case = Case {
        mix: Mix::MOSTLY_READS,
        value_bytes: 1024,
        clients: 8,
    };
    let mut report = Report::default();
    let peer = measured(("redis-always", "tcp"), Promise::Durable, Role::Peer, 10.0);
    report.add(case, &[peer]);
    let mut out = Vec::new();
    report.write_json(&mut out).unwrap();
    assert_eq!(
        String::from_utf8(out).unwrap(),
        "{\"scheme\":\"redis-always\",\"mix\":\"95:5\",\"value_bytes\":1024,\"clients\":8,\
         \"transport\":\"tcp\",\"ops_per_second\":10.0,\"p50_us\":2.0,\"p99_us\":3.0,\
         \"server_cpu_us_per_op\":4.0,\"write_amplification\":1.5}\n"
    );
    let mut out = Vec::new();
    report.write_table(&mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.lines().count(), 2, "no rows without ours: {text}");
}

//! What the service promises, each in few lines, with and without a mistake.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Hello, Incoming, Session, Time, connector, wait,
};

use super::*;
use crate::Configuration;
use crate::owner::{Access, Copy, Entry, Record, Settings};
use crate::service::allowance::Allowance;
use crate::service::journal::{Identity, Image, Journal, KeptHost, Log};
use crate::service::message::{ToClient, ToManager, VERSION};
use crate::service::outbox::{Outbox, Sent};
use crate::service::question::{Answer, Question};
use crate::service::server::Proof;
use crate::service::{Claim, Config, Server, Supply, Terms};

type Check = fn(Option<InjectedFault>) -> Result<(), String>;

/// What each mistake is looked for with, from the quickest to the slowest.
const CHECKS: [(&str, Check); 7] = [
    ("nothing unproven", nothing_is_begun_unproven),
    ("a journal may be cut", a_journal_may_be_cut_anywhere),
    ("all is handed on", the_next_manager_begins_with_all),
    ("leases wait for the disk", a_lease_waits_for_the_disk),
    ("each has its budget", each_client_has_its_budget),
    ("epochs rise", each_manager_has_an_epoch_of_its_own),
    (
        "news wait for the disk",
        nobody_is_told_what_the_disk_refused,
    ),
];

/// The first promise that is broken.
fn broken(injected: Option<InjectedFault>) -> Option<String> {
    inject(injected);
    let broken = CHECKS.iter().find_map(|(name, check)| {
        let what = check(injected).err()?;
        Some(format!("{name}: {what}"))
    });
    inject(None);
    broken
}

#[test]
fn every_promise_is_kept() {
    assert_eq!(broken(None), None);
}

#[test]
fn every_injected_fault_is_found() {
    let mut missed = Vec::new();
    for (name, injected) in ALL {
        match broken(Some(injected)) {
            Some(what) => println!("{name}: {what}"),
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, wanted: T, what: &str) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found:?}, not {wanted:?}")),
    }
}

/// A journal in memory, which takes nothing more while it is full.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<(Vec<u8>, bool)>>);

impl Memory {
    fn state(&self) -> MutexGuard<'_, (Vec<u8>, bool)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_full(&self, is_full: bool) {
        self.state().1 = is_full;
    }

    fn image(&self) -> Result<Image, String> {
        let image = Journal::load(&mut self.clone()).map_err(|error| error.to_string())?;
        image.ok_or_else(|| "an empty journal".to_owned())
    }
}

impl Log for Memory {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.state().0.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, is_full) = &mut *self.state();
        if *is_full {
            return Err(ErrorKind::StorageFull.into());
        }
        kept.extend(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, is_full) = &mut *self.state();
        if *is_full {
            return Err(ErrorKind::StorageFull.into());
        }
        *kept = bytes.to_vec();
        Ok(())
    }
}

const SETTINGS: Settings = Settings {
    cache: 0xcac4e,
    slab_bytes: 64 << 10,
    slabs_per_region: 1,
    copies: 1,
    give_up_after: Duration::from_secs(10),
};

fn fresh() -> Image {
    let host = |name: &str| KeptHost {
        name: name.to_owned(),
        address: "tcp:127.0.0.1:7000".to_owned(),
        domain: name.to_owned(),
    };
    Image {
        hosts: vec![host("a"), host("b")],
        ..Image::fresh(Identity {
            cache: SETTINGS.cache,
            slab_bytes: SETTINGS.slab_bytes,
            slabs_per_region: SETTINGS.slabs_per_region,
            copies: 1,
        })
    }
}

fn entry(generation: u64, losses: u32) -> Entry {
    Entry {
        region: 0,
        generation,
        access: Access::Open,
        copies: vec![Copy::new(1, Vec::new())],
        losses,
        fell_back_ms: 0,
        next: Vec::new(),
    }
}

fn record(entry: Entry, leaving: &[usize]) -> Record {
    Record {
        hosts: vec!["a".to_owned(), "b".to_owned()],
        leaving: leaving.to_vec(),
        duration: Some(Duration::from_secs(60)),
        outdated: std::collections::BTreeMap::new(),
        entries: vec![entry],
    }
}

/// A journal with a few changes, and what it said after each.
fn written() -> Result<(Memory, usize, Vec<Image>), String> {
    let memory = Memory::default();
    let begun = Journal::begin(Box::new(memory.clone()), fresh());
    let mut journal = begun.map_err(|error| error.to_string())?;
    let begun_bytes = memory.state().0.len();
    let mut states = vec![journal.wanted().clone()];
    for generation in 1..4 {
        journal.set_record(&record(entry(generation, 0), &[]));
        journal.write().map_err(|error| error.to_string())?;
        states.push(journal.wanted().clone());
    }
    Ok((memory, begun_bytes, states))
}

fn a_journal_may_be_cut_anywhere(_: Option<InjectedFault>) -> Result<(), String> {
    let (memory, begun_bytes, states) = written()?;
    let bytes = memory.state().0.clone();
    for cut in begun_bytes..=bytes.len() {
        memory.state().0 = bytes[..cut].to_vec();
        let image = memory.image()?;
        if !states.contains(&image) {
            return Err(format!("cut at {cut}, it says what it never said"));
        }
    }
    Ok(())
}

fn the_next_manager_begins_with_all(_: Option<InjectedFault>) -> Result<(), String> {
    let memory = Memory::default();
    let begun = Journal::begin(Box::new(memory.clone()), fresh());
    let mut journal = begun.map_err(|error| error.to_string())?;
    // Each differs from the one before in one thing.
    for wanted in [
        record(entry(1, 0), &[]),
        record(entry(2, 0), &[]),
        record(entry(3, 1), &[]),
        record(entry(3, 1), &[0]),
    ] {
        journal.set_record(&wanted);
        journal.write().map_err(|error| error.to_string())?;
        let found = memory.image()?.record();
        let said = |entry: &Entry| (entry.generation, entry.access, entry.losses);
        expect(
            found.entries.iter().map(said).collect::<Vec<_>>(),
            wanted.entries.iter().map(said).collect(),
            "regions",
        )?;
        expect(found.leaving, wanted.leaving, "hosts that are to go")?;
        expect(found.duration, wanted.duration, "duration")?;
    }
    Ok(())
}

fn a_lease_waits_for_the_disk(_: Option<InjectedFault>) -> Result<(), String> {
    let mut outbox = Outbox::default();
    outbox.grant(7);
    let mut said = 0;
    let sent = outbox.send(false, |_| {
        said += 1;
        true
    });
    expect((sent, said), (Sent::Held, 0), "while the disk refuses")
}

fn each_client_has_its_budget(_: Option<InjectedFault>) -> Result<(), String> {
    let mut allowance = Allowance::new(Time(1));
    let taken = (0..10_000)
        .filter(|_| allowance.take(Time(1), 0, 1))
        .count();
    expect(taken < 10_000, true, "a flood ends")?;
    let mut outbox = Outbox::default();
    let taken = (0..1000).filter(|&n| outbox.answer(n, vec![0])).count();
    expect(taken < 1000, true, "answers that nobody reads are few")
}

fn nothing_is_begun_unproven(_: Option<InjectedFault>) -> Result<(), String> {
    let proof = Proof::new(Time(20));
    let held = [19, 20].map(|at| proof.holds(Time(at)));
    expect(held, [true, false], "proven until 20")
}

/// A manager of a cache whose cluster has no host yet.
fn start(folder: &std::path::Path, key: &ClusterKey, memory: &Memory) -> Result<Server, String> {
    let config = Config {
        settings: SETTINGS,
        regions: 2,
        duration: None,
        terms: Terms {
            configuration: Configuration {
                c: 1,
                s: 0,
                b: 1,
                q: 1,
            },
        },
        hosts: Vec::new(),
        supply: Supply::Cluster(Box::new(|| None)),
        key: key.clone(),
        addresses: vec![Address::Shm(folder.join("manager"))],
        journal: Box::new(memory.clone()),
        checkpoint: None,
        claim: Claim::Lock,
        clock: || 1_000_000,
    };
    Server::start(config, &AtomicBool::new(false)).map_err(|error| error.to_string())
}

fn each_manager_has_an_epoch_of_its_own(_: Option<InjectedFault>) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let key = ClusterKey::generate().expect("random bytes");
    let memory = Memory::default();
    let mut epochs = Vec::new();
    for _ in 0..3 {
        epochs.push(start(folder.path(), &key, &memory)?.epoch());
    }
    expect(epochs, vec![1, 2, 3], "epochs")
}

fn nobody_is_told_what_the_disk_refused(injected: Option<InjectedFault>) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("a folder");
    let key = ClusterKey::generate().expect("random bytes");
    let memory = Memory::default();
    let mut server = start(folder.path(), &key, &memory)?;
    memory.set_full(true);
    let (stop, waker) = (Arc::new(AtomicBool::new(false)), server.waker());
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        inject(injected);
        server.run(&stopped).map(drop)
    });
    let hello = Hello {
        client: ClientId(1),
        name: "a client".to_owned(),
    };
    let address = Address::Shm(folder.path().join("manager"));
    let session = connector(key).connect(&address, &hello, DEADLINE);
    let found = session
        .map_err(|error| error.to_string())
        .and_then(|mut session| listen(&mut *session, &memory));
    stop.store(true, Ordering::Relaxed);
    waker.wake();
    let ended = thread.join().expect("no panic");
    ended.map_err(|error| error.to_string()).and(found)
}

const DEADLINE: Duration = Duration::from_secs(60);

/// Joins, and compares what it is told with what the disk has, until it has a lease. The disk has
/// room again once the manager says that it refused.
fn listen(session: &mut dyn Session, memory: &Memory) -> Result<(), String> {
    let ask = |number| ToManager::Ask {
        number,
        question: serde_json::to_vec(&Question::Status).expect("text"),
    };
    let say = |session: &mut dyn Session, message: &ToManager| {
        let sent = session.send(&message.encode());
        sent.map_err(|error| error.to_string())
    };
    say(session, &ToManager::Join { version: VERSION })?;
    say(session, &ask(1))?;
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        let message = match session.receive().map_err(|error| error.to_string())? {
            Some(Incoming::Message(bytes)) => ToClient::decode(&bytes, SETTINGS.slab_bytes),
            Some(_) => continue,
            None => {
                let _ready = wait(session.fd().as_slice(), Some(Duration::from_millis(100)));
                say(session, &ToManager::Alive { asked_at: 1 })?;
                continue;
            }
        };
        match message.map_err(|error| error.to_string())? {
            ToClient::Entry(told) => {
                let image = memory.image()?;
                let kept = image.regions.get(told.region as usize);
                let kept = kept.map_or(0, |region| region.generation);
                expect(kept >= told.generation, true, "told and not on the disk")?;
            }
            ToClient::Answer { part, .. } => {
                let answer = serde_json::from_slice(&part).map_err(|error| error.to_string())?;
                match answer {
                    Answer::Status(status) if status.journal_error.is_some() => {
                        memory.set_full(false);
                    }
                    _ => say(session, &ask(2))?,
                }
            }
            ToClient::Lease { .. } => return Ok(()),
            _ => {}
        }
    }
    Err("it has no lease".to_owned())
}

//! The load, the same for all: closed loops over a store's clients, one thread for each client.
//!
//! What is asked, what may be answered and how times are kept is that of `cenote bench kv`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use cenote_measure::random::{Random, mix as mixed};
use cenote_measure::zipf::Scrambled;

use super::super::kv::connection::Pending;
use super::super::kv::items::{Book, Items, push_key};
use super::super::kv::source::{Mix, Source};
use super::super::kv::tally::{Kind, Tally};
use super::super::kv::worker::judge;
use super::contender::{Client, Request};
use crate::beside::{self, beside};
use crate::swap_rig::interrupt::{self, Interrupt};

/// What is stored, and which versions an answer may have.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) items: &'a Items,
    pub(super) book: &'a Book,
}

/// Clients of one store.
pub(super) type Clients = Vec<Box<dyn Client>>;

/// What a load came to.
pub(super) struct Ran {
    /// Of requests that were answered in time.
    pub(super) tally: Tally,
    /// That time.
    pub(super) took: Duration,
    /// All that were answered, those after the time as well.
    pub(super) ended: Ended,
}

/// Requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ended {
    pub(super) all: u64,
    pub(super) puts: u64,
}

/// A store that answers nothing for so long is given up.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

impl Known<'_> {
    /// Stores version 0 of every item.
    ///
    /// # Errors
    /// Those of the clients; an item that was not stored.
    pub(super) fn fill(self, clients: &mut Clients) -> Result<()> {
        let tally = self.each(clients, Kind::Set)?;
        let (stored, count) = (tally.count(Kind::Set), self.items.count());
        let is_whole = stored == u64::from(count);
        ensure!(is_whole, "{stored} of {count} items: {}", tally.troubles());
        Ok(())
    }

    /// Reads every item.
    ///
    /// # Errors
    /// Those of the clients; a value that is wrong or not there.
    pub(super) fn read_back(self, clients: &mut Clients) -> Result<()> {
        let tally = self.each(clients, Kind::Get)?;
        let is_whole = tally.count(Kind::Get) == u64::from(self.items.count());
        ensure!(is_whole, "{}", tally.troubles());
        Ok(())
    }

    fn each(self, clients: &mut Clients, kind: Kind) -> Result<Tally> {
        let step = u32::try_from(clients.len())?;
        let source = |thread: usize| Source::Each {
            kind,
            next: u32::try_from(thread).expect("few threads"),
            step,
            end: self.items.count(),
        };
        Ok(self.drive(clients, source, None)?.tally)
    }

    /// Reads and writes by `mix` for a time.
    ///
    /// # Errors
    /// Those of the clients, an interruption, and any answer that is not as it should be.
    pub(super) fn run(
        self,
        clients: &mut Clients,
        (mix, seed): (Mix, u64),
        (time, interrupt): (Duration, &Interrupt),
    ) -> Result<Ran> {
        let popularity = Scrambled::new(u64::from(self.items.count()));
        let source = |thread: usize| Source::Mixed {
            mix,
            popularity: &popularity,
            random: Box::new(Random::new(mixed(seed) ^ thread as u64)),
        };
        let ran = self.drive(clients, source, Some((time, interrupt)))?;
        let tally = &ran.tally;
        let is_clean = tally.is_sound() && tally.failures() == 0 && tally.misses == 0;
        ensure!(is_clean, "{}", tally.troubles());
        Ok(ran)
    }

    /// Runs a thread for each client until the time is over, or until there is no more to ask.
    fn drive<'s>(
        self,
        clients: &mut Clients,
        source: impl Fn(usize) -> Source<'s>,
        limit: Option<(Duration, &Interrupt)>,
    ) -> Result<Ran> {
        let began = Instant::now();
        let mut workers = Vec::new();
        for (thread, client) in clients.iter_mut().enumerate() {
            workers.push(Worker {
                known: self,
                idle: (0..client.loops()).collect(),
                asked: vec![None; client.loops()],
                client: client.as_mut(),
                source: source(thread),
                tally: Tally::new(0)?,
                ended: Ended::default(),
                began,
                answered_ns: 0,
                scratch: (Vec::new(), Vec::new()),
            });
        }
        let ((slept, took), workers) = match limit {
            Some((time, interrupt)) => {
                let drive = |worker: Worker<'_, 's>, stop: &AtomicBool| worker.drive(stop);
                beside(workers, drive, || (interrupt.sleep(time), began.elapsed()))
            }
            None => {
                let never = AtomicBool::new(false);
                let ended = beside::all(workers, |worker| worker.drive(&never));
                ((Ok(()), began.elapsed()), ended)
            }
        };
        let mut ran = Ran {
            tally: Tally::new(0)?,
            took,
            ended: Ended::default(),
        };
        for worker in workers {
            let (tally, ended) = worker?;
            ran.tally.add(tally)?;
            ran.ended.all += ended.all;
            ran.ended.puts += ended.puts;
        }
        slept?;
        Ok(ran)
    }
}

/// One thread of the load.
struct Worker<'a, 's> {
    known: Known<'a>,
    client: &'a mut dyn Client,
    source: Source<'s>,
    /// Loops that may ask.
    idle: Vec<usize>,
    /// What each other loop has under way.
    asked: Vec<Option<Pending>>,
    tally: Tally,
    ended: Ended,
    began: Instant,
    /// When an answer came last.
    answered_ns: u64,
    /// Key and value.
    scratch: (Vec<u8>, Vec<u8>),
}

impl Worker<'_, '_> {
    /// Asks until `stop` is set or there is no more, and takes every answer.
    fn drive(mut self, stop: &AtomicBool) -> Result<(Tally, Ended)> {
        loop {
            let is_over = stop.load(Ordering::Relaxed);
            if is_over {
                self.source.end();
            }
            self.ask()?;
            if self.idle.len() == self.asked.len() {
                return Ok((self.tally, self.ended));
            }
            self.take(stop)?;
            let silent_ns = self.now_ns().saturating_sub(self.answered_ns);
            if u128::from(silent_ns) > ANSWER_LIMIT.as_nanos() {
                bail!("no answer for {} s", ANSWER_LIMIT.as_secs());
            }
            // Filling has no leader that would notice.
            if self.source.is_filling() {
                interrupt::check()?;
            }
        }
    }

    /// Gives every idle loop a request.
    fn ask(&mut self) -> Result<()> {
        while let Some(at) = self.idle.pop() {
            let Some((kind, item)) = self.source.next() else {
                self.idle.push(at);
                return Ok(());
            };
            let Known { items, book } = self.known;
            let (key, value) = &mut self.scratch;
            key.clear();
            push_key(item, key);
            let version = match kind {
                Kind::Get => book.floor(item),
                Kind::Set if self.source.is_filling() => 0,
                Kind::Set => book.begin_write(item),
            };
            let request = match kind {
                Kind::Get => Request::Get { key },
                Kind::Set => {
                    value.clear();
                    items.push_value(item, version, value);
                    Request::Put { key, value }
                }
            };
            let began_ns = ns(self.began.elapsed());
            self.client.submit(at, request)?;
            self.asked[at] = Some(Pending {
                kind,
                item,
                version,
                began_ns,
            });
        }
        Ok(())
    }

    /// Answers that come after `stop` are checked, and not counted.
    fn take(&mut self, stop: &AtomicBool) -> Result<()> {
        let (began, known) = (self.began, (self.known.items, self.known.book));
        let (asked, idle, tally) = (&mut self.asked, &mut self.idle, &mut self.tally);
        let ended = &mut self.ended;
        let (mut answered_ns, mut unasked) = (self.answered_ns, None);
        self.client.wait(&mut |at, reply| {
            let Some(pending) = asked.get_mut(at).and_then(Option::take) else {
                unasked = Some(at);
                return;
            };
            answered_ns = ns(began.elapsed());
            ended.all += 1;
            ended.puts += u64::from(pending.kind == Kind::Set);
            let counts = !stop.load(Ordering::Relaxed);
            judge(known, tally, pending, reply, counts.then_some(answered_ns));
            idle.push(at);
        })?;
        self.answered_ns = answered_ns;
        ensure!(
            unasked.is_none(),
            "an answer that loop {unasked:?} did not ask for"
        );
        Ok(())
    }

    fn now_ns(&self) -> u64 {
        ns(self.began.elapsed())
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

//! A row of our servers, each of which has every object: what copies cost beside one store.

use std::collections::HashMap;

use anyhow::{Context as _, Result, bail};
use cenote_fabric::Time;
use cenote_store::Condition;
use cenote_store::client::{self, Command, Outcome};
use cenote_store::copies::{Change, Step, version_of};

use super::super::kv::wire::Reply;
use super::contender::{Client, Promise, Request, Role, Store, Way};
use super::ours::{Looks, Ours, WAIT};

/// Servers, in their order.
pub(super) struct Copies {
    row: Vec<Ours>,
    ways: Vec<Way>,
}

impl Copies {
    /// A row of at least one, all reached by the same transports.
    pub(super) fn new(row: Vec<Ours>) -> Self {
        let mut ways: Vec<Way> = row[0].ways().to_vec();
        ways.retain(|way| way.promise == Promise::Durable);
        for way in &mut ways {
            way.scheme = "efactory-copies";
            way.label = format!("{} copies, {}", row.len(), way.transport);
            way.role = Role::Rival;
            way.reads_like_another = false;
        }
        Self { row, ways }
    }
}

impl Store for Copies {
    fn ways(&self) -> &[Way] {
        &self.ways
    }

    fn connect(&self, way: &Way, loops: usize) -> Result<Vec<Box<dyn Client>>> {
        let clients = self.row.iter().map(|one| one.client(way.transport));
        Ok(vec![Box::new(Connected {
            clients: clients.collect::<Result<_>>()?,
            loops,
            changes: HashMap::new(),
        })])
    }

    fn pids(&self) -> Vec<u32> {
        self.row.iter().flat_map(Store::pids).collect()
    }

    fn settle(&self) -> Result<()> {
        self.row.iter().try_for_each(Store::settle)
    }
}

/// A thread's connections, with many changes under way.
struct Connected {
    clients: Vec<client::Client>,
    loops: usize,
    /// By loop.
    changes: HashMap<u64, Change>,
}

impl Connected {
    /// Goes on with a change; whether it is over.
    fn go_on(&mut self, token: u64, step: Step) -> Result<bool> {
        match step {
            Step::Ask { store, command } => {
                self.clients[store].submit(command, token, Time::now());
                Ok(false)
            }
            Step::Ended(end) => {
                self.changes.remove(&token);
                end.map(|_number| true).context("a change of all copies")
            }
        }
    }

    /// Takes an answer of one store.
    fn take(
        &mut self,
        (token, end): client::End,
        take: &mut dyn FnMut(usize, Reply<'_>),
    ) -> Result<()> {
        let at = usize::try_from(token).context("a loop")?;
        if let Some(change) = self.changes.get_mut(&token) {
            let step = change.handle(end);
            if self.go_on(token, step)? {
                take(at, Reply::Stored);
            }
            return Ok(());
        }
        match end {
            Ok(Outcome::Value { value, .. }) => match version_of(&value)? {
                Some(version) => take(at, Reply::Value(&version.value)),
                None => take(at, Reply::Miss),
            },
            Ok(Outcome::Absent) => take(at, Reply::Miss),
            Ok(other) => bail!("an answer to something else: {other:?}"),
            Err(error) => take(at, Reply::Refused(&error.to_string())),
        }
        Ok(())
    }
}

impl Client for Connected {
    fn loops(&self) -> usize {
        self.loops
    }

    fn submit(&mut self, at: usize, request: Request<'_>) -> Result<()> {
        let token = at as u64;
        match request {
            Request::Get { key } => {
                let command = Command::Get { key: key.to_vec() };
                let last = self.clients.last_mut().context("a row of no stores")?;
                last.submit(command, token, Time::now());
            }
            Request::Put { key, value } => {
                let (value, row) = (Some(value.to_vec()), self.clients.len());
                let (change, step) = Change::new(key.to_vec(), value, Condition::Always, row);
                self.changes.insert(token, change);
                self.go_on(token, step)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self, take: &mut dyn FnMut(usize, Reply<'_>)) -> Result<()> {
        let mut looks = Looks::begin();
        loop {
            let now = Time::now();
            let mut any = false;
            for store in 0..self.clients.len() {
                while let Some(end) = self.clients[store].poll(now) {
                    any = true;
                    self.take(end, take)?;
                }
            }
            if any {
                return Ok(());
            }
            if !looks.go_on(now) {
                let waited = client::Client::wait_for_any(&mut self.clients, WAIT);
                return waited.context("wait for our stores");
            }
        }
    }
}

//! Which procedures there are, and the instances that run them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use cenote_proc_sdk::{Frame, Procedure, Verdict};
use cenote_wire::{List, messages};

use crate::executor::Run;
use crate::native::{Linked, Native};
use crate::service::{GRANTS_MAX, Label, Row};
#[cfg(feature = "wasm")]
use crate::wasm::{Guest, Instance, Runtime};
use crate::{CacheId, Outcome, ProcedureId, Request, Table, Trap};

/// The procedures of a host, by name and version; shared by its threads.
///
/// A version is never replaced: an upload of a name makes the next version, with a number of its
/// own, so that a request under way ends with the code that it began with. For the same reason a
/// number is used once in a process: threads keep instances, and requests wait, by number.
#[derive(Default)]
pub struct Registry {
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    by_id: HashMap<ProcedureId, Entry>,
    /// All numbers that were ever used, with those that are.
    used: HashSet<ProcedureId>,
    /// Counts changes, so that threads know when to look again.
    changes: u64,
}

#[derive(Clone)]
struct Entry {
    name: String,
    version: u32,
    grants: Grants,
    code: Code,
}

messages! {
    /// What a procedure may do with a cache.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub enum Access | "unknown access" {
        /// Load.
        0 => Read,
        /// Load, and store where the cache allows it.
        1 => ReadWrite,
    }

    /// Which caches a procedure may be run on.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Grants | "unknown grants" {
        /// Those named here.
        1 => Caches(Vec<(CacheId, Access)> as List<u32, 0, GRANTS_MAX> | "too many caches"),
        /// All of the host.
        0 => All(Access),
    }
}

impl Grants {
    /// What is granted on a cache.
    #[must_use]
    pub fn of(&self, cache: CacheId) -> Option<Access> {
        match self {
            Self::All(access) => Some(*access),
            Self::Caches(caches) => caches
                .iter()
                .find_map(|(granted, access)| (*granted == cache).then_some(*access)),
        }
    }
}

#[derive(Clone)]
enum Code {
    Native(Arc<dyn Native>),
    /// It is being compiled; the checksum of its module.
    Coming(u64),
    #[cfg(feature = "wasm")]
    Guest(Arc<Guest>),
}

/// Why a procedure was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum RegistryError {
    /// The number is another procedure's, or was.
    #[error("the number belongs, or belonged, to another procedure or version")]
    Taken,
    /// A name has 1 to 64 letters, digits, `-`, `_` and `.`.
    #[error("a procedure's name has 1 to 64 letters, digits, '-', '_' and '.'")]
    Name,
    /// As many as a host keeps are here.
    #[error("a host keeps at most {PROCEDURES_MAX} procedures")]
    Full,
    /// As many as a process takes in its life were here.
    #[error("a host takes at most {USED_MAX} procedures until it is started again")]
    Worn,
}

impl Registry {
    /// Adds a native procedure, as version 0.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn link<P: Procedure + 'static>(
        &self,
        id: ProcedureId,
        name: &str,
        grants: Grants,
    ) -> Result<(), RegistryError> {
        let entry = Entry {
            name: name.to_owned(),
            version: 0,
            grants,
            code: Code::Native(Arc::new(Linked::<P>::new())),
        };
        self.put(id, entry)
    }

    /// Adds a module.
    ///
    /// # Errors
    /// [`RegistryError`].
    #[cfg(feature = "wasm")]
    pub fn load(
        &self,
        id: ProcedureId,
        name: &str,
        version: u32,
        grants: Grants,
        guest: Guest,
    ) -> Result<(), RegistryError> {
        let entry = Entry {
            name: name.to_owned(),
            version,
            grants,
            code: Code::Guest(Arc::new(guest)),
        };
        self.put(id, entry)
    }

    /// Holds a place for a module that is yet to be compiled: requests for it are to come again.
    ///
    /// # Errors
    /// [`RegistryError`].
    pub fn expect(&self, label: &Label, checksum: u64) -> Result<(), RegistryError> {
        let entry = Entry {
            name: label.name.clone(),
            version: label.version,
            grants: label.grants.clone(),
            code: Code::Coming(checksum),
        };
        self.put(label.id, entry)
    }

    /// Gives a module to the place that was held for it; whether there is one still.
    #[cfg(feature = "wasm")]
    pub fn arrive(&self, id: ProcedureId, guest: Guest) -> bool {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let entry = inner.by_id.get_mut(&id);
        let Some(entry) = entry.filter(|entry| matches!(entry.code, Code::Coming(_))) else {
            return false;
        };
        entry.code = Code::Guest(Arc::new(guest));
        inner.changes += 1;
        true
    }

    /// Gives up a place that was held: its module cannot be compiled. The number may be used.
    pub fn give_up(&self, id: ProcedureId) {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let is_held = |entry: &Entry| matches!(entry.code, Code::Coming(_));
        if inner.by_id.get(&id).is_some_and(is_held) {
            inner.by_id.remove(&id);
            inner.used.remove(&id);
            inner.changes += 1;
        }
    }

    fn put(&self, id: ProcedureId, entry: Entry) -> Result<(), RegistryError> {
        let (name, version) = (&entry.name, entry.version);
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_fine) {
            return Err(RegistryError::Name);
        }
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        let same_name = |other: &Entry| other.name == *name && other.version == version;
        if inner.used.contains(&id) || inner.by_id.values().any(same_name) {
            return Err(RegistryError::Taken);
        }
        if inner.by_id.len() >= PROCEDURES_MAX {
            return Err(RegistryError::Full);
        }
        if inner.used.len() >= USED_MAX {
            return Err(RegistryError::Worn);
        }
        inner.used.insert(id);
        inner.by_id.insert(id, entry);
        inner.changes += 1;
        Ok(())
    }

    /// Whether a number is, or was, a procedure's.
    #[must_use]
    pub fn was_used(&self, id: ProcedureId) -> bool {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.used.contains(&id)
    }

    /// Takes a procedure away; whether it was there. Requests for it are answered `Unknown`, those
    /// under way `Gone`.
    pub fn remove(&self, id: ProcedureId) -> bool {
        let mut inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        inner.changes += 1;
        inner.by_id.remove(&id).is_some()
    }

    /// All of them, by number.
    #[must_use]
    pub fn list(&self) -> Vec<Row> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        let row = |(id, entry): (&ProcedureId, &Entry)| Row {
            id: *id,
            name: entry.name.clone(),
            version: entry.version,
            native: matches!(entry.code, Code::Native(_)),
            grants: entry.grants.clone(),
            checksum: match &entry.code {
                Code::Native(_) => 0,
                Code::Coming(checksum) => *checksum,
                #[cfg(feature = "wasm")]
                Code::Guest(guest) => guest.checksum(),
            },
        };
        let mut rows: Vec<_> = inner.by_id.iter().map(row).collect();
        rows.sort_by_key(|row| row.id);
        rows
    }

    fn entry(&self, id: ProcedureId) -> Option<Entry> {
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        inner.by_id.get(&id).cloned()
    }

    fn changes(&self) -> u64 {
        self.inner
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .changes
    }
}

/// Runs steps on one thread, with instances of its own.
pub struct Procedures {
    registry: Arc<Registry>,
    seen: u64,
    /// Small: a linear search is faster than a hash.
    ready: Vec<Ready>,
    frame: Box<Frame>,
}

struct Ready {
    procedure: ProcedureId,
    cache: CacheId,
    access: Access,
    code: Loaded,
}

enum Loaded {
    Native(Arc<dyn Native>),
    #[cfg(feature = "wasm")]
    Guest(Box<Instance>, Arc<Runtime>),
}

impl Procedures {
    /// For one thread.
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        Self {
            registry,
            seen: 0,
            ready: Vec::new(),
            frame: Box::default(),
        }
    }

    /// Where the code of a request is in `ready`, loaded if need be.
    fn find(&mut self, request: &Request) -> Result<usize, Outcome> {
        let is_it =
            |ready: &Ready| ready.procedure == request.procedure && ready.cache == request.cache;
        if let Some(at) = self.ready.iter().position(is_it) {
            return Ok(at);
        }
        let entry = self.registry.entry(request.procedure);
        let entry = entry.ok_or(Outcome::Trap(Trap::Unknown))?;
        let access = entry.grants.of(request.cache);
        let access = access.ok_or(Outcome::Trap(Trap::Denied))?;
        let code = match entry.code {
            Code::Native(native) => Loaded::Native(native),
            Code::Coming(_) => return Err(Outcome::Coming),
            #[cfg(feature = "wasm")]
            Code::Guest(guest) => {
                let instance = guest.instance();
                let instance = instance.map_err(|_| Outcome::Trap(Trap::Crashed))?;
                Loaded::Guest(Box::new(instance), Arc::clone(guest.runtime()))
            }
        };
        if self.ready.len() >= READY_MAX {
            self.ready.remove(0);
        }
        self.ready.push(Ready {
            procedure: request.procedure,
            cache: request.cache,
            access,
            code,
        });
        Ok(self.ready.len() - 1)
    }
}

impl Run for Procedures {
    fn begin(&mut self) {
        let changes = self.registry.changes();
        if changes != self.seen {
            self.seen = changes;
            let registry = &self.registry;
            self.ready
                .retain(|ready| registry.entry(ready.procedure).is_some());
        }
    }

    fn step(
        &mut self,
        request: &mut Request,
        table: &mut Table,
        addr: u64,
        data: &[u8],
    ) -> Outcome {
        let at = match self.find(request) {
            Ok(at) => at,
            Err(outcome) => return outcome,
        };
        let ready = &mut self.ready[at];
        table.begin_step(ready.access == Access::ReadWrite);
        match &mut ready.code {
            Loaded::Native(native) => {
                self.frame.begin(&request.state, addr, data);
                let verdict = native.step(table, &mut self.frame);
                request.state.clear();
                request.state.extend_from_slice(self.frame.state());
                of_verdict(verdict)
            }
            #[cfg(feature = "wasm")]
            Loaded::Guest(instance, runtime) => {
                let running = runtime.running();
                let outcome = instance.step(request, table, addr, data);
                drop(running);
                if matches!(outcome, Outcome::Trap(trap) if trap.is_crash()) {
                    self.ready.remove(at);
                }
                outcome
            }
        }
    }
}

#[cfg(feature = "wasm")]
impl Trap {
    /// Whether what ran was cut off in the middle.
    fn is_crash(self) -> bool {
        !matches!(
            self,
            Self::Failed(_) | Self::Unknown | Self::Denied | Self::Gone
        )
    }
}

fn of_verdict(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Done => Outcome::Done,
        Verdict::Fetch { size, .. } | Verdict::Move { size, .. } if !is_size(size) => {
            Outcome::Trap(Trap::BadVerdict)
        }
        Verdict::Fetch { addr, size } => Outcome::DataNeeded { addr, size },
        Verdict::Move { addr, size } => Outcome::Forward { addr, size },
        Verdict::Again => Outcome::Again,
        Verdict::Stop => Outcome::Stop,
        Verdict::Fail(code) => Outcome::Trap(Trap::Failed(code)),
    }
}

/// Whether a procedure may want that many bytes at once.
pub(crate) fn is_size(size: u32) -> bool {
    (1..=cenote_proc_sdk::DATA_MAX).contains(&(size as usize))
}

/// Arbitrary: more than people name, and few enough to be listed in one answer.
const PROCEDURES_MAX: usize = 1024;
/// Arbitrary: nobody removes and puts that many, and the numbers are few bytes.
const USED_MAX: usize = 1 << 16;
/// Instances that a thread keeps; each has a few pages.
const READY_MAX: usize = 64;

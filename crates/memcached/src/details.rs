//! `stats detail`: retrievals, stores and deletes by the prefix of their keys, while that is on.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_kv::engine::{Event, EventKind};
use cenote_kv::protocol::Words;
use cenote_kv::protocol::reply::{self, Answer};

use super::backend::Backend;
use super::core::Core;
use super::session::Session;
use super::threads::locked;

/// What ends a prefix.
const DELIMITER: u8 = b':';
/// Prefixes that are kept; those of further keys are not counted. Clients choose them.
const PREFIXES_MAX: usize = 10_000;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Details {
    is_on: AtomicBool,
    prefixes: Mutex<BTreeMap<Vec<u8>, Counts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    gets: u64,
    hits: u64,
    sets: u64,
    deletes: u64,
}

impl Details {
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        locked(&self.prefixes).clear();
    }

    /// Counts what was done to a key. One without a delimiter has no prefix.
    pub(super) fn count(&self, event: &Event, key: &[u8]) {
        if !self.is_on() || matches!(event.kind, EventKind::Fetch { is_asked: false }) {
            return;
        }
        let Some(end) = key.iter().position(|byte| *byte == DELIMITER) else {
            return;
        };
        let mut prefixes = locked(&self.prefixes);
        if !prefixes.contains_key(&key[..end]) && prefixes.len() >= PREFIXES_MAX {
            return;
        }
        let counts = prefixes.entry(key[..end].to_vec()).or_default();
        match event.kind {
            EventKind::Fetch { .. } => {
                counts.gets += 1;
                counts.hits += u64::from(event.status == "found");
            }
            EventKind::Store { .. } => counts.sets += 1,
            EventKind::Delete => counts.deletes += 1,
        }
    }

    /// What `stats detail dump` answers, without its end.
    pub(super) fn dump(&self, out: &mut Vec<u8>) {
        for (prefix, counts) in &*locked(&self.prefixes) {
            let Counts {
                gets,
                hits,
                sets,
                deletes,
            } = counts;
            out.extend_from_slice(b"PREFIX ");
            out.extend_from_slice(prefix);
            let line = format!(" get {gets} hit {hits} set {sets} del {deletes}\r\n");
            out.extend_from_slice(line.as_bytes());
        }
    }
}

impl Session {
    /// `stats detail` and the words after it.
    pub(super) fn detail<B: Backend>(&mut self, core: &Core<B>, mut words: Words<'_>) {
        let details = &core.shared.details;
        let out = self.replies.tail();
        match words.next() {
            Some(b"on") => details.set(true),
            Some(b"off") => details.set(false),
            Some(b"dump") => {
                details.dump(out);
                return reply::end(out);
            }
            _ => {
                let text = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
                return out.extend_from_slice(text);
            }
        }
        reply::answer(out, Answer::Ok);
    }
}

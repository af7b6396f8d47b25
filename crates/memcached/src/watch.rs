//! `watch`: what happens in a server, line by line, to the connections that asked to see it.
//!
//! Whoever does something writes its line into the buffer of each watcher that wants to see it; the
//! watcher's worker moves that to its replies as fast as the peer reads. Nobody waits for a watcher:
//! a line that finds no room is counted, and the count told when there is some again. Without a
//! watcher all this costs a look at one number.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use cenote_kv::engine::{Event, EventKind, Item, NEVER};
use cenote_kv::protocol::Words;

use super::backend::Backend;
use super::clock::since_1970;
use super::core::Core;
use super::session::Session;
use super::threads::locked;

/// Watchers at once, as in memcached.
const WATCHERS_MAX: usize = 20;
/// Bytes that wait for one, as many as memcached's.
const BUFFER_BYTES: usize = 256 << 10;

/// What can be watched: bits of a mask.
pub(super) const FETCHERS: u8 = 1;
pub(super) const MUTATIONS: u8 = 2;
pub(super) const EVICTIONS: u8 = 4;
pub(super) const CONNECTIONS: u8 = 8;
pub(super) const COMMANDS: u8 = 16;
/// Accepted, and nothing of it happens here.
const SYSTEM: u8 = 32;

/// What the words after `watch` ask for; nothing where one is unknown.
pub(super) fn wanted(words: Words<'_>) -> Option<u8> {
    let mut wanted = 0;
    for word in words {
        wanted |= match word {
            b"fetchers" => FETCHERS,
            b"mutations" => MUTATIONS,
            b"evictions" => EVICTIONS,
            b"connevents" => CONNECTIONS,
            b"rawcmds" => COMMANDS,
            b"sysevents" => SYSTEM,
            _ => return None,
        };
    }
    Some(if wanted == 0 { FETCHERS } else { wanted })
}

/// One connection that watches.
#[derive(Debug)]
pub(super) struct Watcher {
    wanted: u8,
    /// The worker that it is on, and its place there.
    pub(super) worker: usize,
    pub(super) place: usize,
    buffer: Mutex<Buffer>,
}

#[derive(Debug, Default)]
struct Buffer {
    text: Vec<u8>,
    skipped: u64,
}

impl Watcher {
    /// Takes what waits for it.
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut locked(&self.buffer).text)
    }

    /// Whether the line found room.
    fn put(&self, line: &[u8]) -> bool {
        let mut buffer = locked(&self.buffer);
        if buffer.text.len() + line.len() > BUFFER_BYTES {
            buffer.skipped += 1;
            return false;
        }
        let skipped = std::mem::take(&mut buffer.skipped);
        if skipped > 0 {
            let told = format!("skipped={skipped}\n");
            buffer.text.extend_from_slice(told.as_bytes());
        }
        buffer.text.extend_from_slice(line);
        true
    }
}

/// All that watch.
#[derive(Debug, Default)]
pub(super) struct Watchers {
    /// What at least one of them wants to see.
    wanted: AtomicU8,
    list: Mutex<Vec<Arc<Watcher>>>,
    lines: AtomicU64,
    skipped: AtomicU64,
    sent: AtomicU64,
}

impl Watchers {
    /// Whether somebody wants to see some of this.
    pub(super) fn want(&self, kinds: u8) -> bool {
        self.wanted.load(Ordering::Relaxed) & kinds != 0
    }

    /// Takes one more; nothing where there are too many.
    pub(super) fn add(&self, wanted: u8, worker: usize, place: usize) -> Option<Arc<Watcher>> {
        let mut list = locked(&self.list);
        if list.len() >= WATCHERS_MAX {
            return None;
        }
        let watcher = Arc::new(Watcher {
            wanted,
            worker,
            place,
            buffer: Mutex::default(),
        });
        list.push(Arc::clone(&watcher));
        self.wanted.fetch_or(wanted, Ordering::Relaxed);
        Some(watcher)
    }

    /// One has gone.
    pub(super) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut list = locked(&self.list);
        list.retain(|other| !Arc::ptr_eq(other, watcher));
        let wanted = list.iter().fold(0, |mask, watcher| mask | watcher.wanted);
        self.wanted.store(wanted, Ordering::Relaxed);
    }

    /// Those of a worker.
    pub(super) fn of(&self, worker: usize) -> Vec<Arc<Watcher>> {
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let list = locked(&self.list);
        let own = list.iter().filter(|watcher| watcher.worker == worker);
        own.map(Arc::clone).collect()
    }

    /// Writes a line of a kind for who wants to see it; returns the workers to wake.
    pub(super) fn log(&self, kind: u8, line: impl FnOnce() -> String) -> Vec<usize> {
        if !self.want(kind) {
            return Vec::new();
        }
        let since = since_1970();
        let (seconds, rest) = (since.as_secs(), since.subsec_micros());
        let number = self.lines.fetch_add(1, Ordering::Relaxed) + 1;
        let line = format!("ts={seconds}.{rest:06} gid={number} {}\n", line());
        let mut workers = Vec::new();
        for watcher in &*locked(&self.list) {
            if watcher.wanted & kind == 0 {
                continue;
            }
            let counter = match watcher.put(line.as_bytes()) {
                true => &self.sent,
                false => &self.skipped,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            workers.push(watcher.worker);
        }
        workers
    }

    pub(super) fn count(&self) -> usize {
        locked(&self.list).len()
    }

    pub(super) fn written(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }
}

/// Appends a key as URIs have it, and memcached's log.
pub(super) fn write_key(line: &mut String, key: &[u8]) {
    for byte in key {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                line.push(char::from(*byte));
            }
            _ => write!(line, "%{byte:02X}").expect("a string takes all"),
        }
    }
}

/// The kind of an event, and its line; nothing of what is not shown.
pub(super) fn line_of(event: &Event, key: &[u8], connection: i32) -> Option<(u8, String)> {
    let mut line = String::new();
    let Event { status, size, .. } = *event;
    let kind = match event.kind {
        EventKind::Fetch { .. } => {
            line.push_str("type=item_get key=");
            write_key(&mut line, key);
            let class = u8::from(status == "found");
            write!(line, " status={status} clsid={class}").ok()?;
            FETCHERS
        }
        EventKind::Store { command, ttl } => {
            line.push_str("type=item_store key=");
            write_key(&mut line, key);
            write!(line, " status={status} cmd={command} ttl={ttl} clsid=1").ok()?;
            MUTATIONS
        }
        EventKind::Delete => return None,
    };
    write!(line, " cfd={connection} size={size}").ok()?;
    Some((kind, line))
}

/// The line of an item that made room for others.
pub(super) fn evicted(key: &[u8], item: &Item, now: u64) -> String {
    let mut line = "type=eviction key=".to_owned();
    write_key(&mut line, key);
    let fetch = if item.was_hit { "yes" } else { "no" };
    let ttl = match item.expiry {
        NEVER => -1,
        expiry => i64::from(expiry).saturating_sub_unsigned(now),
    };
    let idle = now.saturating_sub(item.last_use.into());
    let size = item.value_bytes;
    write!(
        line,
        " fetch={fetch} ttl={ttl} la={idle} clsid=1 size={size}"
    )
    .expect("a string takes all");
    line
}

impl Session {
    /// Shows what happens from now on.
    pub(super) fn watch<B: Backend>(&mut self, core: &Core<B>, words: Words<'_>) {
        let shared = &core.shared;
        let is_first = self.replies.is_done();
        let answer: &[u8] = match (wanted(words), self.connection) {
            _ if !shared.settings.may_watch => b"CLIENT_ERROR watch commands not allowed\r\n",
            _ if !is_first => b"ERROR cannot pipeline other commands before watch\r\n",
            (Some(wanted), Some(_)) => {
                let place = self.place();
                self.watcher = shared.watchers.add(wanted, core.index, place);
                match self.watcher {
                    Some(_) => b"OK\r\n",
                    None => b"WATCHER_TOO_MANY log watcher limit reached\r\n",
                }
            }
            _ => b"ERROR\r\n",
        };
        self.replies.tail().extend_from_slice(answer);
    }

    /// Moves what is to be shown to the replies, as the client reads.
    pub(super) fn show_events(&mut self) {
        let Some(watcher) = &self.watcher else {
            return;
        };
        if !self.replies.is_full() {
            self.replies.tail().extend_from_slice(&watcher.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_without_room_is_counted_and_told() {
        let watchers = Watchers::default();
        assert!(
            watchers
                .log(FETCHERS, || unreachable!("nobody wants it"))
                .is_empty()
        );
        let watcher = watchers.add(FETCHERS, 3, 0).unwrap();
        let long = "x".repeat(100 << 10);
        for _ in 0..4 {
            assert_eq!(watchers.log(FETCHERS, || long.clone()), [3]);
        }
        assert!(watchers.log(MUTATIONS, String::new).is_empty());
        assert_eq!((watchers.sent(), watchers.skipped()), (2, 2));
        assert!(watcher.take().len() <= BUFFER_BYTES);
        watchers.log(FETCHERS, || "type=item_get".to_owned());
        let text = String::from_utf8(watcher.take()).unwrap();
        assert!(text.starts_with("skipped=2\nts=") && text.ends_with(" type=item_get\n"));
        watchers.remove(&watcher);
        assert!(!watchers.want(FETCHERS) && watchers.of(3).is_empty());
    }

    #[test]
    fn there_are_not_too_many() {
        let watchers = Watchers::default();
        let all: Vec<_> = (0..WATCHERS_MAX)
            .map(|at| watchers.add(FETCHERS, 0, at))
            .collect();
        assert!(all.iter().all(Option::is_some));
        assert!(watchers.add(FETCHERS, 0, 99).is_none());
    }

    #[test]
    fn words_name_what_is_watched() {
        assert_eq!(wanted(Words::new(b"")), Some(FETCHERS));
        assert_eq!(
            wanted(Words::new(b"mutations evictions")),
            Some(MUTATIONS | EVICTIONS)
        );
        assert_eq!(wanted(Words::new(b"nonsense")), None);
    }
}

//! `stats`: memcached's names, with what they mean here.
//!
//! Items are told by the [classes](cenote_kv::memory::classes) that memcached would have put them into. Names
//! about memcached's own machinery (moves of pages, the parts of its LRU) are there, and 0.

use std::fmt::Display;
use std::sync::atomic::Ordering;

use nix::sys::resource::{UsageWho, getrusage};

use cenote_kv::engine::Counters;
use cenote_kv::engine::counters::ClassCounters;
use cenote_kv::memory::classes::{CLASSES, chunk_bytes};
use cenote_kv::protocol::binary::{self, Head, Status};
use cenote_kv::protocol::reply::{self, Answer};
use cenote_kv::protocol::{Error, Words};

use super::backend::{Backend, Figures, Peers};
use super::classes::Class;
use super::clock::clock;
use super::core::Core;
use super::shared::Shared;
use super::threads::locked;
use super::traffic::Traffic;

/// Bytes of the smallest piece of memory.
const CHUNK_BYTES: u64 = 16;
/// Bytes of a page of memcached, by which chunks are told.
const PAGE_BYTES: u64 = 1 << 20;

/// What memcached counts of machinery that is not here.
const SLABS: &[&str] = &[
    "slab_reassign_rescues",
    "slab_reassign_chunk_rescues",
    "slab_reassign_evictions_nomem",
    "slab_reassign_inline_reclaim",
    "slab_reassign_busy_items",
    "slab_reassign_busy_deletes",
    "slab_reassign_running",
    "slabs_moved",
];
/// The same of what its threads do that move items about: not told where they are turned off.
const LRU_THREADS: &[&str] = &[
    "lru_crawler_running",
    "lru_crawler_starts",
    "lru_maintainer_juggles",
];
const LRU_MOVES: &[&str] = &[
    "moves_to_cold",
    "moves_to_warm",
    "moves_within_lru",
    "direct_reclaims",
    "lru_bumps_dropped",
];

/// Answers `stats` and the words after it.
pub(super) fn write<B: Backend>(out: &mut Vec<u8>, core: &mut Core<B>, words: Words<'_>) {
    match list(out, core, words) {
        Some(Told::List) => reply::end(out),
        Some(Told::Reset) => reply::answer(out, Answer::Reset),
        None => reply::error(out, Error::Unknown),
    }
}

/// The same in the binary protocol, where they are the key of a message.
pub(super) fn write_binary<B: Backend>(
    out: &mut Vec<u8>,
    core: &mut Core<B>,
    head: Head,
    key: &[u8],
) {
    let mut frames = Frames { out, head };
    match list(&mut frames, core, Words::new(key)) {
        Some(_) => binary::reply::stat(out, head, b"", b""),
        None => binary::reply::error(out, head, Status::NotFound),
    }
}

/// What was told.
enum Told {
    /// Names and values.
    List,
    /// That counters are at 0.
    Reset,
}

/// Lists what the words after `stats` ask for; nothing where they ask for nothing that there is.
fn list<B: Backend>(
    list: &mut impl List,
    core: &mut Core<B>,
    mut words: Words<'_>,
) -> Option<Told> {
    // What this turn has done so far counts.
    core.show_figures();
    let core = &*core;
    let shared = &*core.shared;
    match words.next() {
        None => general(list, shared, core.now),
        Some(b"settings") => settings(list, shared),
        Some(b"items") => items(list, shared),
        Some(b"slabs") => slabs(list, shared),
        Some(b"sizes") => list.add("sizes_status", "disabled"),
        Some(b"shards") => shards(list, core),
        Some(b"conns") => connections(list, shared, core.now),
        Some(b"reset") => {
            *locked(&shared.baseline) = totals(shared);
            let classes = (0..CLASSES).map(|class| class_total(shared, class));
            *locked(&shared.class_baseline) = classes.collect();
            shared.details.clear();
            return Some(Told::Reset);
        }
        Some(_) => return None,
    }
    Some(Told::List)
}

/// Where each partition is: what a client has to know that asks its owner at once.
fn shards<B: Backend>(list: &mut impl List, core: &Core<B>) {
    let shards = core.backend.peers().map(Peers::shards).unwrap_or_default();
    list.add("hash", "xxh3_64");
    list.add("shards", shards.len());
    for (index, owner) in shards.iter().enumerate() {
        if let Some(owner) = owner {
            list.add(&format!("shard:{index}"), owner);
        }
    }
}

/// Where names and values go.
trait List {
    fn add(&mut self, name: &str, value: impl Display);
}

impl List for Vec<u8> {
    fn add(&mut self, name: &str, value: impl Display) {
        reply::stat(self, name, &value.to_string());
    }
}

/// Statistics as messages of the binary protocol.
struct Frames<'a> {
    out: &'a mut Vec<u8>,
    head: Head,
}

impl List for Frames<'_> {
    fn add(&mut self, name: &str, value: impl Display) {
        let value = value.to_string();
        binary::reply::stat(self.out, self.head, name.as_bytes(), value.as_bytes());
    }
}

impl List for Vec<(String, String)> {
    fn add(&mut self, name: &str, value: impl Display) {
        self.push((name.to_owned(), value.to_string()));
    }
}

/// What `stats` tells, for who is no client. Workers have said how full they are in their last turn.
pub(super) fn listed(shared: &Shared) -> Vec<(String, String)> {
    let mut list = Vec::new();
    general(&mut list, shared, clock());
    // memcached tells it among its size classes; who reads all of this at once wants it as well.
    list.add("total_malloced", figures(shared).resident_bytes);
    list
}

type ReadTraffic = fn(&Traffic) -> u64;

/// Names of what is counted beside [`Counters::NAMES`], all of which `stats reset` puts to 0.
const TRAFFIC: &[(&str, ReadTraffic)] = &[
    ("auth_cmds", |traffic| traffic.auth_cmds.read()),
    ("auth_errors", |traffic| traffic.auth_errors.read()),
    ("idle_kicks", |traffic| traffic.idle_kicks.read()),
    ("bytes_read", |traffic| traffic.bytes_read.read()),
    ("bytes_written", |traffic| traffic.bytes_written.read()),
    ("conn_yields", |traffic| traffic.conn_yields.read()),
    ("evictions", |traffic| traffic.figures().went.evictions),
    ("evicted_unfetched", |traffic| {
        traffic.figures().went.evicted_unfetched
    }),
    ("reclaimed", |traffic| traffic.figures().went.reclaimed),
    ("expired_unfetched", |traffic| {
        traffic.figures().went.expired_unfetched
    }),
];

/// Everything that is counted, over all workers, and connections.
fn totals(shared: &Shared) -> Vec<u64> {
    let mut totals = vec![0; Counters::NAMES.len() + TRAFFIC.len()];
    for worker in &shared.workers {
        let traffic = TRAFFIC.iter().map(|(_, read)| read(&worker.traffic));
        let numbers = worker.counters.read().into_iter().chain(traffic);
        for (total, number) in totals.iter_mut().zip(numbers) {
            *total += number;
        }
    }
    let connections = &shared.connections;
    for counter in [&connections.total, &connections.rejected] {
        totals.push(counter.load(Ordering::Relaxed));
    }
    totals
}

/// What is counted, since the last reset.
struct Counted(Vec<u64>);

impl Counted {
    fn new(shared: &Shared) -> Self {
        let mut totals = totals(shared);
        for (total, base) in totals.iter_mut().zip(locked(&shared.baseline).iter()) {
            *total = total.saturating_sub(*base);
        }
        Self(totals)
    }

    fn number(&self, name: &str) -> u64 {
        let names = Counters::NAMES.iter().copied();
        let mut names = names
            .chain(TRAFFIC.iter().map(|(name, _)| *name))
            .chain(["total_connections", "rejected_connections"]);
        let at = names.position(|known| known == name);
        self.0[at.expect("is one of the names above")]
    }
}

fn figures(shared: &Shared) -> Figures {
    let all = shared.workers.iter().map(|worker| worker.traffic.figures());
    all.fold(Figures::default(), |sum, one| Figures {
        items: sum.items + one.items,
        bytes: sum.bytes + one.bytes,
        resident_bytes: sum.resident_bytes + one.resident_bytes,
        ..sum
    })
}

fn class_total(shared: &Shared, class: usize) -> Class {
    let mut all = Class::new();
    for worker in &shared.workers {
        let figures = worker.traffic.classes.of(class);
        all.add(&figures, worker.counters.classes.of(class));
    }
    all
}

/// What is told of classes that have items, or had some since the last reset; by their numbers.
fn classes(shared: &Shared) -> Vec<(usize, Class)> {
    let bases = locked(&shared.class_baseline);
    let classes = (1..CLASSES).map(|class| {
        let mut all = class_total(shared, class);
        if let Some(base) = bases.get(class) {
            all.take_off(base);
        }
        (class, all)
    });
    classes.filter(|(_, class)| class.is_used()).collect()
}

fn general(list: &mut impl List, shared: &Shared, now: u64) {
    let counted = Counted::new(shared);
    let figures = figures(shared);
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("one's own usage is known");
    let settings = &shared.settings;
    let connections = &shared.connections;
    list.add("pid", std::process::id());
    list.add("uptime", shared.started.elapsed().as_secs());
    list.add("time", now);
    list.add("version", &settings.version);
    list.add("libevent", "none");
    list.add("pointer_size", usize::BITS);
    for (name, time) in [
        ("rusage_user", usage.user_time()),
        ("rusage_system", usage.system_time()),
    ] {
        list.add(
            name,
            format_args!("{}.{:06}", time.tv_sec(), time.tv_usec()),
        );
    }
    list.add("max_connections", settings.connections_max);
    let current = connections.current.load(Ordering::Relaxed);
    list.add("curr_connections", current);
    let buffers = shared
        .workers
        .iter()
        .map(|worker| worker.traffic.buffer_bytes.read());
    let buffer_bytes = buffers.sum::<u64>();
    let mut counts = |names: &[&str]| {
        for name in names {
            list.add(name, counted.number(name));
        }
    };
    counts(&["total_connections", "rejected_connections"]);
    let structures = shared.facts().len();
    list.add("connection_structures", structures);
    for name in [
        "response_obj_oom",
        "response_obj_count",
        "response_obj_bytes",
    ] {
        list.add(name, 0);
    }
    list.add("read_buf_count", current);
    list.add("read_buf_bytes", buffer_bytes);
    list.add("read_buf_bytes_free", 0);
    list.add("read_buf_oom", 0);
    list.add("reserved_fds", 0);
    let mut counts = |names: &[&str]| {
        for name in names {
            list.add(name, counted.number(name));
        }
    };
    counts(&["cmd_get", "cmd_set", "cmd_flush", "cmd_touch", "cmd_meta"]);
    counts(&["get_hits", "get_misses", "get_expired", "get_flushed"]);
    counts(&["delete_misses", "delete_hits"]);
    counts(&["incr_misses", "incr_hits", "decr_misses", "decr_hits"]);
    counts(&["cas_misses", "cas_hits", "cas_badval"]);
    counts(&["touch_hits", "touch_misses"]);
    counts(&["store_too_large", "store_no_memory"]);
    counts(&["auth_cmds", "auth_errors"]);
    if settings.idle_timeout.is_some() {
        counts(&["idle_kicks"]);
    }
    counts(&["bytes_read", "bytes_written"]);
    list.add(
        "limit_maxbytes",
        shared.memory_bytes.load(Ordering::Relaxed),
    );
    let is_accepting = connections.is_accepting.load(Ordering::Relaxed);
    list.add("accepting_conns", u8::from(is_accepting));
    let stops = connections.stops.load(Ordering::Relaxed);
    list.add("listen_disabled_num", stops);
    list.add("time_in_listen_disabled_us", 0);
    list.add("threads", settings.workers);
    list.add("conn_yields", counted.number("conn_yields"));
    for name in ["hash_power_level", "hash_bytes", "hash_is_expanding"] {
        list.add(name, 0);
    }
    let threads = if settings.tells_lru { LRU_THREADS } else { &[] };
    for name in SLABS.iter().chain(threads) {
        list.add(name, 0);
    }
    list.add("malloc_fails", 0);
    let log = &shared.watchers;
    list.add("log_worker_dropped", 0);
    list.add("log_worker_written", log.written());
    list.add("log_watcher_skipped", log.skipped());
    list.add("log_watcher_sent", log.sent());
    list.add("log_watchers", log.count());
    list.add("unexpected_napi_ids", 0);
    list.add("round_robin_fallback", 0);
    list.add("bytes", figures.bytes);
    list.add("curr_items", figures.items);
    list.add("total_items", counted.number("total_items"));
    list.add("slab_global_page_pool", 0);
    for name in ["expired_unfetched", "evicted_unfetched"] {
        list.add(name, counted.number(name));
    }
    if settings.tells_lru {
        list.add("evicted_active", 0);
    }
    for name in ["evictions", "reclaimed"] {
        list.add(name, counted.number(name));
    }
    let none = [
        "crawler_reclaimed",
        "crawler_items_checked",
        "lrutail_reflocked",
    ];
    let moves = if settings.tells_lru { LRU_MOVES } else { &[] };
    for name in none.iter().chain(moves) {
        list.add(name, 0);
    }
}

fn settings(list: &mut impl List, shared: &Shared) {
    let settings = &shared.settings;
    let yes = |is_so| if is_so { "yes" } else { "no" };
    list.add("maxbytes", shared.memory_bytes.load(Ordering::Relaxed));
    list.add("maxconns", settings.connections_max);
    let tcp = settings.tcp.first().map_or(0, |tcp| tcp.address.port());
    let udp = settings.udp.first().map_or(0, |udp| udp.port());
    list.add("tcpport", tcp);
    list.add("udpport", udp);
    list.add("verbosity", shared.verbosity.load(Ordering::Relaxed));
    list.add("evictions", if settings.evicts { "on" } else { "off" });
    match &settings.unix {
        Some((path, mode)) => {
            list.add("domain_socket", path.display());
            list.add("umask", format_args!("{mode:o}"));
        }
        None => {
            list.add("domain_socket", "NULL");
            list.add("umask", "700");
        }
    }
    list.add("shutdown_command", yes(settings.may_shut_down));
    list.add("chunk_size", CHUNK_BYTES);
    list.add("num_threads", settings.workers);
    list.add("num_threads_per_udp", 1);
    list.add("reqs_per_event", settings.requests_per_turn);
    list.add("cas_enabled", yes(settings.limits.has_cas));
    list.add("tcp_backlog", settings.backlog);
    list.add("binding_protocol", settings.binding.name());
    let has_users = settings.credentials.is_some();
    let is_text = settings.binding == super::settings::Binding::Text;
    list.add("auth_enabled_sasl", yes(has_users && !is_text));
    list.add("auth_enabled_ascii", yes(settings.credentials.is_some()));
    list.add("item_size_max", settings.limits.item_bytes_max);
    let refuses = settings.when_full == super::settings::WhenFull::Refuse;
    list.add("maxconns_fast", yes(refuses));
    list.add("flush_enabled", yes(settings.may_flush));
    list.add("dump_enabled", yes(settings.may_dump));
    list.add("hash_algorithm", "xxh3");
    for name in ["slab_reassign", "lru_maintainer_thread", "lru_segmented"] {
        list.add(name, "no");
    }
    for name in ["temp_lru", "track_sizes", "inline_ascii_response"] {
        list.add(name, "no");
    }
    list.add("slab_automove", 0);
    let has_crawler = shared.has_crawler.load(Ordering::Relaxed);
    list.add("lru_crawler", yes(has_crawler));
    list.add("stat_key_prefix", ":");
    let has_details = shared.details.is_on();
    list.add("detail_enabled", yes(has_details));
    list.add("watch_enabled", yes(settings.may_watch));
    list.add("memory_file", "(null)");
    let idle = settings.idle_timeout.map_or(0, |timeout| timeout.as_secs());
    list.add("idle_timeout", idle);
    list.add("ssl_enabled", yes(settings.tls.is_some()));
    for (name, value) in &settings.more {
        list.add(name, value);
    }
}

fn items(list: &mut impl List, shared: &Shared) {
    for (number, class) in classes(shared) {
        let went = class.went;
        for (name, value) in [
            ("number", class.here.items),
            ("mem_requested", class.here.bytes),
            ("evicted", went.evictions),
            ("outofmemory", class.number("store_no_memory")),
            ("reclaimed", went.reclaimed),
            ("expired_unfetched", went.expired_unfetched),
            ("evicted_unfetched", went.evicted_unfetched),
            // Who looks for what has ended, and removes it, is memcached's crawler's peer.
            ("crawler_reclaimed", went.reclaimed),
        ] {
            list.add(&format!("items:{number}:{name}"), value);
        }
    }
}

fn slabs(list: &mut impl List, shared: &Shared) {
    let figures = figures(shared);
    let classes = classes(shared);
    for (number, class) in &classes {
        // As many chunks as memcached would have for these items, in pages that are full but for the last.
        let chunk_bytes = chunk_bytes(*number).unwrap_or(PAGE_BYTES);
        let chunks_per_page = PAGE_BYTES / chunk_bytes;
        let used = class.here.items;
        let pages = used.div_ceil(chunks_per_page);
        let total = pages * chunks_per_page;
        for (name, value) in [
            ("chunk_size", chunk_bytes),
            ("chunks_per_page", chunks_per_page),
            ("total_pages", pages),
            ("total_chunks", total),
            ("used_chunks", used),
            ("free_chunks", total - used),
            ("free_chunks_end", 0),
            ("mem_requested", class.here.bytes),
        ] {
            list.add(&format!("{number}:{name}"), value);
        }
        let counted = ClassCounters::NAMES
            .iter()
            .filter(|name| **name != "store_no_memory");
        for name in counted {
            list.add(&format!("{number}:{name}"), class.number(name));
        }
    }
    let active = classes.iter().filter(|(_, class)| class.here.items > 0);
    list.add("active_slabs", active.count());
    list.add("total_malloced", figures.resident_bytes);
}

fn connections(list: &mut impl List, shared: &Shared, now: u64) {
    for facts in shared.facts() {
        let number = facts.number;
        list.add(&format!("{number}:addr"), &facts.address);
        if let Some(listener) = &facts.listener {
            list.add(&format!("{number}:listen_addr"), listener);
        }
        let state = if facts.listener.is_some() {
            facts.state_name()
        } else {
            "conn_listening"
        };
        list.add(&format!("{number}:state"), state);
        let last = facts.last_request.load(Ordering::Relaxed);
        let since = now.saturating_sub(last);
        list.add(&format!("{number}:secs_since_last_cmd"), since);
    }
}

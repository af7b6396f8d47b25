//! Hosts on threads of this process that lend one slab each, and a client of theirs that runs
//! procedures there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use cenote_cache::path::{OneSided, Operation, Path};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Hello, Incoming, RemoteWindow, Session, Time, Waker,
    WireProtection, connector, wait,
};
use cenote_host::{Config, Daemon, Inheritance, LockMemory, Running};
use cenote_pool::control::{Reply, Request, Window};
use cenote_proc::remote::{Remote, exchange};
use cenote_proc::service::{Heard, Label, Named, Opened, SlabPlace, SlabWord, Word, Writing};
use cenote_proc::{Access, CacheId, Grants, ProcedureId, orders};

/// The cache of the measurement.
pub const CACHE: CacheId = CacheId(1);
/// Its procedures in WebAssembly, beside those of the host's program.
pub const GUESTS: [(&str, ProcedureId, &[u8]); 3] = [
    (
        "echo-wasm",
        ProcedureId(1001),
        include_bytes!("../../../../proc/guests/echo.wasm"),
    ),
    (
        "walk-wasm",
        ProcedureId(1002),
        include_bytes!("../../../../proc/guests/walk.wasm"),
    ),
    (
        "filter-wasm",
        ProcedureId(1004),
        include_bytes!("../../../../proc/guests/filter.wasm"),
    ),
];
/// How long anything may take that takes no time unless something is broken.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long a client looks for an answer before it blocks.
const SPIN: Duration = Duration::from_micros(50);

/// See the module's text.
pub struct Site {
    session: Box<dyn Session>,
    address: Address,
    lent: Window,
    pub window: RemoteWindow,
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl Site {
    /// A host on `transport` with so many server threads and bytes, and the guests.
    pub fn start(transport: &str, threads: usize, memory_bytes: u64, helps: bool) -> Result<Self> {
        let key = ClusterKey::generate()?;
        let site = Self::host(transport, threads, memory_bytes, helps, &key)?;
        let here = SlabPlace::Here(site.named());
        site.tell(0, &[&site], Writing::Denied, here)?;
        for (name, id, module) in GUESTS {
            site.put(name, id, module, Access::Read)?;
        }
        Ok(site)
    }

    /// Two hosts with one slab in two copies. Procedures may write.
    pub fn pair(transport: &str, memory_bytes: u64) -> Result<[Self; 2]> {
        let key = ClusterKey::generate()?;
        let host = || Self::host(transport, 1, memory_bytes, true, &key);
        let pair = [host()?, host()?];
        let (first, second) = (pair[0].named(), pair[1].named());
        let places = [
            SlabPlace::First {
                named: first,
                second: 1,
            },
            SlabPlace::Second {
                named: second,
                first: 0,
            },
        ];
        let all: Vec<_> = pair.iter().collect();
        for (me, (site, place)) in (0..).zip(pair.iter().zip(places)) {
            site.tell(me, &all, Writing::Replicated, place)?;
        }
        pair[0].say(&[Word::Write { cache: CACHE }])?;
        Ok(pair)
    }

    /// A host with one slab that procedures may write to.
    pub fn alone(transport: &str, memory_bytes: u64) -> Result<Self> {
        let site = Self::host(transport, 1, memory_bytes, true, &ClusterKey::generate()?)?;
        let here = SlabPlace::Here(site.named());
        site.tell(0, &[&site], Writing::Direct, here)?;
        Ok(site)
    }

    fn host(
        transport: &str,
        threads: usize,
        memory_bytes: u64,
        helps: bool,
        key: &ClusterKey,
    ) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a temporary folder")?;
        let address = match transport {
            "shm" => Address::Shm(directory.path().join("host")),
            "tcp" => "tcp:127.0.0.1:0".parse()?,
            other => bail!("procedures are measured over shm or tcp, not {other}"),
        };
        let config = Config {
            name: "measured".into(),
            domain: "measured".into(),
            addresses: vec![address],
            memory_bytes,
            slab_bytes: memory_bytes,
            key: key.clone(),
            huge_pages: true,
            lock_memory: LockMemory::Never,
            clients_max: 4,
            headroom: None,
            page_traffic: WireProtection::default(),
            cache_threads: threads,
            modules: None,
        };
        let running = Running {
            helps,
            ..Running::default()
        };
        let mut daemon = Daemon::start_running(config, Inheritance::default(), running)?;
        let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let serve = move || {
            if let Err(error) = daemon.run(&stopped) {
                panic!("the host that is measured: {error}");
            }
        };
        let thread = std::thread::Builder::new()
            .name("host".into())
            .spawn(serve)
            .context("start a thread")?;
        let hello = Hello {
            client: ClientId(1),
            name: "bench proc".into(),
        };
        let mut session = connector(key.clone()).connect(&address, &hello, PATIENCE)?;
        let (lent, window) = lend(&mut *session)?;
        Ok(Self {
            session,
            address,
            lent,
            window,
            stop,
            waker,
            thread: Some(thread),
            _directory: directory,
        })
    }

    fn named(&self) -> Named {
        Named {
            window: self.lent.id,
            generation: self.lent.generation,
        }
    }

    /// Brings a procedure there.
    pub fn put(&self, name: &str, id: ProcedureId, module: &[u8], access: Access) -> Result<()> {
        let mut caller = self.session.caller_opener()(PATIENCE)?;
        let label = Label {
            id,
            name: name.into(),
            version: 1,
            grants: Grants::Caches(vec![(CACHE, access)]),
            len_bytes: u32::try_from(module.len())?,
        };
        orders::put(&mut *caller, label, module)?;
        Ok(())
    }

    /// Says where all of the cache is, to this one of its machines.
    fn tell(&self, me: u32, machines: &[&Self], writing: Writing, place: SlabPlace) -> Result<()> {
        let opened = Opened {
            cache: CACHE,
            slab_bytes: self.lent.len_bytes,
            slabs: 1,
            writing,
            leased: true,
            me,
            machines: machines
                .iter()
                .map(|site| site.address.to_string())
                .collect(),
            users: Vec::new(),
        };
        let slab = SlabWord {
            slab: 0,
            generation: 1,
            place,
        };
        let map = Word::Map {
            cache: CACHE,
            writes_until: Time::now().after(Duration::from_secs(24 * 3600)).0,
            slabs: vec![slab],
        };
        self.say(&[Word::Open(opened), map])
    }

    fn say(&self, words: &[Word]) -> Result<()> {
        let mut caller = self.session.caller_opener()(PATIENCE)?;
        for word in words {
            let mut bytes = Vec::new();
            word.write(&mut bytes);
            let answer = exchange(&mut *caller, &bytes, PATIENCE);
            let answer = answer.map_err(|why| anyhow::anyhow!("a word: {why:?}"))?;
            let heard = Heard::read(&answer)?;
            ensure!(
                matches!(heard, Heard::Taken { missing: 0, .. }),
                "{heard:?}"
            );
        }
        Ok(())
    }

    /// A connection for procedures, with up to `batch` requests in a message.
    pub fn remote(&self, batch: usize) -> Result<Remote> {
        Ok(Remote::new(self.session.caller_opener()(PATIENCE)?, batch))
    }

    /// A connection for verbs.
    pub fn path(&self, depth: usize) -> Result<OneSided> {
        Ok(OneSided::new(self.session.endpoint(PATIENCE)?, depth))
    }

    /// Puts bytes into the slab.
    pub fn fill(&self, bytes: &[u8]) -> Result<()> {
        const STEP: usize = 1 << 20;
        let mut path = self.path(1)?;
        for (step, part) in bytes.chunks(STEP).enumerate() {
            let operation = Operation::Write(Bytes::copy_from_slice(part));
            verb(&mut path, &self.window, (step * STEP) as u64, operation)?;
        }
        Ok(())
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the host that was measured panicked");
        }
    }
}

/// One verb, from its start to its end.
pub fn verb(
    path: &mut OneSided,
    window: &RemoteWindow,
    offset: u64,
    operation: Operation,
) -> Result<Operation> {
    if path.submit(window, offset, operation, 0).is_err() {
        bail!("no room for one verb");
    }
    path.flush();
    let mut ended = std::collections::VecDeque::new();
    let mut idle = Idle::new();
    loop {
        path.poll(Time::now(), &mut ended);
        if let Some(end) = ended.pop_front() {
            end.result?;
            return Ok(end.operation);
        }
        if idle.is_long() {
            let fds: Vec<_> = path.fd().into_iter().collect();
            wait(&fds, Some(Duration::from_millis(50)))?;
        }
    }
}

/// Reads bytes with one verb.
pub fn read(
    path: &mut OneSided,
    window: &RemoteWindow,
    offset: u64,
    buffer: BytesMut,
) -> Result<BytesMut> {
    match verb(path, window, offset, Operation::Read(buffer))? {
        Operation::Read(buffer) => Ok(buffer),
        Operation::Write(_) => bail!("a write in place of a read"),
    }
}

/// How long nothing has happened.
pub struct Idle(Option<Instant>);

impl Idle {
    pub fn new() -> Self {
        Self(None)
    }

    /// Whether a thread has looked for so long that it is to block.
    pub fn is_long(&mut self) -> bool {
        self.0.get_or_insert_with(Instant::now).elapsed() > SPIN
    }
}

/// The host's memory for a client, with its name.
fn lend(session: &mut dyn Session) -> Result<(Window, RemoteWindow)> {
    let mut bytes = Vec::new();
    let map = Request::Map {
        request: 1,
        volume: CACHE.0,
        extent: 0,
        member: 0,
    };
    map.encode(&mut bytes);
    session.send(&bytes)?;
    let deadline = Instant::now() + PATIENCE;
    let mut named = None;
    while Instant::now() < deadline {
        match session.receive()? {
            Some(Incoming::Message(bytes)) => match Reply::decode(&bytes)? {
                Reply::Mapped { window, .. } => {
                    named = Some(window);
                    session.attach(window.into())?;
                }
                Reply::Refused { reason, .. } => bail!("the host lends no memory: {reason:?}"),
                _ => {}
            },
            Some(Incoming::Attached(_, window)) => {
                return Ok((named.context("attached what was not lent")?, window?));
            }
            Some(_) => {}
            None => {
                wait(session.fd().as_slice(), Some(Duration::from_millis(100)))?;
            }
        }
    }
    bail!("the host that is to be measured does not answer")
}

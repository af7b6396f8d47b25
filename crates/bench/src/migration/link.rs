//! The thread that drives a cache's owner, and what passes between it and the cache's one client.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use cenote_cache::links::{Caller, HostConfig, Threads};
use cenote_cache::manager::{Manager, News};
use cenote_cache::owner::{ClientNumber, Entry, HostIndex, Owner, Renewal, Settings, Stage};
use cenote_fabric::{ClientId, Connector, Hello, Time, Waker};

/// From the owner to its client.
#[derive(Debug)]
pub enum ToClient {
    Entry(Entry),
    /// It has its lease, from when it asked for it.
    Lease(Time),
    /// Whether every region has its copies on hosts that stay. Sent when that changes.
    Settled(bool, Time),
    /// A region's relocation is there, and was elsewhere before.
    Stage(usize, Stage, Time),
}

/// From the client, or from who runs the experiment, to the owner.
#[derive(Debug)]
pub enum ToOwner {
    Alive(Time),
    Known(u32, u64),
    Doubt(u32, u64),
    Trouble(HostIndex),
    /// A host that was kept free is used like the others.
    Withdraw(HostIndex),
}

/// The client's end. Dropping it ends the thread.
pub struct OwnerLink {
    orders: Option<Sender<ToOwner>>,
    words: Receiver<ToClient>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

/// The only client.
const CLIENT: ClientNumber = 1;

/// How long the owner blocks: connections that are being made have no descriptor to wait for.
const PATIENCE: Duration = Duration::from_millis(5);

/// What an owner's thread is started with.
pub struct Start {
    pub settings: Settings,
    pub regions: u32,
    pub hosts: Vec<HostConfig>,
    pub connector: Arc<dyn Connector>,
    /// Hosts that get no region at first.
    pub kept_free: Vec<HostIndex>,
}

impl OwnerLink {
    /// Starts the owner of a new cache.
    ///
    /// # Errors
    /// No thread, or no descriptor, is left.
    pub fn start(start: Start) -> Result<Self> {
        let waker = Waker::new()?;
        let (orders, inbox) = channel();
        let (sender, words) = channel();
        let own = waker.clone();
        let thread = std::thread::Builder::new()
            .name("cache-owner".to_owned())
            .spawn(move || run(start, &inbox, &sender, &own))
            .context("start the owner's thread")?;
        Ok(Self {
            orders: Some(orders),
            words,
            waker,
            thread: Some(thread),
        })
    }

    pub fn send(&self, order: ToOwner) {
        let orders = self.orders.as_ref().expect("it is there until the drop");
        // An owner that has ended is found by the next `take`.
        if orders.send(order).is_ok() {
            self.waker.wake();
        }
    }

    /// What the owner said, oldest first.
    ///
    /// # Errors
    /// The owner has ended, by a panic.
    pub fn take(&self) -> Result<Option<ToClient>> {
        match self.words.try_recv() {
            Ok(word) => Ok(Some(word)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(anyhow!("the cache's owner has ended")),
        }
    }
}

impl Drop for OwnerLink {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            eprintln!("the thread of the cache's owner panicked");
        }
    }
}

/// A caller of this process, under a number of its own.
pub fn caller(connector: &Arc<dyn Connector>, name: &str, with_data: bool) -> Caller {
    let id = u128::from(std::process::id()) << 64 | u128::from(Time::now().0);
    Caller {
        connector: Arc::clone(connector),
        hello: Hello {
            client: ClientId(id),
            name: name.to_owned(),
        },
        with_data,
    }
}

fn run(start: Start, inbox: &Receiver<ToOwner>, words: &Sender<ToClient>, waker: &Waker) {
    let now = Time::now();
    let domains = Manager::domains(&start.hosts);
    let mut owner = Owner::new(start.settings, start.regions, &domains, now);
    for host in start.kept_free {
        owner.handle_notice(now, host, None);
    }
    assert!(owner.handle_client_joined(now, CLIENT), "the first client");
    let dial = Threads::new(caller(&start.connector, "cache owner", false));
    let mut manager = Manager::new(owner, start.settings, 1, start.hosts, Box::new(dial));
    let mut was_settled = false;
    let mut stages = Vec::new();
    loop {
        waker.clear();
        loop {
            match inbox.try_recv() {
                Ok(order) => take(&mut manager, order, words),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return,
            }
        }
        let now = Time::now();
        manager.step(now);
        pass_on(&mut manager, now, words);
        tell_stages(&manager.owner, now, &mut stages, words);
        let is_settled = manager.owner.is_settled();
        if is_settled != was_settled {
            was_settled = is_settled;
            say(words, ToClient::Settled(is_settled, now));
        }
        let mut fds: Vec<_> = manager.fds().map(|(fd, _)| fd).collect();
        fds.push(std::os::fd::AsRawFd::as_raw_fd(&std::os::fd::AsFd::as_fd(
            waker,
        )));
        cenote_fabric::wait(&fds, Some(PATIENCE)).expect("its descriptors are open");
    }
}

fn take(manager: &mut Manager, order: ToOwner, words: &Sender<ToClient>) {
    let now = Time::now();
    let owner = &mut manager.owner;
    match order {
        ToOwner::Alive(asked_at) => {
            let renewal = owner.handle_client_alive(now, CLIENT);
            manager.flush(now);
            pass_on(manager, now, words);
            match renewal {
                Renewal::Granted => say(words, ToClient::Lease(asked_at)),
                Renewal::Withheld => {}
                Renewal::Superseded => unreachable!("there is one owner"),
                Renewal::Unknown => {
                    // It was silent for longer than its lease: it is told of everything again.
                    assert!(
                        manager.owner.handle_client_joined(now, CLIENT),
                        "the only one"
                    );
                }
            }
        }
        ToOwner::Known(region, generation) => {
            owner.handle_known(now, CLIENT, region as usize, generation);
        }
        ToOwner::Doubt(region, generation) => {
            owner.handle_doubt(now, CLIENT, region as usize, generation);
        }
        ToOwner::Trouble(host) => manager.handle_trouble(host),
        ToOwner::Withdraw(host) => owner.handle_notice_withdrawn(now, host),
    }
}

/// Tells of regions whose relocation is elsewhere than at the last look.
fn tell_stages(owner: &Owner, now: Time, stages: &mut Vec<Stage>, words: &Sender<ToClient>) {
    stages.resize(owner.region_count(), Stage::Open);
    for (region, before) in stages.iter_mut().enumerate() {
        let stage = owner.stage(region);
        if std::mem::replace(before, stage) != stage {
            say(words, ToClient::Stage(region, stage, now));
        }
    }
}

/// Records are of no use to an experiment that ends with its process.
fn pass_on(manager: &mut Manager, now: Time, words: &Sender<ToClient>) {
    while let Some(news) = manager.take_news() {
        match news {
            News::Record => manager.confirm_record(now),
            News::Tell { entry, .. } => say(words, ToClient::Entry(entry)),
        }
    }
}

/// A client that is gone hears nothing; the end of its orders ends the thread.
fn say(words: &Sender<ToClient>, word: ToClient) {
    drop(words.send(word));
}

//! A volume: opened once per owner, shared by its workers.

mod dialer;
mod maintenance;
mod reconfiguration;

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use cenote_fabric::{ClientId, Connector, Hello, Time, Waker};

use crate::backing::{Backing, DiskQueue, Store};
use crate::command::Command;
use crate::config::VolumeConfig;
use crate::control::{Control, Dialer, Link, Parts, Threads};
use crate::core::{Core, Shape, pages_of};
use crate::directory::WorkerEpoch;
use crate::extents::LayoutId;
use crate::flights::Flights;
use crate::integrity::Tags;
use crate::journal::Image;
use crate::kept::Kept;
use crate::layout::Layout;
use crate::layouts::Layouts;
use crate::limits::slots_of;
use crate::marks::{Marks, MarksError, PageCount, Unfinished};
use crate::scheme::Cut;
use crate::status::VolumeStatus;
use crate::worker::Worker;
use crate::{IoError, PAGE_BYTES, Scheme, VolumeError};
use dialer::Dialled;

/// Most bytes of a volume.
pub const SIZE_BYTES_MAX: u64 = 1 << 46;

/// Resilient remote memory. Closing it gives its memory back, detaching leaves it; dropping it does
/// the one or the other, as it was opened.
pub struct Volume {
    core: Arc<Core>,
    commands: std::sync::mpsc::Sender<Command>,
    running: Mutex<Running>,
    host_count: usize,
    size_bytes_max: u64,
    // Failure domains of hosts that lend.
    domain_count: usize,
    is_kept: bool,
    // Whether k can change: somebody would know which pages are where.
    may_restripe: bool,
}

/// Its threads; none once it has ended.
#[derive(Default)]
struct Running {
    control: Option<JoinHandle<()>>,
    queues: Vec<JoinHandle<()>>,
    scrubber: Option<JoinHandle<()>>,
    migrator: Option<JoinHandle<()>>,
}

impl Volume {
    /// Connects to every host that answers and starts the volume's control thread.
    ///
    /// # Errors
    /// [`VolumeError`] says what is missing; trying again is sensible for `TooFewHosts` alone.
    pub fn open(config: VolumeConfig, connector: Arc<dyn Connector>) -> Result<Self, VolumeError> {
        Self::open_with(config, None, None, connector)
    }

    /// Opens a volume with a disk behind it, as large as the volume may ever be. Its extents have
    /// slabs while they are busy, and what slabs do not hold is read from the disk. Its content ends
    /// with its owner.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_backed(
        config: VolumeConfig,
        backing: Backing,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, VolumeError> {
        let config = VolumeConfig {
            size_bytes_max: config.size_bytes,
            ..config
        };
        Self::open_with(config, None, Some(backing), connector)
    }

    /// Opens a volume that outlives its owners. What the last one left in `kept` is taken over:
    /// its slabs are asked back, and pages that it was writing when it ended are made whole. A
    /// new volume begins with an empty journal.
    ///
    /// # Errors
    /// As [`Volume::open`]; `Journal`, `Marks`, `Foreign`, `Superseded`; `Unlisted`, where hosts are not
    /// given without which it cannot be read; `Unreachable` and `Unfinished`, after which trying again is
    /// sensible. What was left is then as it was, but for writes that were completed.
    pub fn open_kept(
        config: VolumeConfig,
        kept: Kept,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, VolumeError> {
        let volume = Self::open_with(config, Some(kept), None, connector)?;
        if volume.core.layouts.is_mixed() || volume.core.layout().cut() != Cut::of(volume.scheme())
        {
            volume.start_migrator()?;
        }
        volume.redo()?;
        volume.mend()?;
        Ok(volume)
    }

    fn open_with(
        config: VolumeConfig,
        mut kept: Option<Kept>,
        backing: Option<Backing>,
        connector: Arc<dyn Connector>,
    ) -> Result<Self, VolumeError> {
        let left = match &mut kept {
            Some(kept) => kept.read(&config)?,
            None => None,
        };
        let has_data = left.as_ref().is_some_and(|image| !image.held.is_empty());
        let size_bytes_max = config.size_bytes_max();
        check_size(config.size_bytes, size_bytes_max.min(SIZE_BYTES_MAX))?;
        let client = random_client()?;
        let hello = Hello {
            client,
            name: config.name.clone(),
        };
        let dialled = Dialled::enough(&config, &connector, &hello, has_data)?;
        // A volume with contents keeps its geometry.
        let slab_bytes = match &left {
            Some(image) if has_data => image.identity.slab_bytes,
            _ => dialled.slab_bytes(&config.hosts).expect("at least k links"),
        };
        let dialer = Arc::new(Threads(connector));
        let clock = Time::now;
        let kept = kept.map(|kept| (kept, left));
        let Assembled {
            volume,
            control,
            queues,
            opened,
        } = Self::assemble(
            config,
            Assembly {
                client,
                machine: cenote_fabric::machine_id(),
                slab_bytes,
                links: dialled.links,
                dialer,
                clock,
                kept,
                backing,
            },
        )?;
        for queue in queues {
            let queue = start("cenote-disk", move || queue.run())?;
            volume.running().queues.push(queue);
        }
        let control = start("cenote-volume", move || control.run())?;
        volume.running().control = Some(control);
        let opened = opened.map_or(Ok(Ok(())), |opened| opened.recv());
        opened.map_err(|_| VolumeError::Closed)??;
        Ok(volume)
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does again the writes that the last owner did not end.
    ///
    /// # Errors
    /// `Unfinished`: some cannot be done now, and nothing may be written before they are.
    fn redo(&self) -> Result<(), VolumeError> {
        let unfinished = self.unfinished();
        if unfinished.is_empty() {
            return Ok(());
        }
        let mut worker = self.worker()?;
        let mut redone = 0;
        for write in &unfinished {
            match worker.redo(*write) {
                Ok(()) => redone += 1,
                Err(IoError::Closed) => return Err(VolumeError::Closed),
                Err(source @ (IoError::Lost | IoError::NoSpace)) => {
                    let left = self.unfinished().len();
                    return Err(VolumeError::Unfinished { left, source });
                }
                // Marked: it will never be.
                Err(_) => {}
            }
        }
        tracing::info!(
            listed = unfinished.len(),
            redone,
            "writes that the last owner did not end are done again"
        );
        Ok(())
    }

    /// Writes that the last owner did not end.
    pub(crate) fn unfinished(&self) -> Vec<Unfinished> {
        self.core.pages.marks.unfinished()
    }

    /// Makes whole, as far as that can be, the pages of which it is not known what the last owner was
    /// writing: their data splits are read, and written again with parities that fit.
    fn mend(&self) -> Result<(), VolumeError> {
        let doubtful = self.doubtful_pages();
        if doubtful.is_empty() {
            return Ok(());
        }
        let mut worker = self.worker()?;
        let mut page = vec![0; PAGE_BYTES];
        let mut healed = 0;
        for index in &doubtful {
            let offset = index * PAGE_BYTES as u64;
            let copied = worker
                .read(offset, &mut page)
                .and_then(|()| worker.write(offset, &page));
            // A host that goes meanwhile leaves it doubtful.
            healed += usize::from(copied.is_ok());
        }
        tracing::info!(
            listed = doubtful.len(),
            healed,
            "pages whose last write ended unknown"
        );
        Ok(())
    }

    /// A volume and what its control thread runs.
    pub(crate) fn assemble(config: VolumeConfig, with: Assembly) -> Result<Assembled, VolumeError> {
        let (scheme, slab_bytes) = (config.resilience.scheme(), with.slab_bytes);
        check_size(config.size_bytes, SIZE_BYTES_MAX)?;
        let left = with.kept.as_ref().and_then(|(_, left)| left.as_ref());
        let left = left.filter(|image| !image.held.is_empty());
        let layout = Layout::new(Cut::of(scheme), slab_bytes);
        let most = layout.size_bytes_max();
        let most = left.map_or(most, |image| most.min(image.size_bytes_max()));
        // Nothing at all, where a slab holds no split.
        if config.size_bytes > most {
            return Err(match left {
                Some(_) => VolumeError::Outgrown {
                    size_bytes: config.size_bytes,
                    size_bytes_max: most,
                    slab_bytes,
                },
                None => VolumeError::Slab { slab_bytes, scheme },
            });
        }
        // Room to grow, as far as there is any.
        let size_bytes_max = config.size_bytes_max().min(most);
        let wake = Waker::new().map_err(|error| VolumeError::Os {
            what: "waking its control thread",
            source: std::io::Error::other(error),
        })?;
        let pages = pages_of(layout, size_bytes_max);
        let mut may_restripe = true;
        let (marks, tags, layouts, journal) = match with.kept {
            Some((kept, left)) => {
                may_restripe = kept.layouts.is_some();
                let counts = PageCount {
                    now: pages_of(layout, config.size_bytes),
                    max: pages,
                };
                let (marks, tags, layouts, journal) =
                    kept.begin(&config, slab_bytes, counts, left)?;
                (marks, tags, layouts, Some(journal))
            }
            None => {
                let marks = Marks::anonymous(pages).map_err(MarksError::Io)?;
                let tags = Tags::anonymous(&config.protection, config.id, pages)?;
                let layouts = Layouts::new(LayoutId::First, scheme, slab_bytes, pages);
                (marks, tags, layouts, None)
            }
        };
        let (store, queues) = match with.backing {
            Some(backing) => {
                let made = Store::new(pages, slab_bytes, backing);
                let (store, queues) = made.map_err(|source| VolumeError::Os {
                    what: "getting memory for the backing store's queues",
                    source,
                })?;
                (Some(store), queues)
            }
            None => (None, Vec::new()),
        };
        let shape = Shape {
            layouts,
            resilience: config.resilience,
            slab_bytes,
            size_bytes: config.size_bytes,
            host_count: config.hosts.len(),
            return_max: config.return_max,
        };
        let flights = Flights::new().map_err(|source| VolumeError::Os {
            what: "getting memory for pages in flight",
            source,
        })?;
        let core = Core::new(shape, marks, tags, flights, store, wake, with.clock);
        let core = Arc::new(core);
        core.reserve(config.size_bytes).map_err(MarksError::Io)?;
        let (ended, opened) = sync_channel(1);
        let is_kept = journal.is_some();
        let opened = is_kept.then_some(opened);
        let host_count = config.hosts.len();
        let domain_count = reconfiguration::domains(&config.hosts);
        let (commands, inbox) = std::sync::mpsc::channel();
        let control = Control::new(Parts {
            core: Arc::clone(&core),
            dialer: with.dialer,
            client: with.client,
            machine: with.machine,
            name: config.name,
            volume: config.id,
            slab_bytes,
            placement: config.placement,
            hosts: config.hosts,
            links: with.links,
            commands: inbox,
            orders: commands.clone(),
            journal,
            opened: Some(ended),
        });
        let volume = Self {
            core,
            commands,
            running: Mutex::default(),
            host_count,
            size_bytes_max,
            domain_count,
            is_kept,
            may_restripe,
        };
        Ok(Assembled {
            volume,
            control,
            queues,
            opened,
        })
    }

    /// Current size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.core.size_bytes.load(Ordering::Acquire)
    }

    /// The redundancy scheme.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.core.resilience().scheme()
    }

    /// Bytes of the volume in one extent.
    #[must_use]
    pub fn extent_bytes(&self) -> u64 {
        self.core.layout().extent_pages() * PAGE_BYTES as u64
    }

    /// A new worker with endpoints to every connected host; one per thread.
    ///
    /// # Errors
    /// `TooManyWorkers`, `Closed`, or the system is out of descriptors, which costs no host.
    pub fn worker(&self) -> Result<Worker, VolumeError> {
        let newcomer = self.ask_for_worker()?;
        let answer = newcomer.ready.recv();
        self.make_worker(newcomer, answer.map_err(|_| VolumeError::Closed)?)
    }

    /// Has the control thread open endpoints for a new worker.
    pub(crate) fn ask_for_worker(&self) -> Result<Newcomer, VolumeError> {
        if self.core.life.ending.load(Ordering::Acquire) {
            return Err(VolumeError::Closed);
        }
        let (id, epoch) = self
            .core
            .directory
            .register()
            .ok_or(VolumeError::TooManyWorkers)?;
        let (answer, ready) = sync_channel(1);
        self.command(Command::AddWorker { id, ready: answer })?;
        Ok(Newcomer { id, epoch, ready })
    }

    /// The worker, once the control thread has answered.
    pub(crate) fn make_worker(
        &self,
        newcomer: Newcomer,
        answer: std::io::Result<()>,
    ) -> Result<Worker, VolumeError> {
        let os = |what| move |source| VolumeError::Os { what, source };
        answer.map_err(os("opening data connections of a worker"))?;
        let Newcomer { id, epoch, .. } = newcomer;
        let worker = Worker::new(
            Arc::clone(&self.core),
            id,
            epoch,
            self.host_count,
            self.commands.clone(),
        )
        .map_err(os("making an epoll descriptor"))?;
        // One that is refused now takes its leave.
        let reserved = self.core.pages.marks.reserve_slots(slots_of(id));
        reserved.map_err(os("getting room on the disk for pages under way"))?;
        Ok(worker)
    }

    /// Pages whose last write ended unknown.
    pub(crate) fn doubtful_pages(&self) -> Vec<u64> {
        let pages = self.size_bytes() / PAGE_BYTES as u64;
        self.core.pages.marks.doubtful_pages(0, pages).collect()
    }

    /// Whether byte `offset` lies in a page with data, and the first byte at or after which that changes,
    /// at most `end`.
    #[must_use]
    pub fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        let page = offset / PAGE_BYTES as u64;
        let last = end.div_ceil(PAGE_BYTES as u64);
        let (is_data, change) = self.core.pages.marks.written.run(page, last);
        (
            is_data,
            change.map_or(end, |page| (page * PAGE_BYTES as u64).min(end)),
        )
    }

    /// How every extent and host stands now.
    ///
    /// # Errors
    /// `Closed` when the control thread is gone.
    pub fn status(&self) -> Result<VolumeStatus, VolumeError> {
        let (reply, answer) = sync_channel(1);
        self.command(Command::Status { reply })?;
        answer.recv().map_err(|_| VolumeError::Closed)
    }

    /// Gives all memory back: what the volume held is gone. Requests after this fail with `Closed`.
    pub fn close(&self) {
        self.end(Command::Close);
    }

    /// Ends and leaves the memory to the next owner, which finds it by what [`Kept`] holds. Hosts
    /// keep it until they are in want of memory or an orphan's life is over. Without [`Kept`]
    /// nobody finds it: close such a volume.
    pub fn detach(&self) {
        self.end(Command::Detach);
    }

    /// Says that the volume is about to end, before its workers go: a write that they cannot end, because a
    /// host is on its way back, is left to the next owner. There are no new workers from then on. Workers
    /// that are dropped wait up to 12 s for such writes, and 2 s for what is on its way.
    pub fn announce_end(&self) {
        self.core.life.ending.store(true, Ordering::Release);
    }

    fn end(&self, command: Command) {
        self.core.life.ending.store(true, Ordering::Release);
        self.core.life.closed.store(true, Ordering::Release);
        let Running {
            control,
            queues,
            scrubber,
            migrator,
        } = std::mem::take(&mut *self.running());
        self.core.helpers.scrub.end();
        self.core.helpers.migrator.end();
        // First: their workers may wait for the control thread.
        for helper in scrubber.into_iter().chain(migrator) {
            if helper.join().is_err() {
                tracing::error!("a thread of the volume ended by itself");
            }
        }
        if let Some(control) = control {
            let told = self.command(command);
            let joined = control.join();
            if told.is_err() || joined.is_err() {
                tracing::warn!("the volume's control thread ended by itself");
            }
        }
        if let Some(store) = &self.core.backing {
            store.close();
        }
        for queue in queues {
            if queue.join().is_err() {
                tracing::error!("a disk queue of the volume ended by itself");
            }
        }
        // A worker that is left would store to marks that are summed.
        if self.is_kept && Arc::strong_count(&self.core) == 1 {
            // What those that are gone stored is seen from here on.
            std::sync::atomic::fence(Ordering::Acquire);
            self.core.pages.marks.sum_up();
        }
    }

    fn command(&self, command: Command) -> Result<(), VolumeError> {
        self.commands
            .send(command)
            .map_err(|_| VolumeError::Closed)?;
        self.core.wake.wake();
        Ok(())
    }
}

impl Drop for Volume {
    /// What outlives its owner is only given back when that is asked for.
    fn drop(&mut self) {
        if self.is_kept {
            self.detach();
        } else {
            self.close();
        }
    }
}

/// What a volume is assembled with, beside its configuration.
pub(crate) struct Assembly {
    pub client: ClientId,
    pub machine: u128,
    pub slab_bytes: u64,
    pub links: Vec<(usize, Link)>,
    pub dialer: Arc<dyn Dialer>,
    pub clock: fn() -> Time,
    /// What survives the owner, and what the last one left in it.
    pub kept: Option<(Kept, Option<Image>)>,
    /// What stands behind its slabs.
    pub backing: Option<Backing>,
}

/// A volume, and what threads or a simulator run for it.
pub(crate) struct Assembled {
    pub volume: Volume,
    pub control: Control,
    pub queues: Vec<DiskQueue>,
    pub opened: Option<Opened>,
}

/// Says how taking over what the last owner left has ended.
pub(crate) type Opened = Receiver<Result<(), VolumeError>>;

/// A worker on its way.
pub(crate) struct Newcomer {
    id: usize,
    epoch: WorkerEpoch,
    pub ready: Receiver<std::io::Result<()>>,
}

impl VolumeConfig {
    fn size_bytes_max(&self) -> u64 {
        let most = SIZE_BYTES_MAX.max(self.size_bytes);
        self.size_bytes_max.clamp(self.size_bytes, most)
    }
}

fn check_size(size_bytes: u64, size_bytes_max: u64) -> Result<(), VolumeError> {
    if size_bytes == 0
        || !size_bytes.is_multiple_of(PAGE_BYTES as u64)
        || size_bytes > size_bytes_max
    {
        return Err(VolumeError::Size {
            size_bytes,
            size_bytes_max,
        });
    }
    Ok(())
}

fn random_client() -> Result<ClientId, VolumeError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| VolumeError::Os {
        what: "drawing a client identity",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(ClientId(u128::from_le_bytes(bytes)))
}

pub(crate) fn start(
    name: &str,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, VolumeError> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    thread.map_err(|source| VolumeError::Os {
        what: "starting a thread of the volume",
        source,
    })
}

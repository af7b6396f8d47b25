//! One operation, whose verbs a test ends as it likes: no worker, no process, no thread, no clock.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use cenote_fabric::{Generation, RemoteWindow, Rights, Time, Waker, WindowDescriptor, WindowId};

use crate::backing::{Backing, Device, DiskQueue, Store, Transfer};
use crate::core::{Core, Shape};
use crate::directory::{Member, MemberState, Session, Stripe};
use crate::extents::LayoutId;
use crate::flights::Flights;
use crate::integrity::Tags;
use crate::layouts::Layouts;
use crate::marks::Marks;
use crate::scheme::Cut;
use crate::worker::data_path::DataPath;
use crate::worker::order::{Chunk, Kind, Order};
use crate::worker::page::{Next, PageOp, Then};
use crate::worker::verbs::{Verb, bits};
use crate::{IoError, Mode, PAGE_BYTES, Protection, Resilience, Scheme};

/// Pages of the volume.
pub const PAGES: u64 = 64;

/// A volume on hosts that are arrays.
pub struct World {
    pub core: Arc<Core>,
    // Of each split of each extent, by host.
    slabs: Vec<Vec<u8>>,
    // Takes no job: what the disk has done is for a test to say.
    _queues: Vec<DiskQueue>,
}

/// A disk that nobody asks.
struct Untouched;

impl Device for Untouched {
    unsafe fn start(&mut self, _: Transfer) {
        unreachable!("its queue does not run")
    }

    fn wait(&mut self, _: RawFd, _: bool, _: &mut Vec<(u32, io::Result<()>)>) -> io::Result<()> {
        unreachable!("its queue does not run")
    }
}

/// Operations of one worker.
pub struct Rig {
    pub path: DataPath,
    pub op: PageOp,
    spare: Option<PageOp>,
    verb: Verb,
}

impl World {
    pub fn new(scheme: &str) -> Self {
        Self::with(scheme, Mode::FailureRecovery, 0, &Protection::None)
    }

    pub fn with(scheme: &str, mode: Mode, delta: usize, protection: &Protection) -> Self {
        Self::over(None, scheme, (mode, delta), protection)
    }

    /// With a disk behind it.
    pub fn backed(scheme: &str) -> Self {
        let backing = Backing::over(vec![Box::new(Untouched)]);
        Self::over(
            Some(backing),
            scheme,
            (Mode::FailureRecovery, 0),
            &Protection::None,
        )
    }

    fn over(
        backing: Option<Backing>,
        scheme: &str,
        (mode, delta): (Mode, usize),
        protection: &Protection,
    ) -> Self {
        let scheme: Scheme = scheme.parse().expect("a scheme");
        let slab_bytes = PAGES * scheme.split_bytes() as u64;
        let shape = Shape {
            layouts: Layouts::new(LayoutId::First, scheme, slab_bytes, PAGES),
            resilience: Resilience::new(scheme, mode, delta).expect("it fits the scheme"),
            slab_bytes,
            size_bytes: PAGES * PAGE_BYTES as u64,
            host_count: scheme.members(),
            return_max: crate::RETURN_MAX,
        };
        let marks = Marks::anonymous(PAGES).expect("memory");
        marks.reserve_slots(0..512).expect("memory");
        let tags = Tags::anonymous(protection, 7, PAGES).expect("memory");
        let (flights, wake) = (Flights::new().expect("memory"), Waker::new().expect("one"));
        let (store, queues) = backing
            .map(|backing| Store::new(PAGES, slab_bytes, backing).expect("memory"))
            .unzip();
        let core = Core::new(shape, marks, tags, flights, store, wake, || Time(0));
        let mut world = Self {
            core: Arc::new(core),
            _queues: queues.unwrap_or_default(),
            slabs: vec![vec![0; slab_bytes as usize]; scheme.members()],
        };
        world.map(LayoutId::First.extent(0), Cut::of(scheme), scheme.members());
        world
    }

    /// Maps an extent to the hosts in order.
    pub fn map(&mut self, extent: usize, cut: Cut, members: usize) {
        let len_bytes = PAGES as usize * cut.split_bytes();
        self.slabs
            .resize_with(members.max(self.slabs.len()), Vec::new);
        for slab in &mut self.slabs {
            slab.resize(slab.len().max(len_bytes), 0);
        }
        let stripe = Stripe {
            cut,
            members: (0..members).map(|host| Some(member(host))).collect(),
            ..Stripe::default()
        };
        self.core.directory.publish(|next| {
            // A layout that pages come to has none yet.
            next.extents.resize(LayoutId::of(extent), 4, || None);
            next.extents[extent] = Some(Arc::new(Stripe {
                changed_in: next.epoch,
                ..stripe
            }));
            true
        });
    }

    /// Unmaps the first extent.
    pub fn unmap(&self) {
        self.core.directory.publish(|next| {
            next.extents[LayoutId::First.extent(0)] = None;
            true
        });
    }

    /// Another worker.
    pub fn worker(&self) -> Rig {
        let (id, epoch) = self.core.directory.register().expect("room for a worker");
        let path = DataPath::new(Arc::clone(&self.core), id, epoch, self.slabs.len());
        Rig {
            path,
            op: PageOp::free(0, 0),
            spare: Some(PageOp::free(1, 1)),
            verb: Verb::Read,
        }
    }

    /// Writes a page whole, by a worker of its own.
    pub fn write(&mut self, page: u64, byte: u8) {
        let mut rig = self.worker();
        let mut bytes = [byte; PAGE_BYTES];
        rig.start(Kind::Write, page, &mut bytes);
        let next = rig.end_all(self);
        assert_eq!(next, Next::End(Ok(())));
        assert!(rig.finish(next));
    }

    /// Reads a page by a worker of its own: the byte that it is full of.
    pub fn read(&mut self, page: u64) -> Result<u8, IoError> {
        let (mut rig, mut bytes) = (self.worker(), [0; PAGE_BYTES]);
        let mut next = rig.start(Kind::Read, page, &mut bytes);
        while matches!(next, Next::Read { .. } | Next::Write { .. }) {
            next = rig.end_all(self);
        }
        let Next::End(result) = next else {
            panic!("it waits: {next:?}");
        };
        assert!(rig.finish(next));
        let is_of_one_write = bytes.iter().all(|&byte| byte == bytes[0]);
        assert!(is_of_one_write || result.is_err());
        result.map(|()| bytes[0])
    }

    /// A host's bytes of a page.
    pub fn split_of(&mut self, host: usize, page: u64, cut: Cut) -> &mut [u8] {
        let start = page as usize * cut.split_bytes();
        &mut self.slabs[host][start..][..cut.split_bytes()]
    }
}

/// The slab of a split, which the host of that number has.
pub fn member(host: usize) -> Member {
    let descriptor = WindowDescriptor {
        id: WindowId(host as u32),
        generation: Generation(host as u64 + 1),
        len_bytes: 1 << 20,
        rights: Rights::ALL,
    };
    Member {
        session: Session { host, number: 1 },
        window: RemoteWindow::unmapped(descriptor),
        birth: 1,
        state: MemberState::Live,
    }
}

impl Rig {
    /// Has the operation do something with a whole page.
    pub fn start(&mut self, kind: Kind, page: u64, bytes: &mut [u8; PAGE_BYTES]) -> Next {
        self.start_part(kind, page, 0, bytes)
    }

    /// Has it do something with part of a page. `bytes` live until it has ended.
    pub fn start_part(&mut self, kind: Kind, page: u64, start: usize, bytes: &mut [u8]) -> Next {
        let order = Order {
            request: 0,
            kind,
            chunk: Chunk {
                page,
                start,
                len_bytes: bytes.len(),
                buffer_offset: 0,
            },
            target: match kind {
                Kind::Read | Kind::Write => bytes.as_mut_ptr(),
                _ => std::ptr::null_mut(),
            },
            redoes: None,
            is_claimed: false,
            is_behind: false,
        };
        self.op.accept(&order, &self.path);
        let next = self.op.begin(&mut self.path);
        self.post(next)
    }

    /// Has verbs be out that are to be posted.
    pub fn post(&mut self, next: Next) -> Next {
        match next {
            Next::Read { .. } => self.verb = Verb::Read,
            Next::Write { members } => {
                self.verb = Verb::Write;
                if members >> self.op.page.cut().k() != 0 && self.op.page.cut().k() > 1 {
                    self.op.page.encode(&self.path);
                }
                self.op.page.verbs.pending = members;
            }
            _ => {}
        }
        next
    }

    /// Ends a member's verb, well or not: whether the operation moves on by that.
    pub fn end(&mut self, world: &mut World, index: usize, is_ok: bool) -> bool {
        let page = &mut self.op.page;
        let splits = page.splits(&self.path);
        let len_bytes = page.cut().split_bytes();
        let slab = &mut world.slabs[index][page.place.index as usize * len_bytes..][..len_bytes];
        // SAFETY: a split of the operation's page or parities, and this test's own slab.
        unsafe {
            match self.verb {
                _ if !is_ok || page.verbs.revoked => {}
                Verb::Read => splits.landing(index).copy_from(slab.as_ptr(), len_bytes),
                Verb::Write => slab
                    .as_mut_ptr()
                    .copy_from(splits.places(Verb::Write)(index), len_bytes),
            }
        }
        page.verbs.note_end(index, is_ok);
        if !is_ok {
            let (extent, lost) = (page.place.extent, member(index));
            let generation = lost.window.descriptor.generation;
            let directory = &world.core.directory;
            directory.fail_window(extent, index, lost.session, generation);
        }
        page.verbs.is_over() || page.verbs.is_served()
    }

    /// What is out writes, as it did before another operation was in its place.
    pub fn verb_is_write(&mut self) {
        self.verb = Verb::Write;
    }

    /// Moves the operation on.
    pub fn step(&mut self) -> Next {
        self.op.page.verbs.revoke();
        let next = self.op.on_verbs(&mut self.path);
        self.post(next)
    }

    /// Ends the verbs that are out, all well, as long as the operation does not move on; then moves it on.
    pub fn end_all(&mut self, world: &mut World) -> Next {
        for index in bits(self.op.page.verbs.out()) {
            if self.end(world, index, true) {
                break;
            }
        }
        self.step()
    }

    /// Another operation goes on with the page; the first one is what is returned.
    pub fn apart(&mut self, then: Then) -> (PageOp, Next) {
        let mut other = self.spare.take().expect("once");
        self.op.detach(&mut other, &mut self.path);
        let late = std::mem::replace(&mut self.op, other);
        let next = self.op.go_on(then, &mut self.path);
        (late, self.post(next))
    }

    /// Tries it again that waited.
    pub fn resume(&mut self) -> Next {
        let next = self.op.resume(&mut self.path);
        self.post(next)
    }

    /// Ends it: whether its place is free.
    pub fn finish(&mut self, next: Next) -> bool {
        let Next::End(result) = next else {
            panic!("it has not ended: {next:?}");
        };
        self.op.end(&mut self.path, result.is_ok())
    }
}

//! A client's connections to one host, and the windows that the host lent it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cenote_fabric::{
    Address, ClientId, CompletionQueue, Connector, Endpoint, Hello, Incoming, RemoteWindow,
    Session, Status, Time, WindowDescriptor,
};
use cenote_pool::control::{Reply, Request};

use super::Verb;

/// Longest that the host may take to answer, or to complete a verb.
const PATIENCE: Duration = Duration::from_secs(10);

/// One worker's view of one host.
pub(super) struct Link {
    session: Box<dyn Session>,
    pub(super) endpoint: Box<dyn Endpoint>,
    pub(super) queue: CompletionQueue,
    /// All of one length, which is a power of two.
    pub(super) windows: Vec<RemoteWindow>,
}

impl Link {
    /// Connects, and borrows slabs of `bytes` together.
    pub(super) fn open(
        connector: &Arc<dyn Connector>,
        address: &Address,
        bytes: u64,
    ) -> anyhow::Result<Self> {
        let hello = Hello {
            client: ClientId(u128::from(Time::now().0) << 64 | u128::from(std::process::id())),
            name: "bench fabric".into(),
        };
        let session = connector.connect(address, &hello, PATIENCE)?;
        let endpoint = session.endpoint(PATIENCE)?;
        let mut link = Self {
            session,
            endpoint,
            queue: CompletionQueue::with_capacity(cenote_fabric::QUEUE_DEPTH),
            windows: Vec::new(),
        };
        let mut borrowed = 0;
        while borrowed < bytes {
            let window = link.borrow_slab()?;
            borrowed += window.descriptor.len_bytes;
            link.windows.push(window);
        }
        Ok(link)
    }

    /// Asks for a slab as a volume does, and attaches its window.
    fn borrow_slab(&mut self) -> anyhow::Result<RemoteWindow> {
        let index = self.windows.len() as u64;
        let request = Request::Map {
            request: index,
            volume: 1,
            extent: u32::try_from(index)?,
            member: 0,
        };
        let mut message = Vec::new();
        request.encode(&mut message);
        self.session.send(&message)?;
        let window: WindowDescriptor = loop {
            let Incoming::Message(bytes) = self.answer()? else {
                continue;
            };
            match Reply::decode(&bytes)? {
                Reply::Mapped { window, .. } => break window.into(),
                Reply::Refused { reason, .. } => bail!("the host lends no slab: {reason:?}"),
                _ => {}
            }
        };
        ensure!(
            window.len_bytes.is_power_of_two(),
            "slabs of {} bytes",
            window.len_bytes
        );
        self.session.attach(window)?;
        loop {
            if let Incoming::Attached(_, window) = self.answer()? {
                return Ok(window?);
            }
        }
    }

    fn answer(&mut self) -> anyhow::Result<Incoming> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(incoming) = self.session.receive()? {
                return Ok(incoming);
            }
            let fd = self.session.fd().context("a session without a socket")?;
            cenote_fabric::wait(&[fd], Some(PATIENCE))?;
        }
        bail!("the host did not answer in {PATIENCE:?}")
    }

    /// Posts a verb on `bytes` at `place` of all windows together, from or to `local`.
    ///
    /// # Safety
    /// `local` is valid for `bytes` bytes until the completion is popped, and a READ's is
    /// used by nothing else meanwhile.
    #[inline]
    pub(super) unsafe fn post(
        &mut self,
        verb: Verb,
        place: u64,
        bytes: usize,
        local: *mut u8,
    ) -> anyhow::Result<()> {
        let len_bytes = self.windows[0].descriptor.len_bytes;
        let window = &self.windows[(place >> len_bytes.trailing_zeros()) as usize];
        let (offset, queue) = (place & (len_bytes - 1), &mut self.queue);
        // SAFETY: the caller's promise.
        unsafe {
            match verb {
                Verb::Read => self
                    .endpoint
                    .post_read(window, offset, local, bytes, 0, queue)?,
                Verb::Write => self
                    .endpoint
                    .post_write(window, offset, local, bytes, None, 0, queue)?,
            }
        }
        Ok(())
    }

    /// Waits until something completed.
    pub(super) fn wait(&mut self) -> anyhow::Result<()> {
        while self.queue.is_empty() {
            let fd = self.endpoint.fd().context("the endpoint is dead")?;
            cenote_fabric::wait(&[fd], Some(PATIENCE))?;
            self.endpoint.poll(Time::now(), &mut self.queue);
        }
        Ok(())
    }

    /// Takes a completion; false when none is there, an error when it is one.
    pub(super) fn pop(&mut self) -> anyhow::Result<bool> {
        match self.queue.pop() {
            None => Ok(false),
            Some(completion) if completion.status == Status::Ok => Ok(true),
            Some(completion) => bail!("a verb ended with {:?}", completion.status),
        }
    }
}

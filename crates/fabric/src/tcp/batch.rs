//! The system calls of many `tcp` endpoints in one: all their sends, or all their receives, go to
//! the kernel by one `io_uring_enter`.
//!
//! A page that is cut into splits goes to as many hosts, and a call for each of them, each way, is
//! most of what it costs its client. Used by the one thread whose endpoints they are.
//!
//! Every operation carries `MSG_DONTWAIT`: the kernel ends it while it takes it, and a batch
//! returns once all have ended. So the kernel keeps no pointer of ours from one call to the next,
//! and endpoints, landings and sources may change or go whenever they could without a batch.
//! Whoever waits does it as before, on [`Endpoint::fd`].
//!
//! Without `io_uring` (an old kernel, a sandbox, [`IO_URING_VARIABLE`]) each endpoint makes its own
//! calls.

use std::io;

use io_uring::{IoUring, Probe, opcode};

use super::endpoint::Leg;
use crate::{CompletionQueue, Endpoint, Time};

/// In the environment: which ends of `tcp` use `io_uring`, `on` for both (as without it), `clients`,
/// `hosts` or `off`.
pub const IO_URING_VARIABLE: &str = "CENOTE_IO_URING";

/// Operations that one call hands over; a power of two. Twice the hosts of the widest page.
const TOGETHER: usize = 64;

/// What makes the calls for the endpoints of one thread.
pub struct Batch {
    ring: Option<Box<IoUring>>,
    /// Fewer endpoints than that make their own calls.
    least: usize,
    system_calls: u64,
}

/// How operations ended, by place; `None`: not begun.
type Results = [Option<i32>; TOGETHER];

impl Batch {
    /// With a ring of its own, where there can be one.
    #[must_use]
    pub fn new() -> Self {
        let ring = ring().inspect_err(
            |error| tracing::debug!(%error, "no io_uring: endpoints make their own system calls"),
        );
        Self {
            ring: ring.ok().map(Box::new),
            // One operation is cheaper as a call of its own.
            least: 2,
            system_calls: 0,
        }
    }

    /// As [`Batch::new`], for tests of one endpoint: its operations go through the ring as well.
    #[must_use]
    pub fn of_one() -> Self {
        Self {
            least: 1,
            ..Self::new()
        }
    }

    /// One that leaves all calls to the endpoints.
    #[must_use]
    pub fn off() -> Self {
        Self {
            ring: None,
            least: 2,
            system_calls: 0,
        }
    }

    /// Whether it has a ring.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.ring.is_some()
    }

    /// [`Endpoint::flush`] of each.
    pub fn flush<'e>(
        &mut self,
        endpoints: impl Iterator<Item = &'e mut (dyn Endpoint + 'static)>,
        queue: &mut CompletionQueue,
    ) {
        self.each(Leg::Send, endpoints, Time(0), queue, |endpoint, queue| {
            endpoint.flush(queue);
        });
    }

    /// [`Endpoint::poll`] of each.
    pub fn poll<'e>(
        &mut self,
        endpoints: impl Iterator<Item = &'e mut (dyn Endpoint + 'static)>,
        now: Time,
        queue: &mut CompletionQueue,
    ) {
        self.each(Leg::Receive, endpoints, now, queue, |endpoint, queue| {
            endpoint.poll(now, queue);
        });
    }

    /// Calls of its own so far; those of endpoints are counted there.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    fn each<'e>(
        &mut self,
        leg: Leg,
        mut endpoints: impl Iterator<Item = &'e mut (dyn Endpoint + 'static)>,
        now: Time,
        queue: &mut CompletionQueue,
        alone: impl Fn(&mut dyn Endpoint, &mut CompletionQueue),
    ) {
        loop {
            let mut staged: [Option<&'e mut (dyn Endpoint + 'static)>; TOGETHER] =
                [const { None }; TOGETHER];
            let mut count = 0;
            while count < TOGETHER
                && let Some(endpoint) = endpoints.next()
            {
                if self.ring.is_some() && endpoint.wire().is_some() {
                    staged[count] = Some(endpoint);
                    count += 1;
                } else {
                    alone(endpoint, queue);
                }
            }
            let results = if count < self.least {
                [None; TOGETHER]
            } else {
                self.submit(leg, &mut staged)
            };
            for (endpoint, result) in staged.into_iter().flatten().zip(results) {
                let Some(result) = result else {
                    alone(endpoint, queue);
                    continue;
                };
                let mut wire = endpoint.wire().expect("it had one to begin the operation");
                wire.finish(leg, result_of(result), now, queue);
            }
            if count < TOGETHER {
                return;
            }
        }
    }

    /// Has the kernel do what each endpoint would have it do first. `None`: that is nothing, or
    /// there is no ring any more.
    fn submit(
        &mut self,
        leg: Leg,
        endpoints: &mut [Option<&mut (dyn Endpoint + 'static)>; TOGETHER],
    ) -> Results {
        let mut results = [None; TOGETHER];
        let Some(ring) = &mut self.ring else {
            return results;
        };
        if !ring.submission().is_empty() {
            // A panic came in between: of what these point to nothing is known any more.
            self.ring = None;
            return results;
        }
        let mut count = 0;
        for (place, endpoint) in endpoints.iter_mut().flatten().enumerate() {
            let Some(entry) = endpoint.wire().and_then(|mut wire| wire.stage(leg)) else {
                continue;
            };
            let entry = entry.user_data(place as u64);
            // SAFETY: the list lies in an endpoint that is borrowed until all operations have
            // ended, below, and what it points to is valid as long as that.
            let pushed = unsafe { ring.submission().push(&entry) };
            pushed.expect("room for as many operations as are staged");
            count += 1;
        }
        let mut ended = 0;
        while ended < count {
            self.system_calls += 1;
            let entered = ring.submit_and_wait(count - ended);
            for completion in ring.completion() {
                let place = usize::try_from(completion.user_data()).expect("a place went in");
                results[place] = Some(completion.result());
                ended += 1;
            }
            let Err(error) = entered else { continue };
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            let begun = count - ring.submission().len();
            if begun != ended {
                // Never seen: they do not wait. Unwinding would free what the kernel may still write.
                tracing::error!(%error, begun, ended, "io_uring: operations have begun and not ended");
                std::process::abort();
            }
            tracing::warn!(%error, "io_uring_enter: endpoints make their own system calls from now on");
            self.ring = None;
            break;
        }
        results
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

/// A ring, unless it is forbidden or cannot do what is asked of it.
fn ring() -> io::Result<IoUring> {
    if !Side::Client.may_have_ring() {
        return Err(io::Error::other("switched off"));
    }
    let ring = IoUring::new(TOGETHER as u32)?;
    require(&ring, &OPERATIONS)?;
    Ok(ring)
}

/// What lists are sent and received by.
pub(super) const OPERATIONS: [u8; 4] = [
    opcode::SendMsg::CODE,
    opcode::RecvMsg::CODE,
    opcode::Send::CODE,
    opcode::Recv::CODE,
];

/// Asks the kernel whether it knows these operations.
///
/// # Errors
/// `Unsupported`; or it is too old to be asked.
pub(super) fn require(ring: &IoUring, operations: &[u8]) -> io::Result<()> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    if operations.iter().all(|&code| probe.is_supported(code)) {
        Ok(())
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// An end of a connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Side {
    Client,
    Host,
}

impl Side {
    /// Whether [`IO_URING_VARIABLE`] allows it.
    pub(super) fn may_have_ring(self) -> bool {
        let said = std::env::var_os(IO_URING_VARIABLE);
        match said.as_ref().and_then(|said| said.to_str()) {
            Some("off") => false,
            Some("clients") => self == Self::Client,
            Some("hosts") => self == Self::Host,
            _ => true,
        }
    }
}

fn result_of(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

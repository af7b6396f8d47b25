//! A mount and the threads that answer the kernel, by the better of the two ways that it offers.
//!
//! A thread that fails takes its process with it: others would serve on, and whoever asked that
//! thread would wait for ever. The kernel fails what waits when the process ends, and the files are
//! as after any kill.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_fuse::Device;

use super::kernel::Kernel;
use super::rings::{Connection, Rings, Shape};
use super::session::{self, REQUEST_BYTES_MAX, Session, Terms};
use super::{Options, Transport, device, point};
use crate::files::Files;

/// A mount that is served.
pub(super) struct Served {
    session: Session,
    kernel: Arc<Kernel>,
    threads: Vec<JoinHandle<()>>,
}

impl Served {
    /// Mounts at `path`, and starts the threads.
    ///
    /// # Errors
    /// The system refuses to mount, or to start threads.
    pub(super) fn start(files: &Arc<Files>, path: &Path, options: &Options) -> io::Result<Self> {
        if options.transport == Transport::Auto {
            let served = wanted_shape(options.threads)
                .map_err(Refused::Rings)
                .and_then(|shape| Self::over_rings(files, path, options, shape));
            match served {
                Ok(served) => return Ok(served),
                Err(Refused::Rings(error)) => {
                    tracing::info!(%error, "FUSE over io_uring; /dev/fuse is used instead");
                }
                Err(Refused::Mount(error)) => return Err(error),
            }
        }
        let terms = Terms {
            request_bytes_max: REQUEST_BYTES_MAX,
            rings: false,
        };
        let session = session::mount(path, options, terms)?;
        Self::over_device(files, session, options.threads.max(1))
    }

    fn over_device(files: &Arc<Files>, session: Session, thread_count: usize) -> io::Result<Self> {
        let kernel = Arc::new(session.kernel(files));
        let first = Device::new(session.fuser.as_fd().try_clone_to_owned()?);
        let more = (1..thread_count).map(|_| first.another());
        let mut devices = more.collect::<io::Result<Vec<_>>>()?;
        devices.push(first);
        let mut threads = Vec::with_capacity(thread_count);
        for (index, device) in devices.into_iter().enumerate() {
            threads.push(start_device(index, &kernel, device)?);
        }
        Ok(Self {
            session,
            kernel,
            threads,
        })
    }

    fn over_rings(
        files: &Arc<Files>,
        path: &Path,
        options: &Options,
        shape: Shape,
    ) -> Result<Self, Refused> {
        let rings = Rings::prepare(shape).map_err(Refused::Rings)?;
        let terms = Terms {
            request_bytes_max: shape.payload_bytes,
            rings: true,
        };
        let session = session::mount(path, options, terms).map_err(Refused::Mount)?;
        if !session.has_rings {
            drop(rings);
            tracing::info!("this kernel offers no FUSE over io_uring; /dev/fuse is used instead");
            return Self::over_device(files, session, options.threads.max(1))
                .map_err(Refused::Mount);
        }
        let device = || session.fuser.as_fd().try_clone_to_owned();
        let kernel = Arc::new(session.kernel(files));
        let connection = Connection {
            device: Arc::new(device().map_err(Refused::Mount)?),
            forgets: Arc::new(Device::new(device().map_err(Refused::Mount)?)),
            kernel: Arc::clone(&kernel),
        };
        let (threads, registered) = rings.register(&connection);
        drop(connection);
        let mut served = Self {
            session,
            kernel,
            threads,
        };
        let rest = registered.and_then(|()| {
            // FORGET and INTERRUPT alone come this way.
            let device = served.session.fuser.as_fd().try_clone_to_owned()?;
            start_device(0, &served.kernel, Device::new(device))
        });
        match rest {
            Ok(thread) => {
                served.threads.push(thread);
                Ok(served)
            }
            Err(error) => match served.give_up(path) {
                Ok(()) => Err(Refused::Rings(error)),
                Err(worse) => Err(Refused::Mount(worse)),
            },
        }
    }

    /// Whether requests come over io_uring.
    pub(super) fn has_rings(&self) -> bool {
        self.session.has_rings
    }

    /// Waits for the end of the connection, whoever ends it.
    pub(super) fn join(self) {
        for thread in self.threads {
            // A panic has ended the process.
            drop(thread.join());
        }
        self.session.close(self.kernel);
    }

    /// Ends a connection that is of no use, and waits for its threads.
    fn give_up(self, path: &Path) -> io::Result<()> {
        point::abort(path)?;
        let patience = Instant::now() + ABORT_TIMEOUT;
        while !self.threads.iter().all(JoinHandle::is_finished) {
            if Instant::now() > patience {
                return Err(io::Error::other("the kernel keeps rings that it refused"));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // Aborted, and still mounted: dropping the session unmounts it.
        Ok(())
    }
}

/// Why requests do not come over io_uring.
#[derive(Debug)]
enum Refused {
    /// They may come over `/dev/fuse`.
    Rings(io::Error),
    /// Nothing can be mounted.
    Mount(io::Error),
}

/// How many threads serve at most when `thread_count` are asked for: over io_uring each processor has
/// one, and one more takes what comes over `/dev/fuse` even so.
#[must_use]
pub fn threads_max(transport: Transport, thread_count: usize) -> usize {
    let rings = match transport {
        Transport::Auto => wanted_shape(thread_count).ok(),
        Transport::DevFuse => None,
    };
    let over_device = thread_count.max(1);
    rings.map_or(over_device, |shape| shape.thread_count() + 1)
}

/// What rings there would be, where this machine has them.
fn wanted_shape(thread_count: usize) -> io::Result<Shape> {
    let lacking = |text: String| io::Error::new(io::ErrorKind::Unsupported, text);
    if cenote_fuse::state() != cenote_fuse::State::On {
        let switch = cenote_fuse::SWITCH;
        return Err(lacking(format!("not in this kernel, or off: {switch}")));
    }
    let queues = cenote_fuse::queue_count()?;
    let shape = Shape::new(queues, thread_count);
    shape.ok_or_else(|| lacking(format!("{queues} processors are too many")))
}

fn start_device(index: usize, kernel: &Arc<Kernel>, device: Device) -> io::Result<JoinHandle<()>> {
    let kernel = Arc::clone(kernel);
    start(&format!("cenote-fuse-{index}"), move || {
        let _end = EndOnPanic;
        if let Err(error) = device::Server::new(device).serve(&kernel) {
            end_process(&error);
        }
    })
}

/// Ends the process when a thread that serves panics.
pub(super) struct EndOnPanic;

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

/// Ends the process: a thread that serves cannot go on.
pub(super) fn end_process(error: &io::Error) -> ! {
    tracing::error!(%error, "serve the kernel's requests; the process ends");
    std::process::abort();
}

pub(super) fn start<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// How long threads may take to see the end of a connection; arbitrary.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests;

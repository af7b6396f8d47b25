//! A disk as a block device of this machine, by the kernel's ublk driver: `/dev/ublkbN`.
//!
//! The driver hands requests to a thread per queue of this process over io_uring, without a socket
//! between. A [`Device`] is served from [`Device::open`] to [`Device::stop`]. When its process
//! dies the device stays: requests wait, and the next [`Device::open`] of the same disk goes on with
//! it; what the dead process had not ended is asked again. The disk must then hold what was
//! acknowledged; that it is the same one is checked by the identity that the driver keeps.
//! Why it is so: `docs/decisions/0012-ublk.md`. Elsewhere: the disk, which is the caller's.

mod abi;
mod control;
mod descriptors;
mod queue;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::{DeviceInfo, Parameters, SECTOR_BYTES, feature, parameter, state};
use control::Control;
use queue::Worker;

use crate::disk::Disk;

/// How a device is made.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Queues, each with a thread and a queue of the disk; the kernel makes at most one per core.
    pub queue_count: u16,
    /// Requests in flight of a queue, at most 4096; each has a buffer of 128 KiB.
    pub queue_depth: u16,
    /// Names the disk: a device is gone on with for no other. Not 0.
    pub identity: u64,
}

impl Options {
    /// A queue per core, at most 4, of depth 64.
    #[must_use]
    pub fn new(identity: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            queue_count: cores.min(4) as u16,
            queue_depth: 64,
            identity,
        }
    }
}

/// Why a device could not be made, taken over or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no ublk driver.
    #[error("this kernel has no ublk: modprobe ublk_drv (Linux 6.4 or later)")]
    NoDriver,
    /// The driver is older than what is used of it.
    #[error("this kernel's ublk cannot {0}")]
    TooOld(&'static str),
    /// A disk whose size is no multiple of the device's blocks.
    #[error("disk size {0}: must be a positive multiple of {BLOCK_BYTES} bytes")]
    Size(u64),
    /// No device was left behind that shows the disk.
    #[error("no ublk device is waiting for this disk")]
    NotThere,
    /// Another server serves the device that shows the disk.
    #[error("/dev/ublkb{0} serves this disk, and its server is running")]
    Served(u32),
    /// The device has another size than the disk.
    #[error("/dev/ublkb{device} has {device_bytes} bytes, but the disk has {disk_bytes}")]
    OtherSize {
        /// Number of the device.
        device: u32,
        /// Its size.
        device_bytes: u64,
        /// The disk's.
        disk_bytes: u64,
    },
    /// The system refused a step.
    #[error("{action}: {source}")]
    System {
        /// What was being done.
        action: String,
        /// What the system answered.
        source: io::Error,
    },
}

impl Error {
    fn system(action: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let action = action.into();
        move |source| Self::System { action, source }
    }
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A served device. Dropping it ends it; what is on it then sees errors.
pub struct Device {
    number: u32,
    control: Control,
    threads: Vec<JoinHandle<()>>,
    /// Added and not deleted.
    is_added: bool,
    /// Left behind by a dead server.
    is_recovered: bool,
}

impl Device {
    /// Shows `disk` to this machine: under the number that it had until a server of it died, or
    /// under a new one. The caller answers for it that the disk holds every acknowledged write.
    ///
    /// A server that was killed a moment ago is waited for.
    ///
    /// # Errors
    /// `Served`, `OtherSize`, or what is missing. A new device is not left behind then, and an
    /// old one waits on.
    pub fn open(disk: &Arc<dyn Disk>, options: Options) -> Result<Self> {
        let mut control = open_control()?;
        match left_behind(&mut control, options.identity)? {
            Some(number) => Self::recover(disk, control, number),
            None => Self::serve(disk, control, options),
        }
    }

    fn serve(disk: &Arc<dyn Disk>, mut control: Control, options: Options) -> Result<Self> {
        let mut parameters = parameters(disk.size_bytes())?;
        let wanted = feature::RECOVERY | feature::RECOVERY_REISSUE;
        let mut info = DeviceInfo {
            queue_count: options.queue_count,
            queue_depth: options.queue_depth,
            request_bytes_max: REQUEST_BYTES_MAX,
            device: u32::MAX,
            server_pid: std::process::id() as i32,
            features: wanted,
            identity: options.identity,
            ..DeviceInfo::default()
        };
        control
            .add(&mut info)
            .map_err(Error::system("add a ublk device"))?;
        // From here on a failure deletes the device by the drop of this.
        let mut device = Self {
            number: info.device,
            control,
            threads: Vec::new(),
            is_added: true,
            is_recovered: false,
        };
        if info.features & (wanted | feature::IOCTL_ENCODING) != wanted | feature::IOCTL_ENCODING {
            return Err(Error::TooOld("wait for another server when one dies"));
        }
        device
            .control
            .set_parameters(device.number, &mut parameters)
            .map_err(Error::system("configure a ublk device"))?;
        device.open_queues(disk, &info)?;
        device
            .control
            .start(device.number)
            .map_err(Error::system("start a ublk device"))?;
        Ok(device)
    }

    fn recover(disk: &Arc<dyn Disk>, mut control: Control, number: u32) -> Result<Self> {
        let device_bytes = control
            .parameters(number)
            .map_err(Error::system(format!("ask ublk device {number}")))?
            .sectors
            * SECTOR_BYTES;
        if device_bytes != disk.size_bytes() {
            return Err(Error::OtherSize {
                device: number,
                device_bytes,
                disk_bytes: disk.size_bytes(),
            });
        }
        let patience = Instant::now() + DEATH_LIMIT;
        while let Err(source) = control.start_recovery(number) {
            if source.raw_os_error() != Some(libc::EBUSY) || Instant::now() > patience {
                return Err(Error::System {
                    action: format!("take over ublk device {number}"),
                    source,
                });
            }
            std::thread::sleep(PAUSE);
        }
        let info = control
            .info(number)
            .map_err(Error::system(format!("ask ublk device {number}")))?;
        let mut device = Self {
            number,
            control,
            threads: Vec::new(),
            is_added: false,
            is_recovered: true,
        };
        device.open_queues(disk, &info)?;
        device
            .control
            .end_recovery(number)
            .map_err(Error::system(format!("go on with ublk device {number}")))?;
        device.is_added = true;
        Ok(device)
    }

    /// Deletes the device that a dead server left behind: what waits on it sees errors.
    ///
    /// # Errors
    /// `NotThere`, `Served`, or a step that the system refused.
    pub fn forget(identity: u64) -> Result<()> {
        let mut control = open_control()?;
        let number = left_behind(&mut control, identity)?.ok_or(Error::NotThere)?;
        control
            .stop(number)
            .and_then(|()| control.delete(number))
            .map_err(Error::system(format!("delete ublk device {number}")))
    }

    /// `/dev/ublkbN`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.number))
    }

    /// Whether it was there before, with whatever is on it and waited for a server.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        self.is_recovered
    }

    /// Ends the device after what it has in flight.
    ///
    /// # Errors
    /// The system refused it; the device is gone with this process at the latest.
    pub fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.is_added) {
            return Ok(());
        }
        let number = self.number;
        let stopped = self.control.stop(number);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of a ublk device panicked");
            }
        }
        stopped
            .and_then(|()| self.control.delete(number))
            .map_err(Error::system(format!("end ublk device {number}")))
    }

    /// Starts the thread of every queue; returns when each has asked for its first requests.
    fn open_queues(&mut self, disk: &Arc<dyn Disk>, info: &DeviceInfo) -> Result<()> {
        let path = format!("/dev/ublkc{}", self.number);
        let file = Arc::new(open_when_there(Path::new(&path)).map_err(Error::system(path))?);
        let (tell, told) = mpsc::channel();
        for queue in 0..info.queue_count {
            let opened = disk
                .queue()
                .map_err(Error::system("open a queue of the disk"))?;
            let (file, tell) = (Arc::clone(&file), tell.clone());
            let (depth, request_bytes_max) = (info.queue_depth, info.request_bytes_max);
            let serve = move || {
                let worker = match Worker::open(file, queue, depth, request_bytes_max, opened) {
                    Ok(worker) => worker,
                    Err(error) => return drop(tell.send(Err(error))),
                };
                // A device that is not waited for any more takes its queues back.
                drop(tell.send(Ok(())));
                drop(tell);
                if let Err(error) = worker.run() {
                    tracing::error!(%error, queue, "a queue of a ublk device ended, and with it the process");
                    // The kernel holds the device's requests until another process serves them.
                    std::process::abort();
                }
            };
            let thread = std::thread::Builder::new()
                .name(format!("ublk-{queue}"))
                .spawn(serve)
                .map_err(Error::system("start a thread"))?;
            self.threads.push(thread);
        }
        drop(tell);
        for opened in told {
            opened.map_err(Error::system("open a queue of a ublk device"))?;
        }
        Ok(())
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            tracing::error!(%error, "end a ublk device");
        }
    }
}

fn open_control() -> Result<Control> {
    Control::open().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::NoDriver,
        _ => Error::System {
            action: "open the ublk driver".to_owned(),
            source,
        },
    })
}

/// The device of a dead server that shows the disk of that identity. One that the kernel still
/// takes for served is waited for: a server that was killed a moment ago ends by and by.
fn left_behind(control: &mut Control, identity: u64) -> Result<Option<u32>> {
    let patience = Instant::now() + DEATH_LIMIT;
    loop {
        let mut served = None;
        for number in numbers().map_err(Error::system("look for ublk devices"))? {
            // Deleted meanwhile, or another user's.
            let Ok(info) = control.info(number) else {
                continue;
            };
            if info.identity != identity || info.features & feature::RECOVERY == 0 {
                continue;
            }
            match info.state {
                state::QUIESCED => return Ok(Some(number)),
                state::LIVE => served = Some(number),
                _ => {}
            }
        }
        match served {
            None => return Ok(None),
            Some(number) if Instant::now() > patience => return Err(Error::Served(number)),
            Some(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Numbers of all devices.
fn numbers() -> io::Result<Vec<u32>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir("/dev")? {
        let name = entry?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc"));
        numbers.extend(number.and_then(|number| number.parse::<u32>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Opens a device file that was asked for just now.
fn open_when_there(path: &Path) -> io::Result<File> {
    let patience = Instant::now() + FILE_LIMIT;
    loop {
        match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && Instant::now() < patience => {
                std::thread::sleep(PAUSE);
            }
            opened => return opened,
        }
    }
}

fn parameters(size_bytes: u64) -> Result<Parameters> {
    if size_bytes == 0 || !size_bytes.is_multiple_of(BLOCK_BYTES) {
        return Err(Error::Size(size_bytes));
    }
    let block_shift = BLOCK_BYTES.trailing_zeros() as u8;
    Ok(Parameters {
        types: parameter::BASIC | parameter::DISCARD,
        // No volatile cache: an acknowledged write is as safe as it will ever be.
        attributes: 0,
        logical_block_shift: block_shift,
        physical_block_shift: block_shift,
        optimal_io_shift: block_shift,
        minimal_io_shift: block_shift,
        request_sectors_max: REQUEST_BYTES_MAX / SECTOR_BYTES as u32,
        sectors: size_bytes / SECTOR_BYTES,
        discard_granularity: BLOCK_BYTES as u32,
        discard_sectors_max: DISCARD_BYTES_MAX / SECTOR_BYTES as u32,
        write_zeroes_sectors_max: DISCARD_BYTES_MAX / SECTOR_BYTES as u32,
        discard_segments_max: 1,
        ..Parameters::default()
    })
}

/// Logical blocks are whole pages: a shorter write would be a read and a write.
const BLOCK_BYTES: u64 = cenote_volume::PAGE_BYTES as u64;
/// Longest request; as long as a page run that one worker moves without a pause, arbitrary.
const REQUEST_BYTES_MAX: u32 = 128 << 10;
/// Longest discard: it has no data, so it is bounded by what a request may cover.
const DISCARD_BYTES_MAX: u32 = cenote_volume::REQUEST_BYTES_MAX as u32;
/// How long the kernel may take to see that a server died: it ends its threads first.
const DEATH_LIMIT: Duration = Duration::from_secs(10);
/// How long a device file may take to appear.
const FILE_LIMIT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(2);

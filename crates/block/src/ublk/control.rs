//! The control device of the ublk driver: devices are added, started, taken over, deleted.
//!
//! Every command is one submission on an io_uring of its own and is waited for. The driver runs
//! those that may take long on a thread of the kernel's, so queues are served meanwhile.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use super::abi::{ControlCommand, DeviceInfo, Parameters, control};

/// An open control device.
pub(super) struct Control {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    file: File,
}

impl Control {
    /// # Errors
    /// The kernel has no ublk driver, or this process may not use it.
    pub(super) fn open() -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(CONTROL_PATH)?;
        let ring = IoUring::builder().build(4)?;
        Ok(Self { ring, file })
    }

    /// Adds a device; `info` says what is wanted, and afterwards what it became.
    pub(super) fn add(&mut self, info: &mut DeviceInfo) -> io::Result<()> {
        let device = info.device;
        // SAFETY: `info` is exclusive and lives through the call; the kernel writes one of its kind.
        unsafe { self.run_with(control::ADD, device, 0, info) }
    }

    /// What the driver knows of a device.
    pub(super) fn info(&mut self, device: u32) -> io::Result<DeviceInfo> {
        let mut info = DeviceInfo::default();
        // SAFETY: as in `add`.
        unsafe { self.run_with(control::INFO, device, 0, &mut info) }?;
        Ok(info)
    }

    pub(super) fn set_parameters(
        &mut self,
        device: u32,
        parameters: &mut Parameters,
    ) -> io::Result<()> {
        parameters.len_bytes = size_of::<Parameters>() as u32;
        // SAFETY: as in `add`; the kernel reads no more than `len_bytes`.
        unsafe { self.run_with(control::SET_PARAMETERS, device, 0, parameters) }
    }

    pub(super) fn parameters(&mut self, device: u32) -> io::Result<Parameters> {
        let mut parameters = Parameters {
            len_bytes: size_of::<Parameters>() as u32,
            ..Parameters::default()
        };
        // SAFETY: as in `add`; the kernel writes no more than `len_bytes`.
        unsafe { self.run_with(control::PARAMETERS, device, 0, &mut parameters) }?;
        Ok(parameters)
    }

    /// Shows the device to the machine; every tag of every queue has asked for its first request.
    pub(super) fn start(&mut self, device: u32) -> io::Result<()> {
        self.run(control::START, device, u64::from(std::process::id()))
    }

    /// Takes the device away from the machine, after what it has in flight; queues end.
    pub(super) fn stop(&mut self, device: u32) -> io::Result<()> {
        self.run(control::STOP, device, 0)
    }

    /// Forgets a device whose queues have ended.
    pub(super) fn delete(&mut self, device: u32) -> io::Result<()> {
        self.run(control::DELETE, device, 0)
    }

    /// Begins to take over a device whose server died; queues may be opened then.
    pub(super) fn start_recovery(&mut self, device: u32) -> io::Result<()> {
        self.run(control::START_RECOVERY, device, 0)
    }

    /// The new queues have asked for their first requests: those that waited come.
    pub(super) fn end_recovery(&mut self, device: u32) -> io::Result<()> {
        self.run(control::END_RECOVERY, device, u64::from(std::process::id()))
    }

    fn run(&mut self, number: u32, device: u32, data: u64) -> io::Result<()> {
        let command = ControlCommand {
            device,
            queue: u16::MAX,
            data,
            ..ControlCommand::default()
        };
        // SAFETY: the command names no memory.
        unsafe { self.submit(number, &command) }
    }

    /// # Safety
    /// `T` is what the kernel reads and writes for this command, no longer than that, and any
    /// bytes are a valid `T`.
    unsafe fn run_with<T>(
        &mut self,
        number: u32,
        device: u32,
        data: u64,
        about: &mut T,
    ) -> io::Result<()> {
        let command = ControlCommand {
            device,
            queue: u16::MAX,
            len_bytes: size_of::<T>() as u16,
            address: std::ptr::from_mut(about) as u64,
            data,
            ..ControlCommand::default()
        };
        // SAFETY: the caller's promise; `about` lives until the command has ended, below.
        unsafe { self.submit(number, &command) }
    }

    /// # Safety
    /// What the command points to stays valid until this returns.
    unsafe fn submit(&mut self, number: u32, command: &ControlCommand) -> io::Result<()> {
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), number)
            .cmd(command.bytes())
            .build();
        // SAFETY: the file is open, and the memory that the command names is the caller's promise:
        // this returns only when the command has ended.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        loop {
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(ended) = self.ring.completion().next() {
                return match ended.result() {
                    0.. => Ok(()),
                    error => Err(io::Error::from_raw_os_error(-error)),
                };
            }
        }
    }
}

/// Of the driver, once its module is loaded.
const CONTROL_PATH: &str = "/dev/ublk-control";

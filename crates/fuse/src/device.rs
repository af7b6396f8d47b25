//! `/dev/fuse` as a transport: each read is a request, each write a reply.
//!
//! Where rings serve a connection, FORGET and INTERRUPT still come this way.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;

use crate::reply;
use crate::request::{Malformed, Request};

/// An open `/dev/fuse` of a connection.
#[derive(Debug)]
pub struct Device {
    file: File,
    /// Whether it waits for requests, or takes those alone that are there.
    waits: bool,
}

impl Device {
    /// `device` is of a connection whose INIT was replied to.
    #[must_use]
    pub fn new(device: OwnedFd) -> Self {
        Self {
            file: device.into(),
            waits: true,
        }
    }

    /// Another one of the same connection. A thread that waits on one of its own wakes alone.
    ///
    /// # Errors
    /// Linux before 4.2, too many open files, or the connection is over.
    pub fn another(&self) -> io::Result<Self> {
        self.clone_with(true)
    }

    /// The same, which takes requests that are there and waits for none.
    ///
    /// # Errors
    /// As [`Device::another`].
    pub fn another_that_never_waits(&self) -> io::Result<Self> {
        self.clone_with(false)
    }

    fn clone_with(&self, waits: bool) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        if !waits {
            options.custom_flags(libc::O_NONBLOCK);
        }
        let file = options.open("/dev/fuse")?;
        let mine = self.file.as_raw_fd().cast_unsigned();
        // SAFETY: both descriptors are open for the call, which reads the 32 bits at the address alone.
        match unsafe { libc::ioctl(file.as_raw_fd(), CLONE, &raw const mine) } {
            0 => Ok(Self { file, waits }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The next request, for which it waits; `None`: the connection is over, or it does not wait and
    /// there is none. `buffer` has to have room for the longest
    /// write that INIT agreed on and its headers, and 8192 bytes.
    ///
    /// # Errors
    /// What the system refuses for good, or a request that is none.
    pub fn request<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<Request<'a>>> {
        let len = loop {
            match (&self.file).read(&mut *buffer) {
                Ok(len) => break len,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) if !self.waits => return Ok(None),
                    // Whoever asked gave up before it was read, or a signal came.
                    Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => {}
                    // The second where it ends while a request is on its way to us.
                    Some(libc::ENODEV | libc::ECONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        };
        match Request::of_bytes(&buffer[..len]) {
            Ok(request) => Ok(Some(request)),
            Err(Malformed) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{len} bytes from /dev/fuse that are no request"),
            )),
        }
    }

    /// Replies to the request that is named so, with bytes or an error number.
    ///
    /// # Errors
    /// The kernel refused the reply. One that nobody waits for any more is none.
    pub fn reply(&self, unique: u64, reply: Result<&[u8], i32>) -> io::Result<()> {
        let header = reply::header(unique, reply.map(<[u8]>::len));
        let bytes = reply.unwrap_or(&[]);
        let parts = [IoSlice::new(&header), IoSlice::new(bytes)];
        match (&self.file).write_vectored(&parts) {
            // The kernel takes all of a reply, or refuses it.
            Ok(taken) if taken == header.len() + bytes.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENODEV) => Ok(()),
                _ => Err(error),
            },
        }
    }
}

/// FUSE_DEV_IOC_CLONE: `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_E500_u32 as libc::Ioctl;

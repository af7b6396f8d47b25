//! The kernel's requests over `/dev/fuse`: all of them, or those that do not come over rings.

use std::io;

use cenote_fuse::Device;

use super::kernel::{Answer, Kernel};
use super::session::REQUEST_BYTES_MAX;

/// An open device, and the memory of a request and its reply.
pub(super) struct Server {
    device: Device,
    requests: Vec<u8>,
    room: Vec<u8>,
}

impl Server {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            // Pages of it are there once they are used.
            requests: vec![0; REQUEST_BYTES_MAX as usize + HEADERS_BYTES],
            room: vec![0; REQUEST_BYTES_MAX as usize * 2],
        }
    }

    /// Answers requests until the connection is over; where the device does not wait, those that are
    /// there.
    ///
    /// # Errors
    /// What the system refuses for good.
    pub(super) fn serve(&mut self, kernel: &Kernel) -> io::Result<()> {
        while let Some(request) = self.device.request(&mut self.requests)? {
            let reply = match kernel.answer(&request, &mut self.room) {
                Answer::Bytes(len) => Ok(&self.room[..len]),
                Answer::Errno(errno) => Err(errno),
                Answer::Nothing => continue,
            };
            if let Err(error) = self.device.reply(request.unique(), reply) {
                // The kernel has failed the request then.
                tracing::warn!(%error, ?request, "reply over /dev/fuse");
            }
        }
        Ok(())
    }
}

/// Room for a request's headers; a page, for buffers of whole pages.
const HEADERS_BYTES: usize = 4096;

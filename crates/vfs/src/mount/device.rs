//! The kernel's requests over `/dev/fuse`: all of them, or those that do not come over rings.

use std::io;

use cenote_fuse::Device;

use super::kernel::{Answer, Kernel};
use super::session::REQUEST_BYTES_MAX;

/// Answers requests until the connection is over.
///
/// # Errors
/// What the system refuses for good.
pub(super) fn serve(kernel: &Kernel, device: &Device) -> io::Result<()> {
    let mut requests = vec![0; REQUEST_BYTES_MAX as usize + HEADERS_BYTES];
    let mut room = vec![0; REQUEST_BYTES_MAX as usize * 2];
    while let Some(request) = device.request(&mut requests)? {
        let reply = match kernel.answer(&request, &mut room) {
            Answer::Bytes(len) => Ok(&room[..len]),
            Answer::Errno(errno) => Err(errno),
            Answer::Nothing => continue,
        };
        if let Err(error) = device.reply(request.unique(), reply) {
            // The kernel has failed the request then.
            tracing::warn!(%error, ?request, "reply over /dev/fuse");
        }
    }
    Ok(())
}

/// Room for a request's headers; a page, for buffers of whole pages.
const HEADERS_BYTES: usize = 4096;

//! A bare NBD client, for what `fio` cannot do: to go on after an error.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest that any request may take.
const LIMIT: Duration = Duration::from_secs(60);
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection past its handshake, with simple replies and one request at a time.
pub struct Client(UnixStream);

/// The error number of a reply, as in the NBD protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refused(pub u32);

impl Client {
    pub fn connect(socket: &Path, export: &str) -> Self {
        let mut stream = UnixStream::connect(socket).expect("the server listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        // Fixed newstyle, no zeros after the export's size; then NBD_OPT_EXPORT_NAME.
        let mut hello = 3_u32.to_be_bytes().to_vec();
        hello.extend(b"IHAVEOPT");
        hello.extend(1_u32.to_be_bytes());
        hello.extend(u32::try_from(export.len()).expect("short").to_be_bytes());
        hello.extend(export.as_bytes());
        stream.write_all(&hello).expect("the server listens");
        let mut size_and_flags = [0; 10];
        stream.read_exact(&mut size_and_flags).expect("an export");
        Self(stream)
    }

    pub fn read(&mut self, offset: u64, len_bytes: usize) -> Result<Vec<u8>, Refused> {
        self.request(0, offset, len_bytes, &[])?;
        let mut bytes = vec![0; len_bytes];
        self.0.read_exact(&mut bytes).expect("the bytes");
        Ok(bytes)
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        self.request(1, offset, bytes.len(), bytes)
    }

    /// As [`Client::write`] to a server that may end meanwhile.
    ///
    /// # Errors
    /// The connection is gone; the bytes may be there or not.
    pub fn try_write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<Result<(), Refused>> {
        self.try_request(1, offset, bytes.len(), bytes)
    }

    pub fn flush(&mut self) -> Result<(), Refused> {
        self.request(3, 0, 0, &[])
    }

    pub fn trim(&mut self, offset: u64, len_bytes: usize) -> Result<(), Refused> {
        self.request(4, offset, len_bytes, &[])
    }

    fn request(
        &mut self,
        command: u16,
        offset: u64,
        len_bytes: usize,
        payload: &[u8],
    ) -> Result<(), Refused> {
        let ended = self.try_request(command, offset, len_bytes, payload);
        ended.expect("a reply in time")
    }

    fn try_request(
        &mut self,
        command: u16,
        offset: u64,
        len_bytes: usize,
        payload: &[u8],
    ) -> io::Result<Result<(), Refused>> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(0_u16.to_be_bytes());
        request.extend(command.to_be_bytes());
        request.extend(offset.to_be_bytes()); // The cookie, which comes back.
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(len_bytes).expect("short").to_be_bytes());
        request.extend(payload);
        self.0.write_all(&request)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        assert_eq!(reply[..4], REPLY_MAGIC.to_be_bytes());
        assert_eq!(reply[8..], offset.to_be_bytes());
        let error = u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes"));
        Ok(match error {
            0 => Ok(()),
            error => Err(Refused(error)),
        })
    }
}

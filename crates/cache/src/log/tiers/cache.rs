//! A cache with a manager of its own as the bytes of a tier: its regions move, are lost and come back
//! while it is used, and it can end before the store does.

use std::io;
use std::ops::Range;

use bytes::{Bytes, BytesMut};

use super::remote::Remote;
use crate::client::{Ended, Error};
use crate::service::{Cache, CallError};

impl Remote for Cache {
    fn len_bytes(&self) -> u64 {
        Cache::len_bytes(self)
    }

    fn submit_read(&mut self, address: u64, buffer: BytesMut, token: u64) -> Result<(), Error> {
        Cache::submit_read(self, address, buffer, token).map_err(refusal)
    }

    fn submit_write(&mut self, address: u64, bytes: Bytes, token: u64) -> Result<(), Error> {
        Cache::submit_write(self, address, bytes, token).map_err(refusal)
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        Cache::poll(self, ended);
        match self.is_gone() {
            false => Ok(()),
            true => Err(io::Error::new(io::ErrorKind::NotConnected, CallError::Gone)),
        }
    }

    fn take_lost(&mut self) -> Option<Range<u64>> {
        // What came back from a checkpoint was told as lost, too: it is older than the log.
        while self.take_fallen_back().is_some() {}
        let region = u64::from(Cache::take_lost(self)?.region);
        let region_bytes = self.region_bytes();
        Some(region * region_bytes..(region + 1) * region_bytes)
    }
}

fn refusal(error: CallError) -> Error {
    match error {
        CallError::Request(error) => error,
        // The next poll says that the cache is gone; nothing was started until then.
        _ => Error::Full,
    }
}

//! What a step gets and leaves: state, and bytes that were brought.

use crate::{Fault, Memory};

/// Bytes of state, and of an answer, at most. Arbitrary: small, because it travels with each move.
pub const STATE_MAX: usize = 1024;
/// Bytes that one [`crate::Verdict::Fetch`] brings at most: a message's worth.
pub const DATA_MAX: usize = 4096;

/// The state of a request, and the bytes that its last fetch brought.
///
/// A WebAssembly guest has one at a fixed place of its memory; the layout is part of the
/// interface between host and guest.
#[repr(C, align(8))]
pub struct Frame {
    pub(crate) addr: u64,
    pub(crate) size: u32,
    state_len: u32,
    data_len: u32,
    reserved: u32,
    state: [u8; STATE_MAX],
    data: [u8; DATA_MAX],
}

/// Where the parts of a frame are, for a host that writes one into a guest's memory.
pub mod layout {
    use super::{DATA_MAX, STATE_MAX};

    /// Of the address that is wanted, or that the data are from: 8 bytes.
    pub const ADDR: usize = 0;
    /// Of the length that is wanted: 4 bytes.
    pub const SIZE: usize = 8;
    /// Of the state's length: 4 bytes.
    pub const STATE_LEN: usize = 12;
    /// Of the length of the data: 4 bytes.
    pub const DATA_LEN: usize = 16;
    /// Of the state.
    pub const STATE: usize = 24;
    /// Of the data.
    pub const DATA: usize = STATE + STATE_MAX;
    /// Of all of it.
    pub const BYTES: usize = DATA + DATA_MAX;
    const _: () = assert!(BYTES == core::mem::size_of::<super::Frame>());
    const _: () = assert!(DATA == core::mem::offset_of!(super::Frame, data));
    const _: () = assert!(STATE == core::mem::offset_of!(super::Frame, state));
    const _: () = assert!(DATA_LEN == core::mem::offset_of!(super::Frame, data_len));
}

impl Default for Frame {
    fn default() -> Self {
        Self::new()
    }
}

impl Frame {
    /// Without state and data.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            addr: 0,
            size: 0,
            state_len: 0,
            data_len: 0,
            reserved: 0,
            state: [0; STATE_MAX],
            data: [0; DATA_MAX],
        }
    }

    /// For the next step: `data` are what was fetched from `addr`, or nothing.
    ///
    /// # Panics
    /// If the state is longer than [`STATE_MAX`], or the data than [`DATA_MAX`].
    pub fn begin(&mut self, state: &[u8], addr: u64, data: &[u8]) {
        self.set_state(state);
        self.addr = addr;
        self.data[..data.len()].copy_from_slice(data);
        self.data_len = u32::try_from(data.len()).expect("bounded by the copy");
    }

    /// The state: first the argument, at the end the answer.
    #[must_use]
    pub fn state(&self) -> &[u8] {
        // A guest's memory is the guest's: the bound holds whatever the field says.
        &self.state[..(self.state_len as usize).min(STATE_MAX)]
    }

    /// The state, to change it without changing its length.
    pub fn state_mut(&mut self) -> &mut [u8] {
        &mut self.state[..(self.state_len as usize).min(STATE_MAX)]
    }

    /// Replaces the state.
    ///
    /// # Panics
    /// If it is longer than [`STATE_MAX`].
    pub fn set_state(&mut self, state: &[u8]) {
        self.state[..state.len()].copy_from_slice(state);
        self.state_len = u32::try_from(state.len()).expect("bounded by the copy");
    }

    /// Appends to the state; whether there was room.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let start = self.state().len();
        match self.state.get_mut(start..start + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.state_len += u32::try_from(bytes.len()).expect("bounded by the room");
                true
            }
            None => false,
        }
    }

    /// The number of 8 bytes at `at` of the state, if it is that long.
    #[must_use]
    pub fn u64_at(&self, at: usize) -> Option<u64> {
        let bytes = self.state().get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }

    /// The number of 4 bytes at `at` of the state, if it is that long.
    #[must_use]
    pub fn u32_at(&self, at: usize) -> Option<u32> {
        let bytes = self.state().get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?))
    }

    /// Writes a number into the state.
    ///
    /// # Panics
    /// If the state is not that long.
    pub fn put_u64(&mut self, at: usize, number: u64) {
        self.state_mut()[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }

    /// Writes a number into the state.
    ///
    /// # Panics
    /// If the state is not that long.
    pub fn put_u32(&mut self, at: usize, number: u32) {
        self.state_mut()[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }

    /// Loads bytes from what was brought, or else from `memory`.
    ///
    /// A step that was told [`Fault::Elsewhere`] here finds the bytes at the same place after
    /// its fetch, so it needs no state that says how far it was. What an earlier fetch brought is
    /// gone then: take what it was for into the state.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn load<M: Memory + ?Sized>(
        &self,
        memory: &mut M,
        addr: u64,
        target: &mut [u8],
    ) -> Result<(), Fault> {
        match self.brought(addr, target.len()) {
            Some(bytes) => {
                target.copy_from_slice(bytes);
                Ok(())
            }
            None => memory.load(addr, target),
        }
    }

    /// As [`Frame::load`], a number of 8 bytes.
    ///
    /// # Errors
    /// [`Fault`].
    pub fn load_u64<M: Memory + ?Sized>(&self, memory: &mut M, addr: u64) -> Result<u64, Fault> {
        if self.data_len == 0 {
            return memory.load_u64(addr);
        }
        let mut bytes = [0; 8];
        self.load(memory, addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// How many of the `size` bytes from `addr` can be loaded now.
    pub fn here<M: Memory + ?Sized>(&self, memory: &mut M, addr: u64, size: u64) -> u64 {
        let len = self.data_len as usize;
        match addr.checked_sub(self.addr) {
            Some(skip) if skip < len as u64 => (len as u64 - skip).min(size),
            _ => memory.here(addr, size),
        }
    }

    fn brought(&self, addr: u64, len: usize) -> Option<&[u8]> {
        if self.data_len == 0 {
            return None;
        }
        let data = &self.data[..(self.data_len as usize).min(DATA_MAX)];
        let start = usize::try_from(addr.checked_sub(self.addr)?).ok()?;
        data.get(start..start.checked_add(len)?)
    }
}

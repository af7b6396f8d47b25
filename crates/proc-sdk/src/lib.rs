//! The SDK for writing procedures that run beside a cache's data.
//!
//! A [`Procedure`] is a step function over a [`Frame`]: the state comes in, a [`Verdict`] goes out.
//! A step keeps nothing but its state, so that a request can wait or move to another machine
//! between any two steps. The same source works both ways: linked natively into a host, or built as
//! a WebAssembly module by [`export!`].
//!
//! Numbers are little-endian; addresses are bytes from the beginning of the cache.
//! Paper: `[compucache]` LocalTranslator, DFlow, FFlow.

#![no_std]
#![cfg_attr(not(target_arch = "wasm32"), forbid(unsafe_code))]

mod frame;
#[cfg(target_arch = "wasm32")]
#[doc(hidden)]
pub mod guest;
pub mod procedures;

pub use frame::{DATA_MAX, Frame, STATE_MAX, layout};

/// The bytes of one cache, as far as they are on this machine.
pub trait Memory {
    /// Copies bytes from `addr`.
    ///
    /// # Errors
    /// [`Fault`]; `target` is unspecified then.
    fn load(&mut self, addr: u64, target: &mut [u8]) -> Result<(), Fault>;

    /// Copies bytes to `addr`; what other machines read meanwhile may be torn.
    ///
    /// # Errors
    /// [`Fault`]; nothing is written of a range that is only partly here.
    fn store(&mut self, addr: u64, source: &[u8]) -> Result<(), Fault>;

    /// How many of the `size` bytes from `addr` are here without a gap. 0: none.
    fn here(&mut self, addr: u64, size: u64) -> u64;

    /// Loads a number of 8 bytes.
    ///
    /// # Errors
    /// [`Fault`].
    fn load_u64(&mut self, addr: u64) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        self.load(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Why bytes could not be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// Some are on another machine, or beyond the cache's end. Of a store also: it has to wait, as
    /// the region is on the move, or as the step stored 64 KiB already into a cache with two
    /// copies.
    Elsewhere,
    /// The procedure may only read, or it is a store of more than 64 KiB into a cache with two
    /// copies.
    Denied,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The state is the answer.
    Done,
    /// Bring these bytes here, at most [`DATA_MAX`], and step again: the request is INACTIVE
    /// until they come. Paper: `[compucache]` DFlow.
    Fetch {
        /// Of the first byte.
        addr: u64,
        /// 1 to [`DATA_MAX`].
        size: u32,
    },
    /// Go on where these bytes begin, with the state as it is. Paper: `[compucache]` FFlow.
    Move {
        /// Of the first byte.
        addr: u64,
        /// 1 to [`DATA_MAX`]; what is missing of them there is brought.
        size: u32,
    },
    /// Let others run, then step again. A step that takes longer than a host allows is ended.
    Again,
    /// The answer is not whole; the state is what the client goes on from.
    Stop,
    /// Of the procedure's own kinds: an argument or bytes that make no sense.
    Fail(u32),
}

/// What to do about bytes that are on another machine; an argument of the procedures here.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Away {
    /// [`Verdict::Fetch`].
    Fetch = 0,
    /// [`Verdict::Move`].
    Move = 1,
    /// [`Verdict::Stop`].
    Stop = 2,
}

impl Away {
    /// From its number.
    #[must_use]
    pub fn from_u32(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Fetch),
            1 => Some(Self::Move),
            2 => Some(Self::Stop),
            _ => None,
        }
    }

    /// The verdict for `size` bytes from `addr`.
    #[must_use]
    pub fn verdict(self, addr: u64, size: u32) -> Verdict {
        match self {
            Self::Fetch => Verdict::Fetch { addr, size },
            Self::Move => Verdict::Move { addr, size },
            Self::Stop => Verdict::Stop,
        }
    }
}

/// A program that runs beside the data.
pub trait Procedure {
    /// Runs until the end, or until the request has to wait or to move.
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict;
}

/// The argument is not of the procedure's form.
pub const BAD_ARGUMENT: u32 = 1;
/// The bytes in the cache are not of the form that the procedure expects.
pub const BAD_DATA: u32 = 2;
/// The procedure may not do that: see [`Fault::Denied`].
pub const DENIED: u32 = 3;

/// Makes a WebAssembly module of a procedure; natively it does nothing.
#[macro_export]
macro_rules! export {
    ($procedure:ty) => {
        #[cfg(target_arch = "wasm32")]
        static FRAME: $crate::guest::Cell = $crate::guest::Cell::new();

        #[cfg(target_arch = "wasm32")]
        #[unsafe(no_mangle)]
        extern "C" fn frame() -> u32 {
            FRAME.address()
        }

        #[cfg(target_arch = "wasm32")]
        #[unsafe(no_mangle)]
        extern "C" fn step() -> u32 {
            FRAME.step::<$procedure>()
        }
    };
}

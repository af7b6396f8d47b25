//! The guest's end of the interface with a host that runs WebAssembly.

use crate::{Fault, Frame, Memory, Procedure, Verdict};
use core::cell::UnsafeCell;

#[link(wasm_import_module = "cenote")]
unsafe extern "C" {
    fn load(addr: u64, target: *mut u8, len: u32) -> u32;
    fn store(addr: u64, source: *const u8, len: u32) -> u32;
    fn here(addr: u64, size: u64) -> u64;
}

/// The host's calls.
struct Host;

fn checked(code: u32) -> Result<(), Fault> {
    match code {
        0 => Ok(()),
        1 => Err(Fault::Elsewhere),
        _ => Err(Fault::Denied),
    }
}

impl Memory for Host {
    #[inline(always)]
    fn load(&mut self, addr: u64, target: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: the range is the slice's; the host writes nothing else.
        checked(unsafe { load(addr, target.as_mut_ptr(), target.len() as u32) })
    }

    #[inline(always)]
    fn store(&mut self, addr: u64, source: &[u8]) -> Result<(), Fault> {
        // SAFETY: the range is the slice's; the host only reads it.
        checked(unsafe { store(addr, source.as_ptr(), source.len() as u32) })
    }

    #[inline(always)]
    fn here(&mut self, addr: u64, size: u64) -> u64 {
        // SAFETY: no pointers.
        unsafe { here(addr, size) }
    }
}

/// The guest's one frame.
pub struct Cell(UnsafeCell<Frame>);

// SAFETY: a module without threads; the host runs one call at a time.
unsafe impl Sync for Cell {}

impl Cell {
    /// An empty one.
    pub const fn new() -> Self {
        Self(UnsafeCell::new(Frame::new()))
    }

    /// Where the host finds it.
    pub fn address(&self) -> u32 {
        self.0.get() as u32
    }

    /// Runs a step; the verdict's number, its address and size in the frame.
    pub fn step<P: Procedure>(&self) -> u32 {
        // SAFETY: the only reference; `step` is not entered again while it runs.
        let frame = unsafe { &mut *self.0.get() };
        let (number, addr, size) = match P::step(&mut Host, frame) {
            Verdict::Done => (0, 0, 0),
            Verdict::Fetch { addr, size } => (1, addr, size),
            Verdict::Move { addr, size } => (2, addr, size),
            Verdict::Again => (3, 0, 0),
            Verdict::Stop => (4, 0, 0),
            Verdict::Fail(code) => (5, 0, code),
        };
        frame.addr = addr;
        frame.size = size;
        number
    }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    core::arch::wasm32::unreachable()
}

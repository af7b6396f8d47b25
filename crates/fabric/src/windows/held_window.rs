//! A window that a thread of the host reads and writes again and again.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::{WindowTable, Windows};
use crate::memory::{Dead, Region};
use crate::{Generation, Rights, WindowId};

/// One life of a window: its memory, as long as the generation stands.
///
/// Each access looks at the generation. A read looks after the copy, so that it costs no more than
/// a load; bytes of a later life are never returned. A write holds the window off from being
/// revoked or renewed while it lasts, as a verb does. The memory stays mapped while this value
/// lives, and is given back all the same.
#[derive(Clone)]
pub struct HeldWindow {
    table: Arc<WindowTable>,
    region: Arc<Region>,
    id: WindowId,
    generation: Generation,
}

/// Why a write does not count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unwritten {
    /// The generation is over, or the window is not one to write to. Nothing was changed.
    Nothing,
    /// The generation ended while the bytes were copied. A window that was renewed has them; one
    /// that was revoked has no memory any more.
    Perhaps,
}

impl Windows {
    /// Holds a window, if that generation of it stands.
    #[must_use]
    pub fn hold(&self, id: WindowId, generation: Generation) -> Option<HeldWindow> {
        let (region, _) = self.0.attach(id, generation).ok()?;
        Some(HeldWindow {
            table: Arc::clone(&self.0),
            region,
            id,
            generation,
        })
    }
}

impl HeldWindow {
    /// Its length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.region.len_bytes()
    }

    /// Whether the generation is over, or the memory gone.
    #[inline]
    #[must_use]
    pub fn is_over(&self) -> bool {
        let slot = self.table.slot(self.id);
        let stands = |slot: &super::Slot| slot.entrance.generation();
        slot.map(stands) != Some(self.generation.0) || self.region.is_dead()
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// [`Dead`]: the generation is over, and `target` unspecified.
    ///
    /// # Panics
    /// If the range passes the end.
    #[inline]
    pub fn read(&self, offset: u64, target: &mut [u8]) -> Result<(), Dead> {
        self.region.read(offset, target)?;
        // What was copied was copied before the generation is looked at.
        fence(Ordering::Acquire);
        if self.is_over() { Err(Dead) } else { Ok(()) }
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// [`Unwritten`].
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn write(&self, offset: u64, source: &[u8]) -> Result<(), Unwritten> {
        let len = source.len() as u64;
        let entered = self
            .table
            .enter(self.id, self.generation, Rights::WRITE, offset, len);
        let guard = entered.map_err(|_| Unwritten::Nothing)?;
        let written = self.region.write(offset, source);
        match written {
            Ok(()) if !guard.is_dead() => Ok(()),
            Ok(()) | Err(Dead) => Err(Unwritten::Perhaps),
        }
    }
}

impl std::fmt::Debug for HeldWindow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldWindow")
            .field("id", &self.id)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

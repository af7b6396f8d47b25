//! Window memory used where it lies, without the copy; and who may use it.

use super::stream::copy_out;
use super::{Dead, Mapping, View};
use crate::{Rights, Status, WindowDescriptor};

impl Mapping {
    /// Where the range begins in the view, if a verb on the window so `named` may touch it; the
    /// order of checks is the same on every fabric.
    ///
    /// Inlined always: it is most of what a verb over `shm` costs beside the copy.
    #[inline(always)]
    pub(crate) fn admit(
        &self,
        named: &WindowDescriptor,
        need: Rights,
        offset: u64,
        len_bytes: usize,
    ) -> Result<usize, Status> {
        // Dead before the verb began: a later life, or none, as far as this verb is concerned.
        if self.descriptor.generation != named.generation
            || self.descriptor.id != named.id
            || self.view.is_dead()
        {
            return Err(Status::StaleGeneration);
        }
        if !self.descriptor.rights.contains(need) {
            return Err(Status::NoRights);
        }
        let start = usize::try_from(offset).map_err(|_| Status::OutOfBounds)?;
        match start.checked_add(len_bytes) {
            Some(end) if end <= self.view.len_bytes() => Ok(start),
            _ => Err(Status::OutOfBounds),
        }
    }
}

/// A range of mapped memory that a peer may write or take back at any instruction.
///
/// It gives a raw pointer, never a reference. What was computed from the bytes counts only
/// after [`InPlace::alive`] said so: memory that was taken back meanwhile reads as zeros.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct InPlace<'v> {
    view: &'v View,
    start: usize,
    len_bytes: usize,
}

impl<'v> InPlace<'v> {
    /// `None` if the range passes the end of the view.
    pub(crate) fn new(view: &'v View, start: usize, len_bytes: usize) -> Option<Self> {
        let end = start.checked_add(len_bytes)?;
        (end <= view.len_bytes()).then_some(Self {
            view,
            start,
            len_bytes,
        })
    }

    /// The first byte. While `'v` lasts the range is valid for reads, and for writes if it is of
    /// a [`crate::Region`]; the bytes may change under whoever reads them.
    #[must_use]
    pub fn pointer(&self) -> *mut u8 {
        self.view.base().wrapping_add(self.start)
    }

    /// Bytes in the range.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Copies `source` here, around the caches. Other processors see the bytes after
    /// [`crate::order_stores`].
    ///
    /// # Safety
    /// This range is of a [`crate::Region`], and the two do not overlap.
    ///
    /// # Panics
    /// If they differ in length.
    pub unsafe fn copy_from(&self, source: &InPlace<'_>) {
        assert_eq!(source.len_bytes, self.len_bytes, "ranges of one length");
        // SAFETY: both ranges are mapped while their views are borrowed; the rest is the caller's
        // promise. Lost memory is replaced under the copy.
        unsafe { copy_out(source.pointer(), self.pointer(), self.len_bytes) };
    }

    /// Whether all accesses so far met the memory itself; ask after them.
    ///
    /// # Errors
    /// [`Dead`]: bytes read are unspecified, bytes written are lost.
    pub fn alive(&self) -> Result<(), Dead> {
        self.view.alive()
    }
}

//! Window memory used where it lies, without the copy.

use super::{Dead, View};

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

    /// Whether all accesses so far met the memory itself; ask after them.
    ///
    /// # Errors
    /// [`Dead`]: bytes read are unspecified, bytes written are lost.
    pub fn alive(&self) -> Result<(), Dead> {
        self.view.alive()
    }
}

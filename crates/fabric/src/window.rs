//! Names of remote memory: what a client holds to address a window on a host.

use std::sync::Arc;

use cenote_wire::{Field, Reader, Taken, Window, Writer};

use crate::{InPlace, Status};

/// Index of a window in its host's table. Reused, with another generation.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct WindowId(pub u32);

/// One life of a window. Never reused by a host process; the low half is random, so
/// holding a generation is the right to use the window (as with an RDMA rkey).
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Generation(pub u64);

/// What verbs may do to a window. Rights are a bit set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rights(pub u8);

impl Rights {
    /// Remote READ.
    pub const READ: Self = Self(1);
    /// Remote WRITE.
    pub const WRITE: Self = Self(2);
    /// Compare-and-swap, fetch-and-add. On `shm` it needs WRITE as well.
    pub const ATOMIC: Self = Self(4);
    /// Everything.
    pub const ALL: Self = Self(7);

    /// Whether every right of `other` is in `self`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both sets together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A window as its host names it; plain data, sent inside control messages.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct WindowDescriptor {
    /// Index in the host's table.
    pub id: WindowId,
    /// The life that this descriptor is valid for.
    pub generation: Generation,
    /// Length in bytes.
    pub len_bytes: u64,
    /// What verbs may do.
    pub rights: Rights,
}

impl From<Window> for WindowDescriptor {
    fn from(name: Window) -> Self {
        Self {
            id: WindowId(name.id),
            generation: Generation(name.generation),
            len_bytes: name.len_bytes,
            rights: Rights(name.rights),
        }
    }
}

impl From<WindowDescriptor> for Window {
    fn from(descriptor: WindowDescriptor) -> Self {
        Self {
            id: descriptor.id.0,
            generation: descriptor.generation.0,
            len_bytes: descriptor.len_bytes,
            rights: descriptor.rights.0,
        }
    }
}

impl<'a> Field<'a> for WindowDescriptor {
    fn put(&self, out: &mut Writer<'_>) {
        out.put(&Window::from(*self));
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        Ok(input.take::<Window>()?.into())
    }
}

/// A window that a session has attached; cheap to clone, shared by all workers.
///
/// On `shm` it holds the mapping, which lives until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct RemoteWindow {
    /// The host's name for it.
    pub descriptor: WindowDescriptor,
    /// The mapping, where the fabric reaches the memory by load and store.
    pub(crate) mapping: Option<Arc<crate::memory::Mapping>>,
    /// How the host's device names it, where a device reaches the memory.
    #[cfg(feature = "rdma")]
    pub(crate) remote: Option<Arc<crate::rdma::RemoteMemory>>,
}

impl RemoteWindow {
    /// A window that is reached by messages, or by load and store where it is mapped.
    pub(crate) fn new(
        descriptor: WindowDescriptor,
        mapping: Option<Arc<crate::memory::Mapping>>,
    ) -> Self {
        Self {
            descriptor,
            mapping,
            #[cfg(feature = "rdma")]
            remote: None,
        }
    }
}

impl RemoteWindow {
    /// A window that is reached by messages alone; for a [`Session`](crate::Session) of another make.
    #[must_use]
    pub fn unmapped(descriptor: WindowDescriptor) -> Self {
        Self::new(descriptor, None)
    }

    /// What its host calls it.
    #[must_use]
    pub fn name(&self) -> Window {
        self.descriptor.into()
    }

    /// The window's bytes where they lie; `None` where the fabric does not map them.
    ///
    /// It looks at the window alone: whether the host lives is its endpoint's to say,
    /// before and after.
    ///
    /// # Errors
    /// The status that a READ of the range would end with.
    #[must_use]
    pub fn in_place(&self, offset: u64, len_bytes: usize) -> Option<Result<InPlace<'_>, Status>> {
        let mapping = self.mapping.as_deref()?;
        let admitted = mapping.admit(&self.descriptor, Rights::READ, offset, len_bytes);
        Some(admitted.and_then(|start| {
            InPlace::new(&mapping.view, start, len_bytes).ok_or(Status::OutOfBounds)
        }))
    }
}

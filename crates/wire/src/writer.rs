//! Writing.

use crate::{Field, Layout};

/// Appends parts to a message.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    version: u8,
}

impl<'o> Writer<'o> {
    /// Writes a message of a protocol that has one version.
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self::of_version(u8::MAX, out)
    }

    /// Writes a message in this version: what is [`Since`](crate::Since) a later one is left out.
    pub fn of_version(version: u8, out: &'o mut Vec<u8>) -> Self {
        Self { out, version }
    }

    /// The message's version.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// Appends this.
    ///
    /// # Panics
    /// It breaks a bound of its declaration.
    #[inline]
    pub fn put<'a, T: Field<'a>>(&mut self, value: &T) {
        value.put(self);
    }

    /// Appends this, in this layout.
    ///
    /// # Panics
    /// It breaks a bound of the layout.
    #[inline]
    pub fn put_as<'a, L: Layout<'a, T>, T>(&mut self, value: &T) {
        L::put(value, self);
    }

    /// Appends bytes as they are.
    #[inline]
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }
}

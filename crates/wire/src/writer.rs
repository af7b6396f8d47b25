//! Writing.

use crate::{Field, Layout};

/// Appends parts to a message.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    version: u8,
    is_strict: bool,
}

impl<'o> Writer<'o> {
    /// Writes a message of a protocol that has one version.
    #[inline]
    pub fn new(out: &'o mut Vec<u8>) -> Self {
        Self::of_version(u8::MAX, out)
    }

    /// Writes a message in this version: what is [`Since`](crate::Since) a later one is left out.
    #[inline]
    pub fn of_version(version: u8, out: &'o mut Vec<u8>) -> Self {
        Self {
            out,
            version,
            is_strict: true,
        }
    }

    /// Leaves the bounds of texts, bytes and lists to the reader, who refuses what breaks one: where
    /// what is written was not checked, and the other end is to say so.
    #[inline]
    pub fn lenient(out: &'o mut Vec<u8>) -> Self {
        let mut writer = Self::new(out);
        writer.is_strict = false;
        writer
    }

    /// That this many bytes or items are within the bounds of their declaration, unless the reader is to
    /// check it.
    #[inline]
    pub(crate) fn check(&self, len: usize, least: usize, most: usize) {
        if self.is_strict && !(least..=most).contains(&len) {
            out_of_bounds(len, least, most);
        }
    }

    /// The message's version.
    #[inline]
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

#[cold]
#[track_caller]
fn out_of_bounds(len: usize, least: usize, most: usize) -> ! {
    panic!("{len}, not {least} to {most}");
}

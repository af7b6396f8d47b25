//! Reading.

use crate::{Field, Layout, Malformed, Taken};

/// Takes parts off the front of a message; never reads past its end.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
    version: u8,
}

impl<'a> Reader<'a> {
    /// Reads a message of a protocol that has one version.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::of_version(u8::MAX, bytes)
    }

    /// Reads a message in this version: what is [`Since`](crate::Since) a later one is not in it.
    #[must_use]
    pub fn of_version(version: u8, bytes: &'a [u8]) -> Self {
        Self {
            rest: bytes,
            version,
        }
    }

    /// The message's version.
    #[must_use]
    pub fn version(&self) -> u8 {
        self.version
    }

    /// How many bytes were not read yet.
    #[must_use]
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// What comes next.
    ///
    /// # Errors
    /// It is something else.
    #[inline]
    pub fn take<T: Field<'a>>(&mut self) -> Taken<T> {
        T::take(self)
    }

    /// What comes next, in this layout.
    ///
    /// # Errors
    /// It is something else.
    #[inline]
    pub fn take_as<L: Layout<'a, T>, T>(&mut self) -> Taken<T> {
        L::take(self)
    }

    /// All that comes, which is this and nothing else.
    ///
    /// # Errors
    /// It is something else, or not all.
    pub fn whole<T: Field<'a>>(mut self) -> Taken<T> {
        let message = T::take(&mut self)?;
        self.end()?;
        Ok(message)
    }

    /// So many bytes.
    ///
    /// # Errors
    /// There are fewer.
    #[inline]
    pub fn bytes(&mut self, len: usize) -> Taken<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    /// So many bytes.
    ///
    /// # Errors
    /// There are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Taken<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// The message must end here: bytes that nobody reads are an error of the sender.
    ///
    /// # Errors
    /// There are more.
    #[inline]
    pub fn end(&self) -> Taken<()> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("bytes after the end"))
        }
    }
}

pub(crate) const SHORT: Malformed = Malformed("message ends early");

//! What has bytes on the wire.

use crate::{Malformed, Reader, Taken, Writer};

/// A part of a message that looks the same wherever it is in one. `'a` is the bytes that it is read
/// from: what borrows from them is not copied.
pub trait Field<'a>: Sized {
    /// Appends it.
    ///
    /// # Panics
    /// It breaks a bound of its declaration.
    fn put(&self, out: &mut Writer<'_>);

    /// Reads it.
    ///
    /// # Errors
    /// What comes is something else.
    fn take(input: &mut Reader<'a>) -> Taken<Self>;
}

/// One way to write values of a type that has several, or that is another crate's.
pub trait Layout<'a, T> {
    /// Appends a value.
    ///
    /// # Panics
    /// It breaks a bound of the layout.
    fn put(value: &T, out: &mut Writer<'_>);

    /// Reads a value.
    ///
    /// # Errors
    /// What comes is something else.
    fn take(input: &mut Reader<'a>) -> Taken<T>;
}

/// As [`Field`] says: the layout of what is declared without one.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// A field that begins with a byte that says which of several it is.
pub trait Tagged<'a>: Field<'a> {
    /// Reads what follows that byte.
    ///
    /// # Errors
    /// None of them has it, or something else follows.
    fn take_tagged(tag: u8, input: &mut Reader<'a>) -> Taken<Self>;
}

impl<'a, T: Field<'a>> Layout<'a, T> for Plain {
    #[inline]
    fn put(value: &T, out: &mut Writer<'_>) {
        value.put(out);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<T> {
        T::take(input)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => { $(
        impl<'a> Field<'a> for $number {
            #[inline]
            fn put(&self, out: &mut Writer<'_>) {
                out.bytes(&self.to_le_bytes());
            }

            #[inline]
            fn take(input: &mut Reader<'a>) -> Taken<Self> {
                Ok(Self::from_le_bytes(input.array()?))
            }
        }
    )* };
}

numbers!(u8, u16, u32, u64, u128);

impl<'a> Field<'a> for bool {
    #[inline]
    fn put(&self, out: &mut Writer<'_>) {
        u8::from(*self).put(out);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        match input.take::<u8>()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("truth value is not 0 or 1")),
        }
    }
}

impl<'a, const N: usize> Field<'a> for [u8; N] {
    #[inline]
    fn put(&self, out: &mut Writer<'_>) {
        out.bytes(self);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        input.array()
    }
}

impl<'a, T: Field<'a>> Field<'a> for Box<T> {
    #[inline]
    fn put(&self, out: &mut Writer<'_>) {
        T::put(self, out);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        T::take(input).map(Self::new)
    }
}

impl<'a, A: Field<'a>, B: Field<'a>> Field<'a> for (A, B) {
    #[inline]
    fn put(&self, out: &mut Writer<'_>) {
        self.0.put(out);
        self.1.put(out);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        Ok((input.take()?, input.take()?))
    }
}

impl<'a, A: Field<'a>, B: Field<'a>, C: Field<'a>> Field<'a> for (A, B, C) {
    #[inline]
    fn put(&self, out: &mut Writer<'_>) {
        self.0.put(out);
        self.1.put(out);
        self.2.put(out);
    }

    #[inline]
    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        Ok((input.take()?, input.take()?, input.take()?))
    }
}

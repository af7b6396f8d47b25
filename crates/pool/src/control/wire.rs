//! Bounded reading and writing of little-endian fields.

use super::{Malformed, Window};

/// Takes fields off the front of a message; never reads past its end.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(Malformed("message ends early"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    pub(crate) fn u128(&mut self) -> Result<u128, Malformed> {
        Ok(u128::from_le_bytes(self.take()?))
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("truth value is not 0 or 1")),
        }
    }

    /// A length byte, then that many bytes of UTF-8.
    pub(crate) fn text(&mut self, bytes_max: usize) -> Result<String, Malformed> {
        let len_bytes = usize::from(self.u8()?);
        if len_bytes > bytes_max {
            return Err(Malformed("text is too long"));
        }
        let (head, rest) = self
            .rest
            .split_at_checked(len_bytes)
            .ok_or(Malformed("message ends early"))?;
        self.rest = rest;
        let text = std::str::from_utf8(head).map_err(|_| Malformed("text is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(crate) fn window(&mut self) -> Result<Window, Malformed> {
        Ok(Window {
            id: self.u32()?,
            generation: self.u64()?,
            len_bytes: self.u64()?,
            rights: self.u8()?,
        })
    }

    /// The message must end here: bytes that nobody reads are an error of the sender.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("bytes after the end"))
        }
    }
}

/// Appends fields to a message.
pub(crate) struct Writer<'a>(pub(crate) &'a mut Vec<u8>);

impl Writer<'_> {
    pub(crate) fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u128(&mut self, value: u128) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Panics when the text is longer than `bytes_max`, which is at most 255.
    pub(crate) fn text(&mut self, value: &str, bytes_max: usize) {
        assert!(
            value.len() <= bytes_max,
            "text of {} bytes passes {bytes_max}",
            value.len()
        );
        self.u8(u8::try_from(value.len()).expect("bounds on text fit one byte"));
        self.0.extend_from_slice(value.as_bytes());
    }

    pub(crate) fn window(&mut self, window: Window) {
        self.u32(window.id);
        self.u64(window.generation);
        self.u64(window.len_bytes);
        self.u8(window.rights);
    }
}

//! Bytes of Python objects, for calls that wait without the interpreter's lock.
//!
//! Immutable bytes are written from where they lie. What other threads may change is copied while the lock
//! is held, a part at a time: a page whose bytes change while its parities are computed would be a page
//! with wrong parities. Reads go straight into the caller's buffer.

use std::ops::Range;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Raised, or_raise};
use crate::interpreter::detached;

/// Bytes that are copied at a time.
const PART_BYTES: usize = 1 << 20;

/// Bytes that are written.
pub enum Source<'py> {
    Fixed(Bound<'py, PyBytes>),
    Shared(PyBuffer<u8>),
}

impl<'py> Source<'py> {
    pub fn new(data: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = data.cast_exact::<PyBytes>() {
            return Ok(Self::Fixed(bytes.clone()));
        }
        let buffer = PyBuffer::<u8>::get(data)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer does not lie in one piece",
            ));
        }
        Ok(Self::Shared(buffer))
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Fixed(bytes) => bytes.as_bytes().len(),
            Self::Shared(buffer) => buffer.len_bytes(),
        }
    }

    /// A copy of a range of it.
    pub fn copy(&self, py: Python<'_>, range: Range<usize>) -> Vec<u8> {
        match self {
            Self::Fixed(bytes) => bytes.as_bytes()[range].to_vec(),
            Self::Shared(buffer) => {
                let cells = buffer.as_slice(py).expect("it lies in one piece");
                cells[range].iter().map(|cell| cell.get()).collect()
            }
        }
    }

    /// Hands all of it to `write`, at its place in the whole, without the interpreter's lock.
    pub fn hand_over<E: Raised + Send>(
        &self,
        py: Python<'_>,
        write: impl Fn(&[u8], usize) -> Result<(), E> + Sync,
    ) -> PyResult<()> {
        self.hand_over_by(py, PART_BYTES, write)
    }

    /// The same, where parts begin at multiples of `unit`.
    pub fn hand_over_by<E: Raised + Send>(
        &self,
        py: Python<'_>,
        unit: usize,
        write: impl Fn(&[u8], usize) -> Result<(), E> + Sync,
    ) -> PyResult<()> {
        let write = &write;
        if let Self::Fixed(bytes) = self {
            let bytes = bytes.as_bytes();
            return or_raise(py, detached(py, || write(bytes, 0)));
        }
        let step = (PART_BYTES / unit).max(1).saturating_mul(unit);
        for start in (0..self.len()).step_by(step) {
            let part = self.copy(py, start..(start + step).min(self.len()));
            or_raise(py, detached(py, || write(&part, start)))?;
            py.check_signals()?;
        }
        Ok(())
    }
}

/// A buffer that is read into.
pub struct Landing(PyBuffer<u8>);

impl Landing {
    pub fn new(buffer: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(buffer)?;
        if buffer.readonly() {
            return Err(PyBufferError::new_err("the buffer is read-only"));
        }
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err(
                "the buffer does not lie in one piece",
            ));
        }
        Ok(Self(buffer))
    }

    pub fn len(&self) -> usize {
        self.0.len_bytes()
    }

    /// Has `read` fill it, without the interpreter's lock.
    pub fn fill<E: Raised + Send>(
        &self,
        py: Python<'_>,
        read: impl FnOnce(&mut [u8]) -> Result<(), E> + Send,
    ) -> PyResult<()> {
        if self.len() == 0 {
            return Ok(());
        }
        // SAFETY: the exporter keeps this many bytes in place, writable and in one piece, until `self` is
        // dropped. Other threads of the program may look at them meanwhile, as with `readinto` of a socket,
        // and are told not to: what they see then is what they asked for, and nothing here depends on it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.0.buf_ptr().cast(), self.len()) };
        or_raise(py, detached(py, move || read(bytes)))
    }
}

/// New `bytes` that `read` fills, without the interpreter's lock: nobody else has them yet.
pub fn filled<'py, E: Raised + Send>(
    py: Python<'py>,
    length: usize,
    read: impl FnOnce(&mut [u8]) -> Result<(), E> + Send,
) -> PyResult<Bound<'py, PyBytes>> {
    if isize::try_from(length).is_err() {
        return Err(PyMemoryError::new_err(format!("{length} bytes")));
    }
    PyBytes::new_with(py, length, |bytes| {
        or_raise(py, detached(py, || read(bytes)))
    })
}

/// Where runs of equal length lie in something of `size` bytes, and in a buffer of `len_bytes`.
///
/// # Errors
/// They are not as long as the buffer.
pub fn check_runs(offsets: &[u64], run: usize, len_bytes: usize) -> PyResult<()> {
    if run == 0 || offsets.len().checked_mul(run) != Some(len_bytes) {
        return Err(PyValueError::new_err(format!(
            "{} runs of {run} bytes are not a buffer of {len_bytes}",
            offsets.len()
        )));
    }
    Ok(())
}

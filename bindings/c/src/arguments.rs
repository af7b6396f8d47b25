//! What callers pass.

use std::ffi::{CStr, c_char, c_void};
use std::slice;
use std::time::Duration;

use crate::result::Failure;

/// A text, or none for a null pointer.
///
/// # Safety
/// Null, or a text that ends with a zero byte and does not change during `'a`.
pub unsafe fn optional_text<'a>(text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some)
        .map_err(|_| Failure::argument("a text is no UTF-8"))
}

/// As [`optional_text`], but there has to be one.
///
/// # Safety
/// As [`optional_text`].
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    let text = unsafe { optional_text(text) }?;
    text.ok_or_else(|| Failure::argument(&format!("{what} is null")))
}

/// Bytes to read.
///
/// # Safety
/// So many bytes there do not change during `'a`.
pub unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    check(bytes, len)?;
    if len == 0 {
        return Ok(&[]);
    }
    // SAFETY: neither null nor too long, and the caller's promise.
    Ok(unsafe { slice::from_raw_parts(bytes.cast(), len) })
}

/// Room for bytes.
///
/// # Safety
/// Nobody else uses so many bytes there during `'a`.
pub unsafe fn room<'a>(room: *mut c_void, len: usize) -> Result<&'a mut [u8], Failure> {
    check(room, len)?;
    if len == 0 {
        return Ok(&mut []);
    }
    // SAFETY: neither null nor too long, and the caller's promise.
    Ok(unsafe { slice::from_raw_parts_mut(room.cast(), len) })
}

fn check(pointer: *const c_void, len: usize) -> Result<(), Failure> {
    if len > 0 && pointer.is_null() {
        return Err(Failure::argument("a buffer is null"));
    }
    if isize::try_from(len).is_err() {
        return Err(Failure::argument("a buffer is longer than memory can be"));
    }
    Ok(())
}

/// Where a result goes.
///
/// # Safety
/// Null, or nobody else uses the place during `'a`.
pub unsafe fn place<'a, T>(place: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    let place = unsafe { place.as_mut() };
    place.ok_or_else(|| Failure::argument("the place of the result is null"))
}

/// A time, or none for zero, which stands for what is usual.
pub fn duration(milliseconds: u64) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
}

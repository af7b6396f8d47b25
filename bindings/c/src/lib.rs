//! Volumes for C programs: the functions of `include/cenote.h`, over `cenote-client`.
//!
//! Each function that may fail returns a [`cenote_code`] and leaves a text for the calling thread, which
//! [`cenote_error_text`] has. Pointers are checked for null, and nothing else can be: what they point
//! to is the caller's word, said in each function's comment. A panic is a code of its own and goes no
//! further than here.
//!
//! The comments of what is exported are those of the header, and so are its names.

#![allow(
    non_camel_case_types,
    reason = "these are names of C, where a crate is no name space"
)]

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote::{AccessError, Error, Volume};

/// How a call ended.
#[repr(i32)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum cenote_code {
    /// Done.
    CENOTE_OK = 0,
    /// An argument makes no sense: a null pointer, a size, a scheme.
    CENOTE_ARGUMENT = 1,
    /// The cluster file or its key cannot be read, or makes no sense.
    CENOTE_CLUSTER = 2,
    /// Too few hosts answer. Trying again is sensible.
    CENOTE_TOO_FEW_HOSTS = 3,
    /// The volume cannot be opened.
    CENOTE_OPEN = 4,
    /// More hosts are gone, or do not answer, than the scheme survives.
    CENOTE_LOST = 5,
    /// What hosts hold disagrees, and nothing tells which of it is right.
    CENOTE_CORRUPT = 6,
    /// Too few hosts have memory left. May succeed later.
    CENOTE_NO_SPACE = 7,
    /// The range passes the volume's end.
    CENOTE_OUT_OF_RANGE = 8,
    /// The volume has ended.
    CENOTE_CLOSED = 9,
    /// A mistake in this library.
    CENOTE_PANIC = 10,
}
use cenote_code::*;

/// A volume that is open. Any thread may use it, several at a time.
pub struct cenote_volume {
    inner: Volume,
}

/// How a volume is opened. All zeros is what is usual.
#[repr(C)]
pub struct cenote_options {
    /// Bytes of the volume, whole pages of 4096. 0: 1 GiB.
    pub size_bytes: u64,
    /// `plain`, `mirror:N` or `rs:K+R`. Null: the widest usual one that the cluster has room for.
    pub scheme: *const c_char,
    /// What hosts call it in `cenote status`. Null: the process's number.
    pub name: *const c_char,
    /// So many calls go on at a time, and more wait for one another. 0: 4.
    pub threads: u32,
}

/// How a volume is.
#[repr(C)]
#[derive(Debug, Default)]
pub struct cenote_status {
    /// 1: every split of every page is where it should be.
    pub is_whole: u8,
    /// 1: every page can be read.
    pub is_readable: u8,
    /// Pages that hold data, in bytes.
    pub stored_bytes: u64,
    /// Memory that hosts lend to it.
    pub lent_bytes: u64,
    /// Hosts of the cluster.
    pub hosts: u64,
    /// Those of them that are connected.
    pub hosts_connected: u64,
}

/// Opens a new, empty volume on the hosts of a cluster file, and stores it at `volume`. `options` may be
/// null. On an error `*volume` is null.
///
/// # Safety
/// `cluster_file` and the strings of `options` end with a zero; `volume` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_open(
    cluster_file: *const c_char,
    options: *const cenote_options,
    volume: *mut *mut cenote_volume,
) -> cenote_code {
    ended(|| {
        if volume.is_null() {
            return Err(null("volume"));
        }
        // SAFETY: it is not null, and the caller says that it may be written to.
        unsafe { volume.write(std::ptr::null_mut()) };
        // SAFETY: the caller's word.
        let file = unsafe { text(cluster_file, "cluster_file")? }.ok_or(null("cluster_file"))?;
        let mut chosen = Volume::options();
        // SAFETY: null, or the caller's word.
        if let Some(options) = unsafe { options.as_ref() } {
            if options.size_bytes > 0 {
                chosen = chosen.size_bytes(options.size_bytes);
            }
            // SAFETY: the caller's word.
            if let Some(scheme) = unsafe { text(options.scheme, "scheme")? } {
                chosen = chosen.scheme(scheme);
            }
            // SAFETY: the caller's word.
            if let Some(name) = unsafe { text(options.name, "name")? } {
                chosen = chosen.name(name);
            }
            if options.threads > THREADS_MAX {
                let what = format!("threads: {} are more than {THREADS_MAX}", options.threads);
                return Err((CENOTE_ARGUMENT, what));
            }
            if options.threads > 0 {
                chosen = chosen.threads(options.threads as usize);
            }
        }
        let inner = chosen.open(file).map_err(of_error)?;
        let opened = Box::into_raw(Box::new(cenote_volume { inner }));
        // SAFETY: as above.
        unsafe { volume.write(opened) };
        Ok(())
    })
}

/// Most calls at a time that may be asked for. Each has connections of its own.
const THREADS_MAX: u32 = 1024;

/// Bytes of the volume; 0 of a null pointer.
///
/// # Safety
/// `volume` is open, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_size(volume: *const cenote_volume) -> u64 {
    // SAFETY: the caller's word.
    let volume = unsafe { volume.as_ref() };
    volume.map_or(0, |volume| volume.inner.size_bytes())
}

/// Fills `len` bytes at `buffer` from the volume's bytes at `offset`. On an error the buffer may have been
/// written to.
///
/// # Safety
/// `volume` is open; `len` bytes at `buffer` may be written to, and nobody else looks meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_read(
    volume: *const cenote_volume,
    buffer: *mut u8,
    len: usize,
    offset: u64,
) -> cenote_code {
    ended(|| {
        // SAFETY: the caller's word.
        let volume = unsafe { open(volume)? };
        check(buffer, len, "buffer")?;
        if len == 0 {
            return Ok(());
        }
        // The caller's bytes may never have been written to: what is not there may not be borrowed.
        // SAFETY: `len` bytes may be written to; zeros are bytes.
        unsafe { buffer.write_bytes(0, len) };
        // SAFETY: it is not null, has been written to, and nobody else looks at it meanwhile.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer, len) };
        volume.read_at(buffer, offset).map_err(of_access)
    })
}

/// Writes `len` bytes at `offset`. When it returns they survive the loss of as many hosts as the scheme
/// bears. On an error each page is as it was or as written.
///
/// # Safety
/// `volume` is open; `len` bytes at `bytes` may be read, and nobody changes them meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_write(
    volume: *const cenote_volume,
    bytes: *const u8,
    len: usize,
    offset: u64,
) -> cenote_code {
    ended(|| {
        // SAFETY: the caller's word.
        let volume = unsafe { open(volume)? };
        check(bytes, len, "bytes")?;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: it is not null, and the caller says that `len` bytes are there and stay as they are.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, len) };
        volume.write_at(bytes, offset).map_err(of_access)
    })
}

/// Has `len` bytes at `offset` read as zeros, and gives their memory back.
///
/// # Safety
/// `volume` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_discard(
    volume: *const cenote_volume,
    offset: u64,
    len: u64,
) -> cenote_code {
    ended(|| {
        // SAFETY: the caller's word.
        let volume = unsafe { open(volume)? };
        volume.discard(offset, len).map_err(of_access)
    })
}

/// Says whether everything that was written can be had back now: CENOTE_LOST while it cannot. Nothing
/// is held back that it could write out: a write that has returned is with its hosts.
///
/// # Safety
/// `volume` is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_flush(volume: *const cenote_volume) -> cenote_code {
    ended(|| {
        // SAFETY: the caller's word.
        let volume = unsafe { open(volume)? };
        let status = volume
            .status()
            .map_err(|error| (CENOTE_CLOSED, error.to_string()))?;
        match status.is_readable {
            true => Ok(()),
            false => Err(of_access(AccessError::Lost)),
        }
    })
}

/// Writes to `status` how the volume is. Costs a pass over what is known of its pages.
///
/// # Safety
/// `volume` is open; `status` may be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_status(
    volume: *const cenote_volume,
    status: *mut cenote_status,
) -> cenote_code {
    ended(|| {
        // SAFETY: the caller's word.
        let volume = unsafe { open(volume)? };
        if status.is_null() {
            return Err(null("status"));
        }
        let found = volume
            .status()
            .map_err(|error| (CENOTE_CLOSED, error.to_string()))?;
        let told = cenote_status {
            is_whole: u8::from(found.is_whole),
            is_readable: u8::from(found.is_readable),
            stored_bytes: found.stored_bytes,
            lent_bytes: found.lent_bytes,
            hosts: found.hosts as u64,
            hosts_connected: found.hosts_connected as u64,
        };
        // SAFETY: it is not null, and the caller says that it may be written to.
        unsafe { status.write(told) };
        Ok(())
    })
}

/// Ends the volume; what it holds ends with it. Of a null pointer nothing is done.
///
/// # Safety
/// `volume` is open or null, no call uses it, and none does from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_close(volume: *mut cenote_volume) {
    ended(|| {
        if !volume.is_null() {
            // SAFETY: `cenote_volume_open` made it, and the caller gives it up.
            drop(unsafe { Box::from_raw(volume) });
        }
        Ok(())
    });
}

/// What a code means, in a few words. The text stays for ever.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_code_text(code: i32) -> *const c_char {
    let text = match code {
        0 => c"done",
        1 => c"an argument makes no sense",
        2 => c"the cluster file or its key cannot be read",
        3 => c"too few hosts answer",
        4 => c"the volume cannot be opened",
        5 => c"lost: more hosts are gone than the scheme survives",
        6 => c"corrupt: what hosts hold disagrees",
        7 => c"no space: too few hosts have memory left",
        8 => c"out of range",
        9 => c"the volume has ended",
        10 => c"a mistake in the library",
        _ => c"no code of this library",
    };
    text.as_ptr()
}

/// Why the last call of this thread that failed did: never null, and there until the next call that fails.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_error_text() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

type Refused = (cenote_code, String);

/// Runs a call, notes why it failed, and lets no panic into C.
fn ended(call: impl FnOnce() -> Result<(), Refused>) -> cenote_code {
    let ended = catch_unwind(AssertUnwindSafe(call));
    let ended = ended.unwrap_or_else(|panic| Err((CENOTE_PANIC, said(&*panic))));
    let Err((code, why)) = ended else {
        return CENOTE_OK;
    };
    let mut bytes = why.into_bytes();
    bytes.retain(|byte| *byte != 0);
    LAST.set(CString::new(bytes).unwrap_or_default());
    code
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|| "a panic that said nothing".to_owned())
}

/// # Safety
/// `volume` is open for as long as what is returned is used, or null.
unsafe fn open<'a>(volume: *const cenote_volume) -> Result<&'a Volume, Refused> {
    // SAFETY: by this function's own contract.
    let volume = unsafe { volume.as_ref() };
    volume.map(|volume| &volume.inner).ok_or(null("volume"))
}

/// # Safety
/// `pointer` is null, or a string that ends with a zero for as long as what is returned is used.
unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<Option<&'a str>, Refused> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's own contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    let text = text.to_str();
    text.map(Some)
        .map_err(|_| (CENOTE_ARGUMENT, format!("{name} is not UTF-8")))
}

/// Whether a pointer may be of so many bytes.
fn check(pointer: *const u8, len: usize, name: &str) -> Result<(), Refused> {
    if pointer.is_null() && len > 0 {
        return Err(null(name));
    }
    if len > isize::MAX as usize {
        return Err((CENOTE_ARGUMENT, format!("len: {len} bytes are too many")));
    }
    Ok(())
}

fn null(name: &str) -> Refused {
    (CENOTE_ARGUMENT, format!("{name} is null"))
}

fn of_error(error: Error) -> Refused {
    let code = match error {
        Error::Read { .. } | Error::Cluster { .. } | Error::Key { .. } => CENOTE_CLUSTER,
        Error::Options(_) => CENOTE_ARGUMENT,
        Error::TooFewHosts(_) => CENOTE_TOO_FEW_HOSTS,
        _ => CENOTE_OPEN,
    };
    (code, error.to_string())
}

fn of_access(error: AccessError) -> Refused {
    let code = match error {
        AccessError::Corrupt => CENOTE_CORRUPT,
        AccessError::NoSpace => CENOTE_NO_SPACE,
        AccessError::OutOfRange => CENOTE_OUT_OF_RANGE,
        AccessError::Closed => CENOTE_CLOSED,
        _ => CENOTE_LOST,
    };
    (code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: it is a string of this library's, and stays until the next call that fails.
        let text = unsafe { CStr::from_ptr(cenote_error_text()) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn null_pointers_and_files_that_are_not_there_are_codes_with_a_text() {
        let mut volume = std::ptr::dangling_mut();
        let gone = c"/nowhere/cluster.toml".as_ptr();
        let none = std::ptr::null();
        // SAFETY: the pointers are null or good.
        unsafe {
            assert_eq!(
                cenote_volume_open(gone, none, &raw mut volume),
                CENOTE_CLUSTER
            );
            assert!(volume.is_null());
            assert!(last().contains("/nowhere/cluster.toml"), "{}", last());
            let nowhere = std::ptr::null_mut();
            assert_eq!(cenote_volume_open(gone, none, nowhere), CENOTE_ARGUMENT);
            assert_eq!(
                cenote_volume_open(std::ptr::null(), none, &raw mut volume),
                CENOTE_ARGUMENT
            );
            assert_eq!(last(), "cluster_file is null");
            let bytes = [0; 4];
            assert_eq!(
                cenote_volume_write(volume, bytes.as_ptr(), 4, 0),
                CENOTE_ARGUMENT
            );
            assert_eq!(last(), "volume is null");
            assert_eq!(cenote_volume_flush(volume), CENOTE_ARGUMENT);
            assert_eq!(cenote_volume_size(volume), 0);
            cenote_volume_close(volume);
        }
    }

    #[test]
    fn a_panic_is_a_code_and_a_zero_in_a_text_no_end() {
        assert_eq!(ended(|| panic!("on {}", "purpose")), CENOTE_PANIC);
        assert_eq!(last(), "on purpose");
        assert_eq!(ended(|| Err((CENOTE_OPEN, "a\0b".to_owned()))), CENOTE_OPEN);
        assert_eq!(last(), "ab");
        // What succeeds leaves the text of what did not.
        assert_eq!(ended(|| Ok(())), CENOTE_OK);
        assert_eq!(last(), "ab");
    }

    #[test]
    fn each_code_has_a_text_of_its_own() {
        let mut texts = std::collections::BTreeSet::new();
        for code in CENOTE_OK as i32..=CENOTE_PANIC as i32 {
            // SAFETY: it is a literal.
            texts.insert(unsafe { CStr::from_ptr(cenote_code_text(code)) });
        }
        assert_eq!(texts.len(), CENOTE_PANIC as usize + 1);
    }
}

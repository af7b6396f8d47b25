//! Remote caches.

use std::collections::VecDeque;
use std::ffi::{c_char, c_void};
use std::slice;
use std::sync::{Mutex, PoisonError};

use cenote::cache::{Cache, FellBack, Options};

use crate::arguments::{bytes, duration, optional_text, place, room, text};
use crate::handle::Handle;
use crate::result::{CenoteResult, Failure, call};

/// A connection to a remote cache: bytes at offsets in the memory of several machines. It has a thread
/// of its own, which keeps the cache's lease.
pub struct CenoteCache(Handle<Open>);

struct Open {
    cache: Cache,
    /// Losses that a caller had no room for.
    lost: Mutex<VecDeque<u32>>,
    /// The same of those that came back.
    fallen: Mutex<VecDeque<FellBack>>,
}

/// How a cache is opened. Zeros and null pointers stand for what is usual.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CenoteCacheOptions {
    /// What `cenote cache status` calls this client. Usually the process's number.
    pub name: *const c_char,
    /// How long a request waits for a region that is out of reach. Usually 30 s.
    pub patience_ms: u64,
    /// How long opening it, and a question to the manager, may take. Usually 10 s.
    pub timeout_ms: u64,
}

/// How a cache is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CenoteCacheStatus {
    /// Bytes that it holds.
    pub size_bytes: u64,
    /// Copies of each region.
    pub copies: usize,
    /// Its hosts.
    pub hosts: usize,
    /// Regions that lost their bytes at some time.
    pub regions_lost: usize,
    /// Whether every region has all its copies, on hosts that stay, and can be written.
    pub is_whole: bool,
}

/// A region that came back from a checkpoint after its bytes were lost.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CenoteCacheFellBack {
    /// Its number.
    pub region: u32,
    /// When its bytes were as they are now, in milliseconds since 1970.
    pub taken_ms: u64,
}

/// Opens the cache of this name of a cluster's folder, on the machine of its manager.
///
/// # Safety
/// `folder` and `cache_name` are texts; `options` null or valid; `cache` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_open_in(
    folder: *const c_char,
    cache_name: *const c_char,
    options: *const CenoteCacheOptions,
    cache: *mut *mut CenoteCache,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (folder, name, options, cache) = unsafe {
            let (folder, name) = (text(folder, "folder")?, text(cache_name, "cache_name")?);
            (folder, name, said(options)?, place(cache)?)
        };
        *cache = opened(options.open_in(folder, name)?);
        Ok(())
    })
}

/// Opens a cache by addresses of its manager, such as "tcp:10.0.0.7:7200", and the cluster's key.
///
/// # Safety
/// `addresses` are so many texts and `key_file` is one; `options` null or valid; `cache` a place for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_open_at(
    addresses: *const *const c_char,
    address_count: usize,
    key_file: *const c_char,
    options: *const CenoteCacheOptions,
    cache: *mut *mut CenoteCache,
) -> CenoteResult {
    call(|| {
        if addresses.is_null() || address_count > ADDRESSES_MAX {
            let said = format!("addresses are null, or more than {ADDRESSES_MAX}");
            return Err(Failure::argument(&said));
        }
        // SAFETY: not null, and what this function's caller promises.
        let (addresses, key_file, options, cache) = unsafe {
            let addresses = slice::from_raw_parts(addresses, address_count).iter();
            let addresses = addresses.map(|&address| text(address, "an address"));
            let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
            (
                addresses,
                text(key_file, "key_file")?,
                said(options)?,
                place(cache)?,
            )
        };
        *cache = opened(options.open_at(&addresses, key_file)?);
        Ok(())
    })
}

/// More managers than any cache has.
const ADDRESSES_MAX: usize = 1024;

/// Ends the connection. The cache stays as it is. No call with it may be under way. Null is nothing.
///
/// # Safety
/// Null, or a cache that is open and not used by anybody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_close(cache: *mut CenoteCache) {
    call(|| {
        if !cache.is_null() {
            // SAFETY: not null, and what this function's caller promises.
            unsafe { Box::from_raw(cache) }.0.close();
        }
        Ok(())
    });
}

/// Bytes of the cache, as far as its manager told; 0 for null.
///
/// # Safety
/// Null, or a cache that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_size(cache: *const CenoteCache) -> u64 {
    // SAFETY: what this function's caller promises.
    unsafe { of(cache) }.map_or(0, |open| open.cache.size_bytes())
}

/// Bytes of a region: losses are told by region. 0 for null.
///
/// # Safety
/// Null, or a cache that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_region_size(cache: *const CenoteCache) -> u64 {
    // SAFETY: what this function's caller promises.
    unsafe { of(cache) }.map_or(0, |open| open.cache.region_bytes())
}

/// Fills a buffer from the bytes at an offset. After a failure parts of it may be filled.
///
/// # Safety
/// The cache is open, and nobody else uses the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_read(
    cache: *const CenoteCache,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> CenoteResult {
    // SAFETY: what this function's caller promises.
    call(|| unsafe { Ok(of(cache)?.cache.read_at(room(buffer, len)?, offset)?) })
}

/// Stores bytes at an offset, and returns when every copy has them. After a failure a part may be
/// stored.
///
/// # Safety
/// The cache is open, and the bytes do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_write(
    cache: *const CenoteCache,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> CenoteResult {
    // SAFETY: what this function's caller promises.
    call(|| unsafe { Ok(of(cache)?.cache.write_at(bytes(buffer, len)?, offset)?) })
}

/// Takes the numbers of regions whose bytes were lost since this was asked last, at most `room_count` of
/// them: they hold zeros, or what a checkpoint has, and what was written from then on. `count` tells how
/// many were taken; as many as there was room for may mean that there are more.
///
/// # Safety
/// The cache is open, `regions` has room for so many, and `count` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_take_lost(
    cache: *const CenoteCache,
    regions: *mut u32,
    room_count: usize,
    count: *mut usize,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (open, count) = unsafe { (of(cache)?, place(count)?) };
        let more = || open.cache.take_lost();
        // SAFETY: as above.
        *count = unsafe { hand_over(&open.lost, more, regions, room_count) }?;
        Ok(())
    })
}

/// Takes the regions that came back from a checkpoint since this was asked last, at most `room_count` of
/// them. `count` tells how many were taken; as many as there was room for may mean that there are more.
///
/// # Safety
/// The cache is open, `regions` has room for so many, and `count` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_take_fallen_back(
    cache: *const CenoteCache,
    regions: *mut CenoteCacheFellBack,
    room_count: usize,
    count: *mut usize,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (open, count) = unsafe { (of(cache)?, place(count)?) };
        let more = || open.cache.take_fallen_back();
        // SAFETY: as above.
        *count = unsafe { hand_over(&open.fallen, more, regions, room_count) }?;
        Ok(())
    })
}

impl From<FellBack> for CenoteCacheFellBack {
    fn from(fallen: FellBack) -> Self {
        let FellBack { region, taken_ms } = fallen;
        Self { region, taken_ms }
    }
}

/// Moves news to a caller as far as it has room; how many. The rest is kept for its next call.
///
/// # Safety
/// `to` is null or has room for `room_count`.
unsafe fn hand_over<T, C: From<T>>(
    kept: &Mutex<VecDeque<T>>,
    more: impl FnOnce() -> Vec<T>,
    to: *mut C,
    room_count: usize,
) -> Result<usize, Failure> {
    if to.is_null() && room_count > 0 {
        return Err(Failure::argument("regions are null"));
    }
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.len() < room_count {
        kept.extend(more());
    }
    let count = room_count.min(kept.len());
    for (at, one) in kept.drain(..count).enumerate() {
        // SAFETY: within the room that the caller promises.
        unsafe { to.add(at).write(one.into()) };
    }
    Ok(count)
}

/// Asks the manager how the cache is.
///
/// # Safety
/// The cache is open, and `status` a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_cache_get_status(
    cache: *const CenoteCache,
    status: *mut CenoteCacheStatus,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (open, place) = unsafe { (of(cache)?, place(status)?) };
        let status = open.cache.status()?;
        *place = CenoteCacheStatus {
            size_bytes: status.size_bytes,
            copies: status.copies,
            hosts: status.hosts,
            regions_lost: status.regions_lost,
            is_whole: status.is_whole,
        };
        Ok(())
    })
}

/// # Safety
/// Null or valid, with texts that are null or valid.
unsafe fn said(said: *const CenoteCacheOptions) -> Result<Options, Failure> {
    let mut options = Options::default();
    // SAFETY: the caller's promise.
    let Some(said) = (unsafe { said.as_ref() }) else {
        return Ok(options);
    };
    // SAFETY: the caller's promise.
    if let Some(name) = unsafe { optional_text(said.name) }? {
        options = options.name(name);
    }
    if let Some(patience) = duration(said.patience_ms) {
        options = options.patience(patience);
    }
    if let Some(timeout) = duration(said.timeout_ms) {
        options = options.timeout(timeout);
    }
    Ok(options)
}

fn opened(cache: Cache) -> *mut CenoteCache {
    let (lost, fallen) = <(Mutex<_>, Mutex<_>)>::default();
    let open = Handle::new(Open {
        cache,
        lost,
        fallen,
    });
    Box::into_raw(Box::new(CenoteCache(open)))
}

/// # Safety
/// Null, or a cache that is open during `'a`.
unsafe fn of<'a>(cache: *const CenoteCache) -> Result<&'a Open, Failure> {
    // SAFETY: the caller's promise.
    Handle::get(unsafe { cache.as_ref() }.map(|cache| &cache.0))
}

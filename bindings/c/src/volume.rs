//! Volumes.

use std::ffi::{c_char, c_void};

use cenote::Volume;

use crate::arguments::{bytes, optional_text, place, room, text};
use crate::handle::Handle;
use crate::result::{CenoteResult, Failure, call};

/// Memory of a cluster's hosts: bytes at offsets, zeros until they are written. A write that has
/// returned survives the loss of as many hosts as the scheme bears. What is in it ends with it.
pub struct CenoteVolume(Handle<Volume>);

/// What a volume is to be. Zeros and null pointers stand for what is usual.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CenoteVolumeOptions {
    /// Bytes of the volume, whole pages of 4096. Usually 1 GiB.
    pub size_bytes: u64,
    /// "plain", "mirror:N" or "rs:K+R". Usually the widest that the cluster has failure domains for.
    pub scheme: *const c_char,
    /// What hosts call it in `cenote status`. Usually the process's number.
    pub name: *const c_char,
    /// So many threads read and write at a time, and more wait for one another. Usually 4.
    pub threads: usize,
}

/// How a volume is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CenoteVolumeStatus {
    /// Pages that hold data, in bytes.
    pub stored_bytes: u64,
    /// Memory that hosts lend to it.
    pub lent_bytes: u64,
    /// Hosts of the cluster.
    pub hosts: usize,
    /// Those of them that are connected.
    pub hosts_connected: usize,
    /// Every split of every page is where it should be.
    pub is_whole: bool,
    /// Every page can be read.
    pub is_readable: bool,
    /// As the options take it; ends with a zero byte.
    pub scheme: [c_char; 32],
}

/// Opens a new, empty volume on the hosts of a cluster file.
///
/// # Safety
/// `cluster_file` is a text; `options` null or valid; `volume` a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_open(
    cluster_file: *const c_char,
    options: *const CenoteVolumeOptions,
    volume: *mut *mut CenoteVolume,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (cluster_file, said, volume) = unsafe {
            let cluster_file = text(cluster_file, "cluster_file")?;
            (cluster_file, options.as_ref(), place(volume)?)
        };
        let mut options = Volume::options();
        if let Some(said) = said {
            // SAFETY: what this function's caller promises.
            let (scheme, name) =
                unsafe { (optional_text(said.scheme)?, optional_text(said.name)?) };
            if said.size_bytes > 0 {
                options = options.size_bytes(said.size_bytes);
            }
            if said.threads > 0 {
                options = options.threads(said.threads);
            }
            if let Some(scheme) = scheme {
                options = options.scheme(scheme);
            }
            if let Some(name) = name {
                options = options.name(name);
            }
        }
        let open = CenoteVolume(Handle::new(options.open(cluster_file)?));
        *volume = Box::into_raw(Box::new(open));
        Ok(())
    })
}

/// Ends a volume: hosts have their memory back. No call with it may be under way. Null is nothing.
///
/// # Safety
/// Null, or a volume that is open and not used by anybody else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_close(volume: *mut CenoteVolume) {
    call(|| {
        if !volume.is_null() {
            // SAFETY: not null, and what this function's caller promises.
            unsafe { Box::from_raw(volume) }.0.close();
        }
        Ok(())
    });
}

/// Bytes of the volume; 0 for null.
///
/// # Safety
/// Null, or a volume that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_size(volume: *const CenoteVolume) -> u64 {
    // SAFETY: what this function's caller promises.
    unsafe { of(volume) }.map_or(0, Volume::size_bytes)
}

/// Fills a buffer from the bytes at an offset. After a failure parts of it may be filled.
///
/// # Safety
/// The volume is open, and nobody else uses the buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_read(
    volume: *const CenoteVolume,
    buffer: *mut c_void,
    len: usize,
    offset: u64,
) -> CenoteResult {
    // SAFETY: what this function's caller promises.
    call(|| unsafe { Ok(of(volume)?.read_at(room(buffer, len)?, offset)?) })
}

/// Writes bytes at an offset. After a failure each page is as it was or as written. Whole pages, at
/// multiples of 4096, are fastest.
///
/// # Safety
/// The volume is open, and the bytes do not change meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_write(
    volume: *const CenoteVolume,
    buffer: *const c_void,
    len: usize,
    offset: u64,
) -> CenoteResult {
    // SAFETY: what this function's caller promises.
    call(|| unsafe { Ok(of(volume)?.write_at(bytes(buffer, len)?, offset)?) })
}

/// Has so many bytes at an offset read as zeros, and gives their memory back.
///
/// # Safety
/// The volume is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_discard(
    volume: *const CenoteVolume,
    offset: u64,
    len_bytes: u64,
) -> CenoteResult {
    // SAFETY: what this function's caller promises.
    call(|| unsafe { Ok(of(volume)?.discard(offset, len_bytes)?) })
}

/// How the volume is.
///
/// # Safety
/// The volume is open, and `status` a place for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cenote_volume_get_status(
    volume: *const CenoteVolume,
    status: *mut CenoteVolumeStatus,
) -> CenoteResult {
    call(|| {
        // SAFETY: what this function's caller promises.
        let (volume, place) = unsafe { (of(volume)?, place(status)?) };
        let status = volume.status()?;
        let mut scheme = [0; 32];
        // The last byte stays zero.
        for (to, from) in scheme[..31].iter_mut().zip(status.scheme.bytes()) {
            *to = from.cast_signed();
        }
        *place = CenoteVolumeStatus {
            stored_bytes: status.stored_bytes,
            lent_bytes: status.lent_bytes,
            hosts: status.hosts,
            hosts_connected: status.hosts_connected,
            is_whole: status.is_whole,
            is_readable: status.is_readable,
            scheme,
        };
        Ok(())
    })
}

/// # Safety
/// Null, or a volume that is open during `'a`.
unsafe fn of<'a>(volume: *const CenoteVolume) -> Result<&'a Volume, Failure> {
    // SAFETY: the caller's promise.
    Handle::get(unsafe { volume.as_ref() }.map(|volume| &volume.0))
}

//! Decoding from where the sources lie to where the target lies, where the fabric maps them.
//!
//! No byte is copied before it is decoded: the decoder reads the sources' mappings and writes
//! the target, so a fill costs what reading `k` bytes and writing one costs.
//! Invariant: a piece counts only after every memory that it touched was found alive.
#![allow(unsafe_code, reason = "mapped memory is reached by raw pointers")]

use cenote_codec::Code;
use cenote_fabric::{InPlace, Region, RemoteWindow, Status, order_stores};
use cenote_pool::control::{FillResult, K_MAX};

use super::job::Fill;

/// Bytes of a source between two looks at the flags: 32 of them take some 50 us.
const PIECE_BYTES: u64 = 64 * 1024;

/// Why a piece was not rebuilt.
pub(super) enum Failed {
    /// Reading the source of this index ended so.
    Source(usize, Status),
    /// The fill ends so, whatever the sources are.
    Fill(FillResult),
}

/// Whether every source's window can be read in place.
pub(super) fn reaches(sources: &[(usize, RemoteWindow)]) -> bool {
    sources
        .iter()
        .all(|(_, window)| window.in_place(0, 0).is_some())
}

/// Rebuilds a sound fill from `windows`, each beside its host, in the order of its sources.
///
/// Whether the hosts of the windows live is the caller's to ask, afterwards.
pub(super) fn rebuild(
    code: &Code,
    fill: &Fill,
    windows: &[(usize, RemoteWindow)],
    target: &Region,
) -> Result<(), Failed> {
    let mut done = 0;
    while done < fill.len_bytes {
        let len = PIECE_BYTES.min(fill.len_bytes - done);
        piece(code, fill, windows, target, fill.offset + done, len)?;
        done += len;
    }
    // Before anybody is told that it is there.
    order_stores();
    Ok(())
}

fn piece(
    code: &Code,
    fill: &Fill,
    windows: &[(usize, RemoteWindow)],
    target: &Region,
    offset: u64,
    len_bytes: u64,
) -> Result<(), Failed> {
    let len = usize::try_from(len_bytes).expect("a piece is small");
    let mut sources = [None; K_MAX as usize];
    let mut splits = [(0, std::ptr::null()); K_MAX as usize];
    for (index, (_, window)) in windows.iter().enumerate() {
        let source = window
            .in_place(offset, len)
            .unwrap_or(Err(Status::Protocol))
            .map_err(|status| Failed::Source(index, status))?;
        let split = usize::from(fill.sources[index].split);
        splits[index] = (split, source.pointer().cast_const());
        sources[index] = Some(source);
    }
    let out = target.in_place(offset, len);
    if windows.len() == 1 {
        // Every split of a mirror is the data itself; its code rows are not all ones.
        // Around the caches: what a host's own programs and its clients have there stays.
        let source = sources[0].expect("of the one window");
        // SAFETY: `out` is of a region, which the host maps apart from any other memory.
        unsafe { out.copy_from(&source) };
    } else {
        let splits = &splits[..windows.len()];
        // SAFETY: as above; nobody has references to window memory.
        let rebuilt =
            unsafe { code.rebuild_raw(usize::from(fill.split), splits, out.pointer(), len) };
        if let Err(error) = rebuilt {
            tracing::error!(%error, "decode a fill that was found sound");
            return Err(Failed::Fill(FillResult::Bad));
        }
    }
    out.alive()
        .map_err(|_| Failed::Fill(FillResult::TargetStale))?;
    let lost = |source: &Option<InPlace<'_>>| source.is_some_and(|s| s.alive().is_err());
    match sources.iter().position(lost) {
        Some(index) => Err(Failed::Source(index, Status::Revoked)),
        None => Ok(()),
    }
}

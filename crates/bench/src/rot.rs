//! Memory of a host process that goes wrong: bytes of its slabs are changed behind its back.
//!
//! A slab is a memfd, and whoever may open a process's descriptors can write to it. Zeros are left
//! as they are: they are mostly memory that nobody has written.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context as _;

use crate::beside::in_background;
use crate::cluster::LocalCluster;

/// A host whose memory rots, again and again.
pub(crate) struct Rot {
    pid: u32,
    pass: u64,
}

impl Rot {
    /// A host by its place in the cluster file.
    pub(crate) fn host(cluster: &LocalCluster, index: usize) -> anyhow::Result<Self> {
        let pid = cluster.pid(index).context("the host has no process")?;
        Ok(Self { pid, pass: 0 })
    }

    /// Has every split rot once, and then some of them every [`PAUSE`] for as long as `wait` takes.
    pub(crate) fn beside<T>(
        mut self,
        wait: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        for _ in 0..PASSES {
            self.pass()?;
        }
        let rot = |over: &AtomicBool| {
            while !over.load(Ordering::Relaxed) {
                self.pass()?;
                std::thread::sleep(PAUSE);
            }
            Ok(())
        };
        in_background(rot, wait)
    }

    /// Has one split in so many of each slab rot, others in each pass; how many did.
    fn pass(&mut self) -> anyhow::Result<u64> {
        let mut rotten = 0;
        for slab in slabs(self.pid)? {
            rotten += rot(&slab, self.pass)?;
        }
        self.pass += 1;
        Ok(rotten)
    }
}

/// The slabs that a host's process has now.
fn slabs(pid: u32) -> anyhow::Result<Vec<File>> {
    let dir = format!("/proc/{pid}/fd");
    let mut slabs = Vec::new();
    for entry in fs::read_dir(&dir).with_context(|| format!("read {dir}"))? {
        let path = entry?.path();
        // One that is closed meanwhile is no slab any more.
        let is_slab =
            fs::read_link(&path).is_ok_and(|target| target.to_string_lossy().contains(SLAB));
        let file = OpenOptions::new().read(true).write(true).open(&path);
        slabs.extend(file.ok().filter(|_| is_slab));
    }
    Ok(slabs)
}

/// Overwrites the beginning of one split in so many; how many that was.
fn rot(slab: &File, pass: u64) -> io::Result<u64> {
    let len = slab.metadata()?.len();
    let first = pass % EVERY * PAGE + pass / EVERY % (PAGE / SPLIT) * SPLIT;
    let (mut piece, mut rotten) = ([0; PIECE], 0);
    for offset in (first..len).step_by((EVERY * PAGE) as usize) {
        match slab.read_exact_at(&mut piece, offset) {
            Ok(()) if piece.iter().all(|&byte| byte == 0) => {}
            Ok(()) => {
                slab.write_all_at(&ROTTEN, offset)?;
                rotten += 1;
            }
            // The host has given the slab's memory back.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(rotten)
}

/// As `cenote host` names them.
const SLAB: &str = "memfd:cenote-slab-";
/// A whole page, which is what copies are made of, has its beginning rot, or the beginning of an eighth.
const PAGE: u64 = 4096;
/// A split of k = 8.
const SPLIT: u64 = 512;
/// Pages of a slab of which one rots in a pass.
const EVERY: u64 = 2;
/// Until every split of k = 8 has rotted.
const PASSES: u64 = EVERY * (PAGE / SPLIT);
/// Between two passes; arbitrary. A pass takes some ms of one core for 50 MiB.
const PAUSE: Duration = Duration::from_millis(50);
const PIECE: usize = 64;
/// The same bytes wherever and however often a split rots: two changes never undo each other.
const ROTTEN: [u8; PIECE] = {
    let mut bytes = [0; PIECE];
    let mut at = 0;
    while at < PIECE {
        bytes[at] = (at * 7 + 13) as u8;
        at += 1;
    }
    bytes
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_that_holds_anything_rots_once_in_so_many_passes() {
        let slab = tempfile::tempfile().unwrap();
        let len = 8 * PAGE;
        slab.write_all_at(&vec![1; len as usize], 0).unwrap();
        // A page that holds nothing.
        slab.write_all_at(&[0; PAGE as usize], 3 * PAGE).unwrap();
        let rotten: u64 = (0..PASSES).map(|pass| rot(&slab, pass).unwrap()).sum();
        assert_eq!(rotten, 7 * PAGE / SPLIT);
        for offset in (0..len).step_by(SPLIT as usize) {
            let mut piece = [0; PIECE];
            slab.read_exact_at(&mut piece, offset).unwrap();
            let is_empty = offset / PAGE == 3;
            assert_eq!(piece == ROTTEN, !is_empty, "at {offset}");
        }
        slab.set_len(0).unwrap();
        assert_eq!(rot(&slab, 0).unwrap(), 0, "its memory is gone");
    }
}

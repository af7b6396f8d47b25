//! Reading `k` ranges piece by piece and decoding each piece while it is hot.
//!
//! Where the fabric maps every source (`shm`), `direct` decodes in place and nothing lands.
//! Elsewhere a piece of every source lands in one slot; a slot that is whole is decoded and
//! written, and is then free for the next piece. On `tcp` all slots are in flight, several
//! reads per system call.

use cenote_codec::Code;
use cenote_fabric::{CompletionQueue, Region, RemoteWindow, Status, Time, Token};
use cenote_pool::control::{FillResult, K_MAX, R_MAX};

use super::comparison;
use super::direct::{self, Failed};
use super::job::Fill;
use super::landings::Landings;
use super::sources::Sources;

/// Bytes of one source that land in one slot. Eight of them and the result fit a second-level
/// cache of 256 KiB.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces in flight: what a `tcp` connection carries in one round trip, several times.
/// With 32 sources on one host they are half of an endpoint's queue.
const SLOTS: usize = 16;

/// Most sources of a fill.
const SOURCES_MAX: usize = (K_MAX + R_MAX) as usize;

/// Buffers and bookkeeping that one fill after another uses.
pub(super) struct Gather {
    /// `SLOTS` x as many pieces as there are sources; grows to the most seen.
    landings: Landings,
    /// One piece of the rebuilt split.
    result: Vec<u8>,
    queue: CompletionQueue,
    /// Tells completions of this fill from late ones of a former.
    serial: u64,
    /// The code of the last fill: its decode matrices are worth keeping.
    code: Option<Code>,
}

/// One fill whose sources are attached.
pub(super) struct Run<'a> {
    pub(super) fill: &'a Fill,
    pub(super) target: &'a Region,
    /// Per source: the index of its host, its window.
    pub(super) sources: &'a [(usize, RemoteWindow)],
    pub(super) progress: &'a mut Progress,
}

/// How far a fill has come.
#[derive(Default)]
pub(super) struct Progress {
    /// Per slot: the piece that is landing there.
    slots: [Option<Piece>; SLOTS],
    /// Bytes posted so far.
    posted: u64,
}

#[derive(Clone, Copy)]
struct Piece {
    /// Relative to the fill's range.
    start: u64,
    len: usize,
    /// Bit per source that has not landed.
    missing: u64,
}

impl Gather {
    pub(super) fn new() -> Self {
        Self {
            landings: Landings::new(0, PIECE_BYTES),
            result: vec![0; PIECE_BYTES],
            queue: CompletionQueue::default(),
            serial: 0,
            code: None,
        }
    }

    /// Makes ready for a fill, which is sound; false if there is no such code.
    pub(super) fn begin(&mut self, fill: &Fill) -> bool {
        self.serial += 1;
        let (k, r) = (usize::from(fill.k), usize::from(fill.r));
        if self
            .code
            .as_ref()
            .is_none_or(|code| (code.k(), code.r()) != (k, r))
        {
            self.code = Code::new(k, r).ok();
        }
        self.code.is_some()
    }

    /// Moves the fill on as far as it goes without waiting; its result at its end.
    pub(super) fn step(
        &mut self,
        run: &mut Run<'_>,
        hosts: &mut Sources,
        now: Time,
    ) -> Option<FillResult> {
        // What is compared must not change before it is decoded: it is copied first.
        if !run.compares() && direct::reaches(run.sources) {
            return Some(self.fill_directly(run, hosts, now));
        }
        if let Err(end) = run.equip(hosts, now) {
            return Some(end);
        }
        let slots = SLOTS * run.sources.len();
        if self.landings.count() < slots {
            self.landings = Landings::new(slots, PIECE_BYTES);
        }
        let end = self.advance(run, hosts, now).err()?;
        if end != FillResult::Done {
            run.abandon(self.serial, hosts);
        }
        Some(end)
    }

    /// Carries out a fill whose sources are all mapped.
    fn fill_directly(&self, run: &Run<'_>, hosts: &mut Sources, now: Time) -> FillResult {
        let code = self.code.as_ref().expect("set before the fill runs");
        match direct::rebuild(code, run.fill, run.sources, run.target) {
            Err(Failed::Fill(end)) => end,
            Err(Failed::Source(index, status)) => {
                tracing::warn!(?status, "read a source of a fill");
                let (host, window) = &run.sources[index];
                hosts.host(*host).forget(window);
                run.source_failed(index)
            }
            Ok(()) => run.check_alive(hosts, now),
        }
    }

    /// Takes what arrived and posts what there is room for. `Err`: the fill has ended so.
    fn advance(
        &mut self,
        run: &mut Run<'_>,
        hosts: &mut Sources,
        now: Time,
    ) -> Result<(), FillResult> {
        for (host, _) in run.sources {
            hosts.host(*host).endpoint().poll(now, &mut self.queue);
        }
        self.reap(run, hosts)?;
        while run.progress.posted < run.fill.len_bytes
            && let Some(slot) = run.progress.slots.iter().position(Option::is_none)
        {
            self.post(run, slot, hosts)?;
            self.reap(run, hosts)?;
        }
        if run.progress.slots.iter().all(Option::is_none) {
            return Err(run.check_alive(hosts, now));
        }
        for (host, _) in run.sources {
            hosts.host(*host).endpoint().flush(&mut self.queue);
        }
        Ok(())
    }

    /// Posts the next piece of every source into a free slot.
    #[allow(unsafe_code, reason = "verbs take raw landings")]
    fn post(
        &mut self,
        run: &mut Run<'_>,
        slot: usize,
        hosts: &mut Sources,
    ) -> Result<(), FillResult> {
        let left = usize::try_from(run.fill.len_bytes - run.progress.posted).unwrap_or(usize::MAX);
        let len = left.min(PIECE_BYTES);
        let count = run.sources.len();
        run.progress.slots[slot] = Some(Piece {
            start: run.progress.posted,
            len,
            missing: (1_u64 << count) - 1,
        });
        for (index, (host, window)) in run.sources.iter().enumerate() {
            let landing = self.landings.pointer(slot * count + index);
            let (offset, token) = (
                run.fill.offset + run.progress.posted,
                token(self.serial, slot, index),
            );
            let endpoint = hosts.host(*host).endpoint();
            // SAFETY: the landing is a piece of `landings`, at least `len` bytes, which lives
            // in `self` and is not touched before its completion is popped: `reap` decodes a
            // slot when none is missing, and a fill that ends early revokes its landings.
            // `landings` is replaced only between fills, when none is posted.
            let posted =
                unsafe { endpoint.post_read(window, offset, landing, len, token, &mut self.queue) };
            if posted.is_err() {
                // `SLOTS` x 39 is two thirds of a queue, and a fill that ended early left it dead or empty.
                return Err(run.source_failed(index));
            }
        }
        run.progress.posted += len as u64;
        Ok(())
    }

    /// Takes completions and decodes the slots that they make whole.
    fn reap(&mut self, run: &mut Run<'_>, hosts: &mut Sources) -> Result<(), FillResult> {
        while let Some(completion) = self.queue.pop() {
            let Some((slot, index)) = position(self.serial, completion.token) else {
                continue;
            };
            if completion.status != Status::Ok {
                let (host, window) = &run.sources[index];
                tracing::warn!(status = ?completion.status, "read a source of a fill");
                hosts.host(*host).forget(window);
                return Err(run.source_failed(index));
            }
            let piece = run.progress.slots[slot]
                .as_mut()
                .expect("a slot is taken until its last completion");
            piece.missing &= !(1 << index);
            if piece.missing == 0 {
                let piece = *piece;
                run.progress.slots[slot] = None;
                self.decode(run, slot, piece)?;
            }
        }
        Ok(())
    }

    /// Rebuilds one piece and writes it to the target.
    #[allow(unsafe_code, reason = "landings are raw memory")]
    fn decode(&mut self, run: &Run<'_>, slot: usize, piece: Piece) -> Result<(), FillResult> {
        let (count, k) = (run.sources.len(), usize::from(run.fill.k));
        let offset = run.fill.offset + piece.start;
        // SAFETY: every read into this slot has completed and nothing is posted there until
        // `post` takes the slot again, after this returned.
        let landed = |index| unsafe { self.landings.piece(slot * count + index, piece.len) };
        let written = if k == 1 && count == 1 {
            // Every split of a mirror is the data itself; its code rows are not all ones.
            run.target.write(offset, landed(0))
        } else {
            let mut splits: [(usize, &[u8]); SOURCES_MAX] = [(0, &[]); SOURCES_MAX];
            for (index, (split, source)) in splits.iter_mut().zip(&run.fill.sources).enumerate() {
                *split = (usize::from(source.split), landed(index));
            }
            let out = &mut self.result[..piece.len];
            let code = self.code.as_ref().expect("set before the fill runs");
            let (target, splits) = (usize::from(run.fill.split), &splits[..count]);
            if count > k {
                comparison::rebuild(code, target, splits, out)?;
            } else if let Err(error) = code.rebuild(target, splits, out) {
                tracing::error!(%error, "decode a fill that was found sound");
                return Err(FillResult::Bad);
            }
            run.target.write(offset, out)
        };
        written.map_err(|_| FillResult::TargetStale)
    }
}

impl Run<'_> {
    /// Whether its sources are more than are needed.
    fn compares(&self) -> bool {
        self.sources.len() > usize::from(self.fill.k)
    }

    /// Opens the connections that its verbs go over.
    fn equip(&self, hosts: &mut Sources, now: Time) -> Result<(), FillResult> {
        let all: Vec<usize> = self.sources.iter().map(|(host, _)| *host).collect();
        hosts.equip(&all, now).map_err(|failed| {
            let index = all.iter().position(|&host| host == failed);
            self.source_failed(index.expect("one of them"))
        })
    }

    fn source_failed(&self, index: usize) -> FillResult {
        FillResult::SourceFailed {
            split: self.fill.sources[index].split,
        }
    }

    /// What a host that died meanwhile gave counts as lost, also where it still reads.
    fn check_alive(&self, hosts: &mut Sources, now: Time) -> FillResult {
        let dead = self
            .sources
            .iter()
            .position(|(host, _)| !hosts.host(*host).is_live(now));
        dead.map_or(FillResult::Done, |index| self.source_failed(index))
    }

    /// Detaches every landing that is still out, so that the next fill may use it.
    fn abandon(&self, serial: u64, hosts: &mut Sources) {
        for (slot, piece) in self.progress.slots.iter().enumerate() {
            let missing = piece.map_or(0, |piece| piece.missing);
            for (index, (host, _)) in self.sources.iter().enumerate() {
                if missing >> index & 1 == 1 {
                    hosts
                        .host(*host)
                        .endpoint()
                        .revoke_landing(token(serial, slot, index));
                }
            }
        }
    }
}

fn token(serial: u64, slot: usize, index: usize) -> Token {
    serial << 16 | (slot as u64) << 8 | index as u64
}

/// Slot and source of a completion of this fill.
fn position(serial: u64, token: Token) -> Option<(usize, usize)> {
    (token >> 16 == serial).then_some(((token >> 8 & 0xff) as usize, (token & 0xff) as usize))
}

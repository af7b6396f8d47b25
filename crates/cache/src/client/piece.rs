//! The part of a request that lies in one slab: started, ended, and started again.

use bytes::{Bytes, BytesMut};

use super::{
    Access, Client, Completion, Error, Failure, Full, Operation, Planted, RemoteWindow, Time,
    is_planted,
};

/// What a piece does.
#[derive(Debug)]
pub enum PieceKind {
    /// The buffer; elsewhere while a path has it.
    Read(BytesMut),
    /// The bytes.
    Write(Bytes),
}

/// Where a piece is.
#[derive(Debug)]
pub enum Progress {
    /// It waits for its turn.
    Waiting,
    /// Its verbs are under way.
    UnderWay {
        /// Of the region's entry when it was started.
        generation: u64,
        /// The client's lease when it was started.
        lease: u64,
        /// Of the region's bytes until then: what was written before another one went with it.
        losses: u32,
        /// Verbs that have not ended.
        left: usize,
        /// One of them failed: it is started again when all have ended.
        failed: bool,
        /// A request that no retry helps.
        refused: Option<crate::path::Refusal>,
    },
}

/// A part of a request.
#[derive(Debug)]
pub struct Piece {
    pub request: u64,
    pub part: usize,
    pub region: usize,
    slab: usize,
    offset: u64,
    len_bytes: usize,
    kind: PieceKind,
    pub progress: Progress,
    submitted_at: Time,
}

impl Piece {
    pub fn new(
        request: u64,
        part: usize,
        slab: usize,
        offset: u64,
        kind: PieceKind,
        submitted_at: Time,
    ) -> Self {
        let len_bytes = match &kind {
            PieceKind::Read(buffer) => buffer.len(),
            PieceKind::Write(bytes) => bytes.len(),
        };
        Self {
            request,
            part,
            region: 0,
            slab,
            offset,
            len_bytes,
            kind,
            progress: Progress::Waiting,
            submitted_at,
        }
    }

    pub fn of(mut self, region: usize) -> Self {
        self.region = region;
        self
    }

    pub fn is_write(&self) -> bool {
        matches!(self.kind, PieceKind::Write(_))
    }

    /// Whether the two have to keep their order.
    fn conflicts(&self, other: &Self) -> bool {
        let end = |piece: &Self| piece.offset + piece.len_bytes as u64;
        (self.is_write() || other.is_write())
            && self.slab == other.slab
            && self.offset < end(other)
            && other.offset < end(self)
    }
}

impl Client {
    /// Starts what waits for a region, oldest first, as far as it may.
    pub(super) fn start_waiting(&mut self, now: Time, region: usize) {
        if self.regions[region].waiting.is_empty() || now >= self.lease_end() {
            return;
        }
        let mut waiting: Vec<u64> = self.regions[region].waiting.iter().copied().collect();
        if is_planted(Planted::QueueReordered) {
            waiting.reverse();
        }
        let mut passed: Vec<u64> = Vec::new();
        for number in waiting {
            if self.has_to_wait(region, number, &passed) || !self.start(number) {
                passed.push(number);
            }
        }
    }

    pub(super) fn lease_end(&self) -> Time {
        if is_planted(Planted::LeaseIgnored) {
            return Time(u64::MAX);
        }
        self.lease_until
    }

    fn has_to_wait(&self, region: usize, number: u64, passed: &[u64]) -> bool {
        if is_planted(Planted::QueueReordered) {
            return false;
        }
        let piece = &self.pieces[&number];
        let before = self.regions[region].under_way.iter().chain(passed);
        before
            .filter(|other| **other != number)
            .any(|other| self.pieces[other].conflicts(piece))
    }

    /// Posts a piece's verbs; false: something is missing, and nothing was posted.
    fn start(&mut self, number: u64) -> bool {
        let piece = &self.pieces[&number];
        let (region, slab) = (piece.region, piece.slab);
        let is_write = piece.is_write();
        let view = &self.regions[region];
        let Some(entry) = view.entry.as_ref() else {
            return false;
        };
        if is_write && entry.access == Access::Frozen && is_planted(Planted::QueueDropped) {
            self.regions[region].waiting.remove(&number);
            self.end_piece(number, Ok(()));
            return true;
        }
        let is_allowed = match entry.access {
            Access::Open => true,
            Access::Frozen => !is_write || is_planted(Planted::WriteDuringMove),
            Access::Absent | Access::Cut => false,
        };
        if !is_allowed || view.blocked_at == entry.generation {
            return false;
        }
        let generation = entry.generation;
        let copies = match (is_write, view.stale_copies()) {
            (true, _) => &entry.copies[..],
            (false, Some(stale)) if is_planted(Planted::StaleServed) => &stale[..1],
            (false, _) => &entry.copies[..1],
        };
        let mut targets: Vec<(usize, RemoteWindow)> = Vec::with_capacity(copies.len());
        for copy in copies {
            let Some(window) = self.attached(copy.host, copy.windows[slab]) else {
                return false;
            };
            targets.push((copy.host, window));
        }
        self.post(number, generation, targets)
    }

    fn post(&mut self, number: u64, generation: u64, targets: Vec<(usize, RemoteWindow)>) -> bool {
        let piece = self.pieces.get_mut(&number).expect("it waits");
        let (region, offset) = (piece.region, piece.offset);
        let losses = self.regions[region].losses();
        let (mut posted, mut failed) = (0, false);
        for (host, window) in targets {
            let operation = match &mut piece.kind {
                PieceKind::Read(buffer) => Operation::Read(std::mem::take(buffer)),
                PieceKind::Write(bytes) => Operation::Write(bytes.clone()),
            };
            let path = self.links[host]
                .path
                .as_mut()
                .expect("a window is attached");
            match path.submit(&window, offset, operation, number) {
                Ok(()) => posted += 1,
                Err(Full(Operation::Read(buffer))) => {
                    piece.kind = PieceKind::Read(buffer);
                    failed = true;
                }
                Err(Full(Operation::Write(_))) => failed = true,
            }
        }
        if posted == 0 {
            return false;
        }
        // A write that only some copies had room for is started again when these have it.
        piece.progress = Progress::UnderWay {
            generation,
            lease: self.leases,
            losses,
            left: posted,
            failed,
            refused: None,
        };
        let view = &mut self.regions[region];
        view.waiting.remove(&number);
        view.under_way.insert(number);
        true
    }

    pub(super) fn take_completion(&mut self, now: Time, host: usize, completion: Completion) {
        let number = completion.token;
        let Some(piece) = self.pieces.get_mut(&number) else {
            return;
        };
        if let Operation::Read(buffer) = completion.operation {
            piece.kind = PieceKind::Read(buffer);
        }
        let region = piece.region;
        let Progress::UnderWay {
            generation,
            lease,
            losses,
            left,
            failed,
            refused,
        } = &mut piece.progress
        else {
            return;
        };
        *left -= 1;
        match completion.result {
            Ok(()) => {}
            Err(_) if is_planted(Planted::ErrorAsAck) => {}
            Err(Failure::Refused(refusal)) => *refused = Some(refusal),
            Err(failure) => {
                *failed = true;
                if failure == Failure::Stale {
                    self.regions[region].blocked_at = *generation;
                    self.troubled.insert(host);
                }
            }
        }
        let is_enough = *left == 0 || is_planted(Planted::AckFirstCopy) && !*failed;
        if !is_enough {
            return;
        }
        let (generation, failed, refused) = (*generation, *failed, *refused);
        let is_lapsed = now >= self.lease_until || *lease != self.leases;
        let is_lapsed = is_lapsed && !is_planted(Planted::LeaseIgnored);
        let is_gone = *losses != self.regions[region].losses();
        self.regions[region].under_way.remove(&number);
        let is_outdated = !self.pieces[&number].is_write()
            && self.regions[region].has_left(generation, host)
            && !is_planted(Planted::StaleServed);
        if let Some(refusal) = refused {
            let region = u32::try_from(region).expect("at most 2^16");
            self.end_piece(number, Err(Error::Refused { region, refusal }));
        } else if failed || is_outdated || is_lapsed || is_gone {
            let piece = self.pieces.get_mut(&number).expect("it was there");
            piece.progress = Progress::Waiting;
            self.regions[region].waiting.insert(number);
        } else {
            self.end_piece(number, Ok(()));
        }
    }

    fn end_piece(&mut self, number: u64, result: Result<(), Error>) {
        let piece = self.pieces.remove(&number).expect("it ends once");
        let request = self
            .requests
            .get_mut(&piece.request)
            .expect("it has pieces");
        match piece.kind {
            PieceKind::Read(buffer) => request.parts[piece.part] = Some(buffer),
            PieceKind::Write(_) => {
                let losses = self.regions[piece.region].losses();
                request.written.push((piece.region, losses));
            }
        }
        if request.result.is_ok() {
            request.result = result;
        }
        request.pieces_left -= 1;
        if request.pieces_left == 0 {
            self.end_request(piece.request);
        }
    }

    /// Ends pieces that have waited for longer than the client's patience, or for what is cut off.
    pub(super) fn end_overdue(&mut self, now: Time) {
        for region in 0..self.regions.len() {
            let view = &self.regions[region];
            let is_cut = !view.is_there();
            let is_over = |number: &u64| {
                is_cut || now.since(self.pieces[number].submitted_at) >= self.patience
            };
            let over: Vec<u64> = view.waiting.iter().copied().filter(is_over).collect();
            for number in over {
                self.regions[region].waiting.remove(&number);
                let region = u32::try_from(region).expect("at most 2^16");
                let error = if is_cut {
                    Error::OutOfRange { region }
                } else {
                    Error::Unavailable { region }
                };
                self.end_piece(number, Err(error));
            }
        }
    }
}

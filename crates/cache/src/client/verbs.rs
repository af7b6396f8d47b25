//! How pieces of requests are started, go from copy to copy, end, and are started again.

use cenote_fabric::{RemoteWindow, Time};

use super::piece::{PieceKind, Progress, Targets, Trace};
use super::region::{WindowName, name_of};
use super::{Client, Error};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::owner::{Access, HostIndex};
use crate::path::{Completion, Failure, Full, Operation};

/// What came of the start of a piece that is ready.
enum Started {
    Yes,
    /// Its window is not attached, or there is no path.
    Lacks,
    /// The path has no room.
    Full,
}

impl Client {
    /// Starts what is ready in a region, oldest first, as far as it may. True: it is to be tried
    /// again at the next poll, whatever happens until then.
    pub(super) fn start_waiting(&mut self, now: Time, region: usize) -> bool {
        if !self.regions[region].queue.has_ready() {
            return false;
        }
        if now >= self.lease_end() {
            return true;
        }
        let mut lets = self.regions[region].lets();
        let (mut last, mut is_full) = (None, false);
        while let Some(number) = self.regions[region].queue.next_ready(last, lets) {
            last = Some(number);
            let span = self.pieces[&number].span();
            match self.start(number) {
                Started::Yes => {}
                Started::Lacks => self.regions[region].queue.lack(number, span),
                Started::Full => {
                    // All of its kind go the same way.
                    is_full = true;
                    match span.is_write {
                        true => lets.writes = false,
                        false => lets.reads = false,
                    }
                }
            }
        }
        is_full
    }

    pub(super) fn lease_end(&self) -> Time {
        if is_injected(InjectedFault::LeaseIgnored) {
            return Time(u64::MAX);
        }
        self.lease_until
    }

    /// Posts the verbs of a piece that may be started, if nothing is missing.
    fn start(&mut self, number: u64) -> Started {
        let piece = &self.pieces[&number];
        let (region, slab) = (piece.region, piece.slab);
        let is_write = piece.is_write();
        let view = &self.regions[region];
        let Some(entry) = view.entry.as_ref() else {
            return Started::Lacks;
        };
        if is_write && entry.access == Access::Frozen && is_injected(InjectedFault::QueueDropped) {
            self.end_piece(number, Ok(()));
            return Started::Yes;
        }
        let generation = entry.generation;
        let copies = match (is_write, view.stale_copies()) {
            (true, _) => &entry.copies[..],
            (false, Some(stale)) if is_injected(InjectedFault::StaleServed) => &stale[..1],
            (false, _) => entry.copies.get(..1).unwrap_or_default(),
        };
        let mut targets = Targets::new();
        for copy in copies {
            let Some(window) = self.attached(copy.host, copy.windows[slab]) else {
                return Started::Lacks;
            };
            targets.push((copy.host, window));
        }
        match self.post(number, generation, targets) {
            true => Started::Yes,
            false => Started::Full,
        }
    }

    /// Posts the last of `rest`, and keeps the others for later.
    fn post(&mut self, number: u64, generation: u64, mut rest: Targets) -> bool {
        let Some((host, window)) = rest.pop() else {
            return false;
        };
        if !self.submit(number, host, &window) {
            return false;
        }
        let window = name_of(&window);
        if is_injected(InjectedFault::AckFirstCopy) {
            // The others get it beside this one, and nobody waits for them.
            for (host, window) in std::mem::take(&mut rest) {
                self.submit(number, host, &window);
            }
        }
        let piece = self.pieces.get_mut(&number).expect("it waits");
        let (region, span) = (piece.region, piece.span());
        piece.begun_at = generation;
        piece.progress = Progress::UnderWay {
            generation,
            lease: self.leases,
            window,
            losses: self.regions[region].losses(),
            rest,
        };
        self.waiting_since.remove(&(piece.submitted_at, number));
        self.regions[region].queue.start(number, span);
        true
    }

    /// False: the path is gone, or has no room.
    fn submit(&mut self, number: u64, host: usize, window: &RemoteWindow) -> bool {
        let piece = self.pieces.get_mut(&number).expect("it is to be done");
        let Some(path) = self.links[host].path.as_mut() else {
            return false;
        };
        let operation = match &mut piece.kind {
            PieceKind::Read(buffer) => Operation::Read(std::mem::take(buffer)),
            PieceKind::Write(bytes) => Operation::Write(bytes.clone()),
        };
        match path.submit(window, piece.offset, operation, number) {
            Ok(()) => true,
            Err(Full(Operation::Read(buffer))) => {
                piece.kind = PieceKind::Read(buffer);
                false
            }
            Err(Full(Operation::Write(_))) => false,
        }
    }

    pub(super) fn take_completion(&mut self, now: Time, host: usize, completion: Completion) {
        let number = completion.token;
        let Some(piece) = self.pieces.get_mut(&number) else {
            return;
        };
        if let Operation::Read(buffer) = completion.operation {
            piece.kind = PieceKind::Read(buffer);
        }
        let (region, is_write) = (piece.region, piece.is_write());
        let Progress::UnderWay {
            generation, window, ..
        } = piece.progress
        else {
            return;
        };
        match completion.result {
            Ok(()) => self.go_on(now, number, host),
            Err(_) if is_injected(InjectedFault::ErrorAsAck) => self.go_on(now, number, host),
            Err(Failure::Refused(refusal)) => {
                let region = u32::try_from(region).expect("at most 2^16");
                self.end_piece(number, Err(Error::Refused { region, refusal }));
            }
            Err(failure) => {
                if is_write && failure.may_have_happened() {
                    piece.trace = Trace::Somewhere;
                }
                if failure == Failure::Stale {
                    self.regions[region].blocked_at = generation;
                    self.troubled.insert(host);
                } else if is_write && failure.may_happen_late() {
                    self.doubt_late(region, generation, (host, window));
                }
                self.do_again(number);
            }
        }
    }

    /// A verb of a piece succeeded: the next copy's turn, or the end.
    fn go_on(&mut self, now: Time, number: u64, host: usize) {
        let piece = self.pieces.get_mut(&number).expect("it was found");
        let (region, is_write) = (piece.region, piece.is_write());
        let Progress::UnderWay {
            generation,
            lease,
            losses,
            rest,
            window,
            ..
        } = &mut piece.progress
        else {
            return;
        };
        let (generation, window, is_last) = (*generation, *window, rest.is_empty());
        let is_lapsed = now >= self.lease_until || *lease != self.leases;
        let is_lapsed = is_lapsed && !is_injected(InjectedFault::LeaseIgnored);
        let is_gone = *losses != self.regions[region].losses();
        if is_write {
            piece.trace = Trace::Somewhere;
        }
        let is_outdated = !is_write
            && self.regions[region].has_left(generation, host, window)
            && !is_injected(InjectedFault::StaleServed);
        if is_outdated || is_lapsed || is_gone {
            return self.do_again(number);
        }
        if is_last {
            return self.end_piece(number, Ok(()));
        }
        self.post_rest(number);
    }

    /// Posts a write to the next of its copies, now or when there is room.
    fn post_rest(&mut self, number: u64) {
        let Progress::UnderWay { rest, .. } =
            &mut self.pieces.get_mut(&number).expect("it is there").progress
        else {
            return;
        };
        let Some((host, window)) = rest.last().cloned() else {
            return;
        };
        if self.links[host].path.is_none() {
            return self.do_again(number);
        }
        if !self.submit(number, host, &window) {
            return self.half_done.push_back(number);
        }
        if let Some(piece) = self.pieces.get_mut(&number)
            && let Progress::UnderWay { rest, window, .. } = &mut piece.progress
            && let Some((_, next)) = rest.pop()
        {
            *window = name_of(&next);
        }
    }

    /// Writes that one copy has and the next had no room for.
    pub(super) fn post_half_done(&mut self, now: Time) {
        for number in std::mem::take(&mut self.half_done) {
            if now >= self.lease_end() {
                self.do_again(number);
            } else {
                self.post_rest(number);
            }
        }
    }

    fn do_again(&mut self, number: u64) {
        let piece = self.pieces.get_mut(&number).expect("it was there");
        piece.progress = Progress::Waiting;
        let (region, span) = (piece.region, piece.span());
        self.waiting_since.insert((piece.submitted_at, number));
        self.regions[region].queue.restart(number, span);
        self.touched.insert(region);
    }

    /// The connection of a write broke, which was begun under a generation: it may land late.
    fn doubt_late(&mut self, region: usize, begun_at: u64, window: (HostIndex, WindowName)) {
        let view = &mut self.regions[region];
        view.note_late(window.0, window.1);
        // Under what is told now, if writes go to the same window: no fence came between.
        let told = view.entry.as_ref().map(|entry| entry.generation);
        let told = told.filter(|_| view.is_late() && view.is_readable());
        view.doubted_at = told.unwrap_or(begun_at);
        let doubted_at = view.doubted_at;
        self.doubt(region, doubted_at);
    }

    pub(super) fn doubt(&mut self, region: usize, generation: u64) {
        let region = u32::try_from(region).expect("at most 2^16");
        self.doubts.insert((region, generation));
    }

    fn end_piece(&mut self, number: u64, result: Result<(), Error>) {
        let piece = self.pieces.remove(&number).expect("it ends once");
        if result.is_err() && piece.trace == Trace::Somewhere {
            // Nobody does it again: the owner makes its copies equal.
            let entry = self.regions[piece.region].entry.as_ref();
            let generation = entry.map_or(0, |entry| entry.generation);
            // Said again to an owner that tells of this entry again: it may not have heard of it.
            self.regions[piece.region].doubted_at = generation;
            self.doubt(piece.region, generation);
        }
        self.waiting_since.remove(&(piece.submitted_at, number));
        self.regions[piece.region].queue.end(number, piece.span());
        self.touched.insert(piece.region);
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

    /// Ends pieces that have waited for longer than the client's patience.
    pub(super) fn end_overdue(&mut self, now: Time) {
        while let Some(&(since, number)) = self.waiting_since.first()
            && self.patience.is_over(now, since)
        {
            let region = u32::try_from(self.pieces[&number].region).expect("at most 2^16");
            self.end_piece(number, Err(Error::Unavailable { region }));
        }
    }

    /// Ends pieces that wait for a region which was cut off.
    pub(super) fn end_cut_off(&mut self, region: usize) {
        let view = &self.regions[region];
        if view.is_there() {
            return;
        }
        let cut: Vec<u64> = view.queue.waiting().collect();
        let region = u32::try_from(region).expect("at most 2^16");
        for number in cut {
            self.end_piece(number, Err(Error::OutOfRange { region }));
        }
    }
}

//! A chunk on its way to the other layout, and who brings it there.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::PAGE_BYTES;
use crate::core::Core;
use crate::limits::OPS_MAX;
use crate::worker::Worker;

/// Pages of one request: what a worker has operations for.
const RUN_PAGES: u64 = OPS_MAX as u64;

/// The migrator's thread.
pub fn run(core: &Core, mut worker: Worker) {
    while let Some(chunk) = core.helpers.migrator.wait() {
        let mut run = Run::new(chunk);
        while let Some(pages) = run.advance(core) {
            let is_moved = worker.move_pages(pages).is_ok();
            run.handle_moved(is_moved);
        }
        core.helpers.migrator.tell(run.is_whole);
        core.wake.wake();
    }
}

/// A chunk on its way: `advance -> (a request of these pages) -> handle_moved -> advance ..` until there are
/// none. What could not be done is left behind.
#[derive(Debug)]
struct Run {
    next: u64,
    end: u64,
    is_whole: bool,
}

impl Run {
    fn new(chunk: Range<u64>) -> Self {
        Self {
            next: chunk.start,
            end: chunk.end,
            is_whole: true,
        }
    }

    /// The pages that are to be moved next; those that hold nothing before them are moved by this.
    fn advance(&mut self, core: &Core) -> Option<Range<u64>> {
        let written = &core.pages.marks.written;
        let first = written.next(self.next, self.end, true).unwrap_or(self.end);
        for page in self.next..first {
            self.is_whole &= pass_empty(core, page);
        }
        if first == self.end {
            self.next = first;
            return None;
        }
        let most = self.end.min(first + RUN_PAGES).min(page_end(core));
        self.next = written.next(first, most, false).unwrap_or(most);
        Some(first..self.next)
    }

    /// Whether all of the pages that were asked for last are where they are to be.
    fn handle_moved(&mut self, is_moved: bool) {
        self.is_whole &= is_moved;
    }
}

/// Past the last page that may be written now.
fn page_end(core: &Core) -> u64 {
    core.size_bytes.load(Ordering::Acquire) / PAGE_BYTES as u64
}

/// Has a page that holds nothing be in the layout where it is to be; false when somebody is at it.
fn pass_empty(core: &Core, page: u64) -> bool {
    let target = core.layouts.target();
    if core.layouts.id_of(page) == target {
        return true;
    }
    if !core.pages.claims.try_claim(page) {
        return false;
    }
    let is_empty = !core.pages.marks.written.contains(page);
    if is_empty {
        core.layouts.pass(page, target);
    }
    core.pages.claims.release(page);
    is_empty
}

/// A migrator that its caller steps.
pub struct SteppedMigrator {
    worker: Worker,
    run: Option<Run>,
    /// The request under way.
    request: Option<u16>,
}

impl SteppedMigrator {
    pub fn new(worker: Worker) -> Self {
        Self {
            worker,
            run: None,
            request: None,
        }
    }

    /// Goes on as far as it goes without waiting; whether a chunk has ended.
    pub fn step(&mut self, core: &Core) -> bool {
        loop {
            let run = match &mut self.run {
                Some(run) => run,
                None => match core.helpers.migrator.orders().chunk.take() {
                    Some(chunk) => self.run.insert(Run::new(chunk)),
                    None => {
                        // What it read and does not wait for any more comes in.
                        self.worker.drive();
                        return false;
                    }
                },
            };
            if let Some(request) = self.request {
                let Some(ended) = self.worker.moved(request) else {
                    return false;
                };
                self.request = None;
                run.handle_moved(ended.is_ok());
            }
            match run.advance(core) {
                Some(pages) => self.request = Some(self.worker.submit_move(pages)),
                None => {
                    core.helpers.migrator.tell(run.is_whole);
                    self.run = None;
                    return true;
                }
            }
        }
    }

    /// To be stepped within this time even when nothing arrives.
    pub fn deadline(&self) -> Option<Duration> {
        self.worker.deadline()
    }

    /// Ends as its process would: see [`Worker::abandon`].
    pub fn abandon(self) {
        self.worker.abandon();
    }
}

#[cfg(test)]
mod tests;

//! More dies at once than the group bears: what is left is served on, and what is lost starts from scratch.

use cenote_kv::group::process::Process;

use super::world::World;

/// Steps before and after it, at most.
const STEPS: u64 = 1500;

impl World {
    /// Kills more than M at once, in the middle of whatever is under way. Whether it came to that.
    pub(super) fn strike(&mut self) -> bool {
        if !self.keep_busy() {
            return false;
        }
        let (k, m) = (self.options.k as u64, self.options.m as u64);
        let count = m + 1 + self.random.below(k);
        let mut left: Vec<Process> = self.view().processes();
        left.retain(|process| self.members.contains_key(process));
        let mut doomed = Vec::new();
        for _ in 0..count.min(left.len() as u64) {
            let index = self.random.below(left.len() as u64);
            doomed.push(left.swap_remove(usize::try_from(index).expect("few members")));
        }
        // Where nobody is left of a view, nobody can ask for the next: then a group starts from scratch as a whole.
        let gone = |process: Process| doomed.contains(&process) || self.dead.contains(&process);
        let after = self.view().without(gone);
        let lives = |process: &Process| self.members.contains_key(process);
        if after.is_none_or(|view| !view.processes().iter().any(lives)) {
            return false;
        }
        doomed.into_iter().for_each(|process| self.kill(process));
        self.leaving.clear();
        self.is_ruined = true;
        self.keep_busy()
    }

    /// Goes on for some time under load and faults. False: a promise was broken.
    fn keep_busy(&mut self) -> bool {
        for _ in 0..self.random.below(STEPS) {
            self.step();
            if self.report.is_broken() {
                return false;
            }
        }
        true
    }

    /// Somebody has a lost partition start from scratch, if a process is there for it.
    pub(super) fn begin_reset(&mut self, spare: Option<Process>) {
        let view = self.view();
        let partition = view.lost().trailing_zeros() as usize;
        let next = spare.and_then(|process| view.with_reset(partition, process).zip(spare));
        if let Some((next, process)) = next
            && self.agree(next, process)
        {
            self.seen.forget_time(partition);
        }
    }
}

//! Whether the kernel killed a program for want of memory: then that is said, not only that its
//! connection was reset.

use cenote_block::swap::cgroup::MemoryCgroup;

/// Watches a memory cgroup from its making, or from one measurement on.
pub(crate) struct OomKills<'a> {
    group: &'a MemoryCgroup,
    before: u64,
}

impl<'a> OomKills<'a> {
    pub(crate) fn of(group: &'a MemoryCgroup) -> Self {
        Self {
            group,
            before: group.oom_kills().unwrap_or(0),
        }
    }

    /// Names the cgroup in an error if the kernel has killed a process of it since.
    pub(crate) fn explain<T>(&self, outcome: anyhow::Result<T>) -> anyhow::Result<T> {
        outcome.map_err(|error| match self.group.oom_kills() {
            Ok(kills) if kills > self.before => error.context(format!(
                "the kernel killed the program: out of memory in the memory cgroup {}",
                self.group.path().display()
            )),
            _ => error,
        })
    }
}

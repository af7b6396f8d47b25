//! The memory control group that this process runs in, of either version.

use super::read;

/// A group's folder and how its version names things.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Group {
    folder: String,
    is_v2: bool,
}

impl Group {
    /// `None` outside of any group.
    pub(crate) fn of_this_process() -> Option<Self> {
        Self::find(&read("/proc/self/cgroup"))
    }

    /// The group of version 1 where both are mounted: only one of them can hold memory.
    fn find(membership: &str) -> Option<Self> {
        let mut unified = None;
        for line in membership.lines() {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            if controllers.split(',').any(|name| name == "memory") {
                return Some(Self {
                    folder: format!("/sys/fs/cgroup/memory{path}"),
                    is_v2: false,
                });
            }
            if controllers.is_empty() {
                unified = Some(Self {
                    folder: format!("/sys/fs/cgroup{path}"),
                    is_v2: true,
                });
            }
        }
        unified
    }

    /// What it may use; `None` without a limit.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        // Version 2 says "max" where there is no limit, which is no number.
        self.number(if self.is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        })
    }

    /// What it still allows at once; `None` without a limit.
    pub(crate) fn left_bytes(&self) -> Option<u64> {
        Some(self.limit_bytes()?.saturating_sub(self.used_bytes()?))
    }

    /// As [`Group::left_bytes`], and what its cache of files would give up.
    pub(crate) fn available_bytes(&self) -> Option<u64> {
        let cached = cached_bytes(&read(&self.file("memory.stat")), self.is_v2);
        Some(self.left_bytes()?.saturating_add(cached))
    }

    /// Its file of stalls for want of memory; version 1 has none.
    pub(crate) fn pressure_file(&self) -> Option<String> {
        self.is_v2.then(|| self.file("memory.pressure"))
    }

    fn used_bytes(&self) -> Option<u64> {
        self.number(if self.is_v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        })
    }

    fn number(&self, name: &str) -> Option<u64> {
        read(&self.file(name)).trim().parse().ok()
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }
}

/// Cached pages of files, from `memory.stat`. Lent memory is not among them: the kernel counts it as
/// anonymous.
fn cached_bytes(stat: &str, is_v2: bool) -> u64 {
    let names = if is_v2 {
        ["inactive_file", "active_file"]
    } else {
        ["total_inactive_file", "total_active_file"]
    };
    stat.lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| names.contains(name))
        .filter_map(|(_, number)| number.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_group_of_either_version_is_found() {
        let of = |folder: &str, is_v2| {
            let folder = folder.to_owned();
            Some(Group { folder, is_v2 })
        };
        assert_eq!(
            Group::find("0::/user.slice\n"),
            of("/sys/fs/cgroup/user.slice", true)
        );
        let both = "0::/unified\n3:cpu,cpuacct:/x\n2:memory:/a:b\n";
        assert_eq!(Group::find(both), of("/sys/fs/cgroup/memory/a:b", false));
        assert_eq!(Group::find("3:cpu:/x\n"), None);
    }

    #[test]
    fn a_groups_own_figures_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        write("memory.max", "1000000\n");
        write("memory.current", "700000\n");
        write(
            "memory.stat",
            "anon 500000\nfile 210000\ninactive_file 150000\nactive_file 50000\n",
        );
        let group = Group {
            folder: folder.path().display().to_string(),
            is_v2: true,
        };
        assert_eq!(group.limit_bytes(), Some(1_000_000));
        assert_eq!(
            (group.left_bytes(), group.available_bytes()),
            (Some(300_000), Some(500_000))
        );
        write("memory.max", "max\n");
        assert_eq!((group.limit_bytes(), group.available_bytes()), (None, None));
        let v1 = "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 300\n";
        assert_eq!(cached_bytes(v1, false), 320);
    }
}

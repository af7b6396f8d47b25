//! The memory control groups that this process is in, of either version: its own and those around it,
//! each of which may have a limit.

use super::files::{Files, read};

/// The groups' folders, the process's own first, and how their version names things. One that cannot
/// be seen from here has no limit: in a container the mount may begin at the process's own.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Group {
    folders: Vec<String>,
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
                    folders: lineage("/sys/fs/cgroup/memory", path),
                    is_v2: false,
                });
            }
            if controllers.is_empty() {
                unified = Some(Self {
                    folders: lineage("/sys/fs/cgroup", path),
                    is_v2: true,
                });
            }
        }
        unified
    }

    /// The least that one of them may use; `None` without a limit.
    pub(crate) fn limit_bytes(&self, files: &mut Files) -> Option<u64> {
        let folders = self.folders.iter();
        folders
            .filter_map(|folder| self.limit_of(folder, files))
            .min()
    }

    /// The least that one of them still allows, once its cache of files is given up; `None` without
    /// a limit.
    pub(crate) fn available_bytes(&self, files: &mut Files) -> Option<u64> {
        let of = |folder: &String| {
            let limit = self.limit_of(folder, files)?;
            let left = limit.saturating_sub(self.used_of(folder, files)?);
            let cached = cached_bytes(&files.read(&format!("{folder}/memory.stat")), self.is_v2);
            Some(left.saturating_add(cached))
        };
        self.folders.iter().filter_map(of).min()
    }

    /// Its own file of stalls for want of memory; version 1 has none.
    pub(crate) fn pressure_file(&self) -> Option<String> {
        let own = self.folders.first().filter(|_| self.is_v2)?;
        Some(format!("{own}/memory.pressure"))
    }

    /// Version 2 says "max" where there is no limit, which is no number; above `memory.high` it
    /// slows programs down until they use less.
    fn limit_of(&self, folder: &str, files: &mut Files) -> Option<u64> {
        let names: &[&str] = if self.is_v2 {
            &["memory.max", "memory.high"]
        } else {
            &["memory.limit_in_bytes"]
        };
        names
            .iter()
            .filter_map(|name| number(folder, name, files))
            .min()
    }

    fn used_of(&self, folder: &str, files: &mut Files) -> Option<u64> {
        let name = if self.is_v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        number(folder, name, files)
    }
}

fn number(folder: &str, name: &str, files: &mut Files) -> Option<u64> {
    files.read(&format!("{folder}/{name}")).trim().parse().ok()
}

/// A group's folder and those of the groups that it is in, up to the mount's.
fn lineage(mount: &str, path: &str) -> Vec<String> {
    let path = path.trim_end_matches('/');
    let ends = path.char_indices().filter(|(_, letter)| *letter == '/');
    let mut folders: Vec<String> = ends
        .map(|(end, _)| format!("{mount}{}", &path[..end]))
        .collect();
    folders.push(format!("{mount}{path}"));
    folders.reverse();
    folders
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
    fn the_groups_of_either_version_are_found_with_those_around_them() {
        let of = |folders: &[&str], is_v2| {
            let folders = folders.iter().map(|folder| (*folder).to_owned()).collect();
            Some(Group { folders, is_v2 })
        };
        assert_eq!(
            Group::find("0::/user.slice/a.service\n"),
            of(
                &[
                    "/sys/fs/cgroup/user.slice/a.service",
                    "/sys/fs/cgroup/user.slice",
                    "/sys/fs/cgroup"
                ],
                true
            )
        );
        assert_eq!(Group::find("0::/\n"), of(&["/sys/fs/cgroup"], true));
        let both = "0::/unified\n3:cpu,cpuacct:/x\n2:memory:/a:b\n";
        assert_eq!(
            Group::find(both),
            of(
                &["/sys/fs/cgroup/memory/a:b", "/sys/fs/cgroup/memory"],
                false
            )
        );
        assert_eq!(Group::find("3:cpu:/x\n"), None);
    }

    #[test]
    fn of_a_group_and_those_around_it_the_one_that_leaves_least_counts() {
        let mount = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(mount.path().join("slice/service")).unwrap();
        let write = |name: &str, text: &str| {
            std::fs::write(mount.path().join(name), text).unwrap();
        };
        write("slice/service/memory.max", "1000000\n");
        write("slice/service/memory.high", "max\n");
        write("slice/service/memory.current", "700000\n");
        write(
            "slice/service/memory.stat",
            "anon 500000\nfile 210000\ninactive_file 150000\nactive_file 50000\n",
        );
        let group = Group {
            folders: lineage(&mount.path().display().to_string(), "/slice/service"),
            is_v2: true,
        };
        let mut files = Files::default();
        let mut figures = || {
            (
                group.limit_bytes(&mut files),
                group.available_bytes(&mut files),
            )
        };
        assert_eq!(figures(), (Some(1_000_000), Some(500_000)));
        write("slice/memory.max", "3000000\n");
        write("slice/memory.current", "2900000\n");
        assert_eq!(figures(), (Some(1_000_000), Some(100_000)));
        write("slice/service/memory.high", "800000\n");
        write("slice/memory.current", "1000000\n");
        assert_eq!(figures(), (Some(800_000), Some(300_000)));
        write("slice/service/memory.max", "max\n");
        write("slice/service/memory.high", "max\n");
        write("slice/memory.max", "max\n");
        assert_eq!(figures(), (None, None));
        let v1 = "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 300\n";
        assert_eq!(cached_bytes(v1, false), 320);
    }
}

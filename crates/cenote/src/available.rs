//! How much memory could be taken on this machine right now.

use std::fs;

/// The least of what the kernel counts as available and what this process's cgroup
/// has left; `None` when the kernel does not say.
pub fn memory_bytes() -> Option<u64> {
    let system = meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")?;
    Some(system.min(cgroup_left().unwrap_or(u64::MAX)))
}

/// Swap space of this machine.
pub fn swap_bytes() -> Option<u64> {
    meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "SwapTotal")
}

/// A line of /proc/meminfo, in bytes.
fn meminfo(text: &str, field: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Limit minus use of the memory cgroup of this process, of either version.
fn cgroup_left() -> Option<u64> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let (folder, limit, used) = cgroup_files(&membership)?;
    let read = |name: &str| -> Option<u64> {
        fs::read_to_string(format!("{folder}/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    // "max" of version 2 is no number, and means no limit.
    Some(read(limit)?.saturating_sub(read(used)?))
}

/// The folder of the memory cgroup and the names of its limit and use.
fn cgroup_files(membership: &str) -> Option<(String, &'static str, &'static str)> {
    let mut unified = None;
    for line in membership.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            let folder = format!("/sys/fs/cgroup/memory{path}");
            return Some((folder, "memory.limit_in_bytes", "memory.usage_in_bytes"));
        }
        if controllers.is_empty() {
            unified = Some((
                format!("/sys/fs/cgroup{path}"),
                "memory.max",
                "memory.current",
            ));
        }
    }
    unified
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meminfo_line_is_found_by_its_whole_name() {
        let text = "MemTotal:       100 kB\nMemAvailable2:  1 kB\nMemAvailable:   42 kB\nHugePages_Total:  3\n";
        assert_eq!(meminfo(text, "MemAvailable"), Some(42 * 1024));
        assert_eq!(meminfo(text, "HugePages_Total"), None);
        assert_eq!(meminfo(text, "SwapTotal"), None);
    }

    #[test]
    fn both_cgroup_versions_are_found_and_the_first_wins() {
        let (folder, ..) = cgroup_files("0::/user.slice\n").unwrap();
        assert_eq!(folder, "/sys/fs/cgroup/user.slice");
        let mixed = "0::/unified\n3:cpu,cpuacct:/x\n2:memory:/a:b\n";
        let (folder, limit, _) = cgroup_files(mixed).unwrap();
        assert_eq!(
            (folder.as_str(), limit),
            ("/sys/fs/cgroup/memory/a:b", "memory.limit_in_bytes")
        );
        assert_eq!(cgroup_files("3:cpu:/x\n"), None);
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(memory_bytes().expect("Linux since 3.14 says so") > 0);
    }
}

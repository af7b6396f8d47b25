//! Memory cgroups, version 1 or 2, as far as swapping needs them.
//!
//! Two users: the check that a server is not inside a limit that it serves, and whoever runs a
//! program under a limit (the demonstration, the tests). No dependency: six small files.
//! Elsewhere: what keeps the kernel from killing a program that only has to wait (`relief`).

mod relief;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use relief::Relief;

/// A memory cgroup of our own. Dropping it removes it; processes still in it keep it alive.
///
/// A program in it that swaps hard is not killed for it. The kernel may find nothing to reclaim
/// while all that could go is on its way to swap, or just came back. Version 1 calls that out of
/// memory: here its killer is off, and a program that stalls gets some memory for a moment.
/// Version 2 gets the limit as `memory.high`, which slows down, and `memory.max` above it.
#[derive(Debug)]
pub struct MemoryCgroup {
    path: PathBuf,
    version: Version,
    relief: Option<Relief>,
}

impl MemoryCgroup {
    /// Makes a cgroup at the top of the hierarchy that limits memory, but not swap, to
    /// `limit_bytes`.
    ///
    /// # Errors
    /// When there is no memory controller, or we may not use it.
    pub fn create(name: &str, limit_bytes: u64) -> io::Result<Self> {
        let (version, mount) = hierarchy(&fs::read_to_string("/proc/self/mounts")?)
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no memory cgroups here"))?;
        if version == Version::V2 {
            enable_in_children(&mount)?;
        }
        let path = mount.join(name);
        fs::create_dir(&path)?;
        let mut group = Self {
            path,
            version,
            relief: None,
        };
        group.set_limit(limit_bytes)?;
        if version == Version::V1 {
            group.relief = Some(Relief::start(&group.path, limit_bytes)?);
            group.set_limit(limit_bytes)?;
        }
        Ok(group)
    }

    /// Sets another limit.
    ///
    /// # Errors
    /// When the cgroup holds more than that and cannot be reclaimed.
    pub fn set_limit(&self, limit_bytes: u64) -> io::Result<()> {
        match &self.relief {
            Some(relief) => relief.set_limit(limit_bytes),
            None if self.version == Version::V1 => {
                fs::write(self.path.join(V1_LIMIT), limit_bytes.to_string())
            }
            None => {
                let most = limit_bytes.saturating_add(HIGH_SLACK_BYTES);
                fs::write(self.path.join("memory.high"), limit_bytes.to_string())?;
                fs::write(self.path.join(V2_LIMIT), most.to_string())
            }
        }
    }

    /// The cgroup's folder, which names it in messages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many of its processes the kernel has killed because memory ran out here.
    ///
    /// # Errors
    /// When the kernel's file cannot be read or does not tell.
    pub fn oom_kills(&self) -> io::Result<u64> {
        let name = match self.version {
            Version::V1 => relief::OOM_CONTROL,
            Version::V2 => "memory.events",
        };
        field(&fs::read_to_string(self.path.join(name))?, "oom_kill ")
    }

    /// How often a program that found nothing to reclaim was given memory for a moment.
    #[must_use]
    pub fn relief_count(&self) -> u64 {
        self.relief.as_ref().map_or(0, Relief::count)
    }

    /// Moves a process, with all of its threads, into the cgroup.
    ///
    /// # Errors
    /// When the process is gone or we may not move it.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.procs_path(), pid.to_string())
    }

    /// The file to write a pid to; for a child that adds itself between fork and exec.
    #[must_use]
    pub fn procs_path(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// Bytes of memory charged now.
    ///
    /// # Errors
    /// When the kernel's file cannot be read.
    pub fn usage_bytes(&self) -> io::Result<u64> {
        let name = match self.version {
            Version::V1 => V1_USAGE,
            Version::V2 => "memory.current",
        };
        number(&fs::read_to_string(self.path.join(name))?)
    }

    /// Bytes of the cgroup's memory that are swapped out now.
    ///
    /// # Errors
    /// When the kernel does not account swap, or its file cannot be read.
    pub fn swapped_bytes(&self) -> io::Result<u64> {
        match self.version {
            Version::V1 => {
                let both = self.path.join("memory.memsw.usage_in_bytes");
                let both = number(&fs::read_to_string(both)?)?;
                Ok(both.saturating_sub(self.usage_bytes()?))
            }
            Version::V2 => number(&fs::read_to_string(self.path.join("memory.swap.current"))?),
        }
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        self.relief = None;
        // A process that was just reaped may hold it for a moment longer.
        for _ in 0..50 {
            if fs::remove_dir(&self.path).is_ok() || !self.path.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        tracing::warn!(path = %self.path.display(), "memory cgroup is still in use");
    }
}

/// The tightest memory limit on this process, in bytes, and the cgroup that sets it; `None` when
/// nothing limits it or the hierarchy cannot be read.
#[must_use]
pub fn own_limit() -> Option<(u64, PathBuf)> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let (version, mount) = hierarchy(&mounts)?;
    let cgroups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own_path(version, &cgroups)?;
    let mut dir = mount.join(own.trim_start_matches('/'));
    let mut tightest: Option<(u64, PathBuf)> = None;
    while dir.starts_with(&mount) {
        if let Some(limit) = limit_of(version, &dir)
            && tightest.as_ref().is_none_or(|(other, _)| limit < *other)
        {
            tightest = Some((limit, dir.clone()));
        }
        if !dir.pop() {
            break;
        }
    }
    tightest
}

/// A memory cgroup whose limit does not hold what it has in memory and what it has swapped out:
/// bringing that back would have the kernel kill one of its processes. `None` when all have room.
///
/// Pages of files that were not used lately do not count: they go first.
///
/// # Errors
/// When the hierarchy cannot be read, so that nothing is known.
pub fn without_room() -> io::Result<Option<PathBuf>> {
    let Some((version, mount)) = hierarchy(&fs::read_to_string("/proc/self/mounts")?) else {
        return Ok(None);
    };
    let mut rest = vec![mount];
    while let Some(dir) = rest.pop() {
        if let Some(limit_bytes) = limit_of(version, &dir)
            && !held_by(version, &dir)?.fits(limit_bytes)
        {
            return Ok(Some(dir));
        }
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                rest.push(entry.path());
            }
        }
    }
    Ok(None)
}

/// What a cgroup and those below it hold.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Held {
    memory_bytes: u64,
    swapped_bytes: u64,
    /// Of the memory, pages of files that were not used lately.
    idle_file_bytes: u64,
}

impl Held {
    /// Whether all of it may be in memory, with a sixteenth to spare.
    fn fits(self, limit_bytes: u64) -> bool {
        let needed = self.memory_bytes.saturating_sub(self.idle_file_bytes);
        let needed = needed.saturating_add(self.swapped_bytes);
        self.swapped_bytes == 0 || needed <= limit_bytes - limit_bytes / 16
    }
}

fn held_by(version: Version, dir: &Path) -> io::Result<Held> {
    let file = |name: &str| fs::read_to_string(dir.join(name));
    let stat = file("memory.stat")?;
    let stat = |name: &str| match field(&stat, name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        told => told,
    };
    Ok(match version {
        Version::V1 => Held {
            memory_bytes: number(&file(V1_USAGE)?)?,
            swapped_bytes: stat("total_swap ")?,
            idle_file_bytes: stat("total_inactive_file ")?,
        },
        Version::V2 => Held {
            memory_bytes: number(&file("memory.current")?)?,
            swapped_bytes: number(&file("memory.swap.current")?)?,
            idle_file_bytes: stat("inactive_file ")?,
        },
    })
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Version {
    V1,
    V2,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::V1 => V1_LIMIT,
            Self::V2 => V2_LIMIT,
        }
    }
}

/// Where the memory controller is mounted. Version 1 wins where both are: it holds the controller.
fn hierarchy(mounts: &str) -> Option<(Version, PathBuf)> {
    let mut unified = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(path), Some(kind), Some(flags)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if kind == "cgroup" && flags.split(',').any(|flag| flag == "memory") {
            return Some((Version::V1, path.into()));
        }
        if kind == "cgroup2" {
            unified = Some((Version::V2, PathBuf::from(path)));
        }
    }
    unified
}

/// Our path inside the hierarchy, from /proc/self/cgroup.
fn own_path(version: Version, cgroups: &str) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let ours = match version {
            Version::V1 => controllers.split(',').any(|name| name == "memory"),
            Version::V2 => controllers.is_empty(),
        };
        ours.then_some(path)
    })
}

fn limit_of(version: Version, dir: &Path) -> Option<u64> {
    let text = fs::read_to_string(dir.join(version.limit_file())).ok()?;
    // Version 2 says "max" for no limit, which is no number.
    let limit = text.trim().parse::<u64>().ok()?;
    // Version 1 says "no limit" as the largest whole number of pages.
    (limit < 1 << 62).then_some(limit)
}

fn enable_in_children(mount: &Path) -> io::Result<()> {
    let control = mount.join("cgroup.subtree_control");
    let enabled = fs::read_to_string(&control)?;
    if enabled.split_whitespace().any(|name| name == "memory") {
        return Ok(());
    }
    fs::write(control, "+memory")
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> io::Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let missing = || io::Error::new(io::ErrorKind::NotFound, format!("no line {name:?}"));
    number(line.ok_or_else(missing)?)
}

fn number(text: &str) -> io::Result<u64> {
    text.trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

const V1_LIMIT: &str = "memory.limit_in_bytes";
const V1_USAGE: &str = "memory.usage_in_bytes";
const V2_LIMIT: &str = "memory.max";
/// What a program may have beyond `memory.high`, where it is slowed down; arbitrary, some times
/// what the kernel reclaims at once.
const HIGH_SLACK_BYTES: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_that_holds_the_controller_is_found() {
        let both = "t /c tmpfs rw 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n\
                    cgroup /c/memory cgroup rw,relatime,memory 0 0\n";
        assert_eq!(hierarchy(both), Some((Version::V1, "/c/memory".into())));
        let unified = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        let expected = Some((Version::V2, "/sys/fs/cgroup".into()));
        assert_eq!(hierarchy(unified), expected);
        assert_eq!(hierarchy("proc /proc proc rw 0 0\n"), None);
    }

    #[test]
    fn what_is_swapped_out_must_fit_beside_what_is_not() {
        let held = |memory_bytes, swapped_bytes, idle_file_bytes| Held {
            memory_bytes,
            swapped_bytes,
            idle_file_bytes,
        };
        assert!(held(100, 50, 0).fits(160));
        assert!(!held(100, 51, 0).fits(160), "a sixteenth stays");
        assert!(held(150, 50, 50).fits(160), "files that nobody uses go");
        assert!(held(160, 0, 0).fits(160), "nothing is to come back");
    }

    #[test]
    fn the_own_path_is_read_for_either_version() {
        let text = "4:memory:/jobs/7\n1:cpu:/\n0::/user.slice\n";
        assert_eq!(own_path(Version::V1, text), Some("/jobs/7"));
        assert_eq!(own_path(Version::V2, text), Some("/user.slice"));
        assert_eq!(own_path(Version::V1, "1:cpu:/\n"), None);
    }
}

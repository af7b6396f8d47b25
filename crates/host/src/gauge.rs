//! How much memory the host's machine has left, and whether programs wait for memory.
//!
//! Read once a second: `/proc/meminfo` and the control group's limit, whichever leaves less, and
//! the kernel's count of stalls (PSI). A file in the format of `/proc/meminfo` may stand for the
//! machine: several hosts on one machine then each have a machine of their own. The machine's files are
//! kept open, so that a host that is out of descriptors still sees what it has.

use std::path::Path;
use std::time::Duration;

use crate::machine::{Files, Group, meminfo_bytes, read};

/// One look at the machine.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reading {
    /// Memory of the machine, or that the control group may use.
    pub total_bytes: u64,
    /// What of it can be had without swapping.
    pub available_bytes: u64,
    /// Whether this host's slabs are missing from what is available. They are not from what a file
    /// says that stands for the machine.
    pub has_own: bool,
    /// Programs waited for memory since the last look.
    pub is_stalled: bool,
}

/// Looks at a machine; `None` when it cannot be read.
pub type Gauge = Box<dyn FnMut(Duration) -> Option<Reading> + Send>;

/// Programs that waited for memory for more than this share of the time, one of them at least:
/// the kernel is short of it now, whatever the averages say. Arbitrary.
const STALLED_PERCENT: u64 = 10;

/// The gauge of this machine, or of the file that stands for it.
pub(crate) fn open(meminfo: Option<&Path>) -> Gauge {
    match meminfo {
        Some(file) => of_file(file),
        None => of_machine(),
    }
}

fn of_file(file: &Path) -> Gauge {
    let path = file.to_string_lossy().into_owned();
    Box::new(move |_| {
        let (total_bytes, available_bytes) = figures(&read(&path))?;
        Some(Reading {
            total_bytes,
            available_bytes,
            has_own: false,
            is_stalled: false,
        })
    })
}

fn of_machine() -> Gauge {
    let group = Group::of_this_process();
    let mut stalls = vec![Stalls::new("/proc/pressure/memory".into())];
    stalls.extend(
        group
            .as_ref()
            .and_then(Group::pressure_file)
            .map(Stalls::new),
    );
    let mut files = Files::default();
    Box::new(move |now| {
        let (total, available) = figures(&files.read("/proc/meminfo"))?;
        let mut of_group = |ask: fn(&Group, &mut Files) -> Option<u64>| {
            group.as_ref().and_then(|group| ask(group, &mut files))
        };
        let limit = of_group(Group::limit_bytes);
        let left = of_group(Group::available_bytes);
        let mut is_stalled = false;
        for file in &mut stalls {
            is_stalled |= file.look(now, &mut files);
        }
        Some(Reading {
            total_bytes: total.min(limit.unwrap_or(u64::MAX)),
            available_bytes: available.min(left.unwrap_or(u64::MAX)),
            has_own: true,
            is_stalled,
        })
    })
}

/// Memory of the machine, and what of it is available.
fn figures(meminfo: &str) -> Option<(u64, u64)> {
    let total = meminfo_bytes(meminfo, "MemTotal:")?;
    Some((total, meminfo_bytes(meminfo, "MemAvailable:")?))
}

/// A pressure file of the kernel.
struct Stalls {
    path: String,
    /// When it was last looked at, and the microseconds of stalls until then.
    last: Option<(Duration, u64)>,
}

impl Stalls {
    fn new(path: String) -> Self {
        Self { path, last: None }
    }

    /// Whether programs waited for too much of the time since the last look.
    fn look(&mut self, now: Duration, files: &mut Files) -> bool {
        let total = stalled_us(&files.read(&self.path));
        let before = std::mem::replace(&mut self.last, total.map(|total| (now, total)));
        let (Some((then, before)), Some(total)) = (before, total) else {
            return false;
        };
        let passed = u64::try_from(now.saturating_sub(then).as_micros()).unwrap_or(u64::MAX);
        total.saturating_sub(before).saturating_mul(100) > passed.saturating_mul(STALLED_PERCENT)
    }
}

/// Microseconds in which some program waited for memory.
fn stalled_us(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    let total = some
        .split(' ')
        .find_map(|field| field.strip_prefix("total="))?;
    total.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_stands_for_the_machine_and_is_read_again_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("meminfo");
        let mut gauge = open(Some(&file));
        assert_eq!(gauge(Duration::ZERO), None, "it is not there");
        std::fs::write(&file, "MemTotal:  2048 kB\n").unwrap();
        assert_eq!(gauge(Duration::ZERO), None, "half of it is missing");
        std::fs::write(&file, "MemTotal:  2048 kB\nMemAvailable: 1024 kB\n").unwrap();
        let reading = Reading {
            total_bytes: 2 << 20,
            available_bytes: 1 << 20,
            has_own: false,
            is_stalled: false,
        };
        assert_eq!(gauge(Duration::ZERO), Some(reading));
        std::fs::write(&file, "MemTotal:  2048 kB\nMemAvailable: 0 kB\n").unwrap();
        let later = gauge(Duration::from_secs(1));
        assert_eq!(later.map(|r| r.available_bytes), Some(0));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(gauge(Duration::from_secs(2)), None);
    }

    #[test]
    fn this_machine_says_what_it_has() {
        let reading = open(None)(Duration::from_secs(1)).unwrap();
        assert!(reading.has_own && reading.available_bytes > 0);
        assert!(reading.available_bytes < reading.total_bytes);
    }

    #[test]
    fn waiting_for_a_tenth_of_the_time_is_a_stall() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("memory");
        let mut stalls = Stalls::new(file.display().to_string());
        let mut look = |second: u64, total: u64| {
            let text = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.06 total={total}\n\
                 full avg10=9.00 avg60=0.00 avg300=0.04 total=9{total}\n"
            );
            std::fs::write(&file, text).unwrap();
            stalls.look(Duration::from_secs(second), &mut Files::default())
        };
        assert!(!look(1, 7_000_000), "what was before the first look");
        assert!(!look(2, 7_090_000));
        assert!(look(3, 7_200_000));
        assert!(!look(5, 7_390_000), "in two seconds");
        assert!(look(6, 8_390_000));
    }
}

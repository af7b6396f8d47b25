//! What processes use, as the kernel tells it: time on processors and memory.

use std::fs;
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Time that processes have had on processors, their own and the kernel's for them; in ticks of
/// the kernel, 10 ms each.
///
/// # Errors
/// A process that is gone.
pub(crate) fn cpu(pids: &[u32]) -> Result<Duration> {
    let mut ticks = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/stat");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        ticks += ticks_of(&text).with_context(|| format!("understand {path}"))?;
    }
    // SAFETY: no memory is touched.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    let per_second = u64::try_from(per_second).context("ask how long a tick is")?;
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Fields 14 and 15, counted from the end of the name, which may hold anything.
fn ticks_of(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Memory that processes hold, what several of them share counted once (the kernel's PSS).
///
/// # Errors
/// A process that is gone.
pub(crate) fn resident_bytes(pids: &[u32]) -> Result<u64> {
    let mut kib = 0;
    for pid in pids {
        let path = format!("/proc/{pid}/smaps_rollup");
        let text = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
        kib += pss_kib(&text).with_context(|| format!("find Pss in {path}"))?;
    }
    Ok(kib * 1024)
}

fn pss_kib(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes that processes have had the kernel write to disks, by whole pages; `None` where it does not
/// count them, or does not tell us.
pub(crate) fn written_bytes(pids: &[u32]) -> Option<u64> {
    let of = |pid: &u32| written_of(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?);
    pids.iter().map(of).sum()
}

fn written_of(io: &str) -> Option<u64> {
    let line = io
        .lines()
        .find_map(|line| line.strip_prefix("write_bytes:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        // State is field 3, so 11 and 12 are what follows ten more.
        assert_eq!(ticks_of(stat), Some(11 + 12));
    }

    #[test]
    fn what_went_to_disks_is_told_apart_from_what_was_written() {
        let io = "rchar: 5\nwchar: 7\nread_bytes: 0\nwrite_bytes: 4096\n\
                  cancelled_write_bytes: 9\n";
        assert_eq!(written_of(io), Some(4096));
        assert_eq!(written_of("rchar: 5\n"), None);
        assert_eq!(written_bytes(&[u32::MAX]), None, "no such process");
    }

    #[test]
    fn of_this_process_both_are_told() {
        let pids = [std::process::id()];
        assert!(resident_bytes(&pids).unwrap() > 100 << 10);
        let before = cpu(&pids).unwrap();
        let mut word = 1_u64;
        while cpu(&pids).unwrap() == before {
            word = std::hint::black_box(cenote_measure::random::mix(word));
        }
        assert!(cpu(&[u32::MAX]).is_err(), "no such process");
    }
}

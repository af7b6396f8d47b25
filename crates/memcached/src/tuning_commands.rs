//! Commands by which scripts tune memcached's memory: `cache_memlimit` does here what it does there;
//! `slabs` and `lru` have nothing to tune, and say so as memcached says it. `debugtime` moves the time on,
//! where that is allowed: every worker does so for itself, and then the client is told.

use std::sync::atomic::Ordering;

use cenote_kv::protocol::{Tuning, Words};

use super::backend::Backend;
use super::core::Core;
use super::session::Session;

/// Megabytes that a limit may have; above it is taken for bytes.
const MEGABYTES_MIN: u32 = 8;
const MEGABYTES_MAX: u32 = 1_000_000_000;
/// The last class that items can be in.
const CLASS_MAX: i32 = 39;
/// Percent of memory that the hot and the warm list may have together.
const PERCENT_MAX: u32 = 80;

const OK: &str = "OK";
const ERROR: &str = "ERROR";
const BAD_FORMAT: &str = "CLIENT_ERROR bad command line format";

fn number<T: std::str::FromStr>(word: Option<&[u8]>) -> Option<T> {
    std::str::from_utf8(word?).ok()?.parse().ok()
}

impl Session {
    /// Answers a command, whose words follow its name.
    pub(super) fn tune<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        tuning: Tuning,
        words: Words<'_>,
        noreply: bool,
    ) {
        let answer = match tuning {
            Tuning::MemoryLimit => memory_limit(core, words),
            Tuning::Slabs => slabs(words),
            Tuning::Lru => lru(words),
            Tuning::Time => {
                match seconds_to_leap(words).filter(|_| core.shared.settings.may_leap) {
                    Some(seconds) => return self.leap(core, seconds, noreply),
                    None => ERROR,
                }
            }
        };
        if !noreply {
            let out = self.replies.tail();
            out.extend_from_slice(answer.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
    }

    /// Moves the time of all workers on.
    fn leap<B: Backend>(&mut self, core: &mut Core<B>, seconds: u32, noreply: bool) {
        let text = format!("debugtime {seconds}\r\n");
        self.spread(core, &text, noreply, |out| {
            if !noreply {
                out.extend_from_slice(b"OK\r\n");
            }
        });
    }
}

/// Seconds by which the time moves on. It is never turned back, nor stopped.
fn seconds_to_leap(mut words: Words<'_>) -> Option<u32> {
    number(words.next())
}

impl<B: Backend> Core<B> {
    /// Carries out the text by which a worker is asked to move its time on.
    pub(super) fn leap_by(&mut self, words: Words<'_>) {
        if let Some(seconds) = seconds_to_leap(words).filter(|_| self.shared.settings.may_leap) {
            self.leap(seconds);
        }
    }

    /// Moves the time on, for good.
    fn leap(&mut self, seconds: u32) {
        self.leapt = self.leapt.saturating_add(seconds.into());
        self.now = self.now.saturating_add(seconds.into());
        self.backend.leap(seconds);
    }
}

fn memory_limit<B: Backend>(core: &mut Core<B>, mut words: Words<'_>) -> &'static str {
    let Some(megabytes) = number::<u32>(words.next()) else {
        return ERROR;
    };
    match megabytes {
        ..MEGABYTES_MIN => "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        _ if megabytes > MEGABYTES_MAX => {
            "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes"
        }
        _ if !core.backend.set_memory(u64::from(megabytes) << 20) => {
            "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust"
        }
        _ => {
            let bytes = u64::from(megabytes) << 20;
            core.shared.memory_bytes.store(bytes, Ordering::SeqCst);
            core.shared.wake_all();
            OK
        }
    }
}

fn slabs(mut words: Words<'_>) -> &'static str {
    match (words.next(), words.next(), words.next()) {
        (Some(b"reassign"), Some(source), Some(target)) => {
            match (number::<i32>(Some(source)), number::<i32>(Some(target))) {
                (Some(source), Some(target)) if source == target => {
                    "SAME src and dst class are identical"
                }
                // Any class may give, and none has memory of its own to give.
                (Some(1..=CLASS_MAX | -1), Some(0..=CLASS_MAX)) => {
                    "NOSPARE source class has no spare pages"
                }
                (Some(_), Some(_)) => "BADCLASS invalid src or dst class id",
                _ => BAD_FORMAT,
            }
        }
        (Some(b"automove"), Some(b"ratio"), ratio) => match number::<f64>(ratio) {
            Some(_) => OK,
            None => ERROR,
        },
        (Some(b"automove"), level @ Some(_), _) => match number::<u32>(level) {
            Some(0..=2) => OK,
            Some(_) => ERROR,
            None => BAD_FORMAT,
        },
        _ => ERROR,
    }
}

fn lru(mut words: Words<'_>) -> &'static str {
    match words.next() {
        Some(b"tune") => {
            let percents = (number::<u32>(words.next()), number::<u32>(words.next()));
            let factors = (number::<f64>(words.next()), number::<f64>(words.next()));
            match (percents, factors) {
                ((Some(hot), Some(warm)), _) if hot.saturating_add(warm) > PERCENT_MAX => {
                    "ERROR hot and warm pcts must not exceed 80"
                }
                ((Some(_), Some(_)), (Some(hot), Some(warm))) if hot <= 0.0 || warm <= 0.0 => {
                    "ERROR hot/warm age factors must be greater than 0"
                }
                ((Some(_), Some(_)), (Some(_), Some(_))) => OK,
                _ => ERROR,
            }
        }
        Some(b"mode") if matches!(words.next(), Some(b"flat" | b"segmented")) => OK,
        Some(b"temp_ttl") if number::<i32>(words.next()).is_some() => OK,
        _ => ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_tuned_is_answered_as_memcached_answers() {
        for (text, answer) in [
            ("reassign 1 1", "SAME src and dst class are identical"),
            ("reassign 1 2", "NOSPARE source class has no spare pages"),
            ("reassign 99 1", "BADCLASS invalid src or dst class id"),
            ("reassign a b", BAD_FORMAT),
            ("reassign 1", ERROR),
            ("automove 1", OK),
            ("automove 3", ERROR),
            ("automove x", BAD_FORMAT),
            ("automove ratio 0.8", OK),
            ("", ERROR),
        ] {
            assert_eq!(slabs(Words::new(text.as_bytes())), answer, "{text}");
        }
        for (text, answer) in [
            ("tune 10 25 0.1 2.0", OK),
            (
                "tune 60 25 0.1 2.0",
                "ERROR hot and warm pcts must not exceed 80",
            ),
            (
                "tune 10 25 0 2.0",
                "ERROR hot/warm age factors must be greater than 0",
            ),
            ("tune 10", ERROR),
            ("mode flat", OK),
            ("mode other", ERROR),
            ("temp_ttl 60", OK),
            ("temp_ttl", ERROR),
        ] {
            assert_eq!(lru(Words::new(text.as_bytes())), answer, "{text}");
        }
    }
}

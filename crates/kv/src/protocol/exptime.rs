//! Expiry times: what a number in a request means at a given time.
//!
//! Times are seconds since 1970. Nothing here knows what time it is.

/// Longest time from now, in seconds, that a number can stand for: 30 days. More is a date.
pub const RELATIVE_SECONDS_MAX: i32 = 60 * 60 * 24 * 30;

/// An expiry time as a client gave it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Exptime(pub i32);

/// When an item ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Expiry {
    /// It does not.
    Never,
    /// It has already.
    Passed,
    /// At this second since 1970: at that time it is no longer there.
    At(u64),
}

impl Exptime {
    /// What the number means at `now`, seconds since 1970.
    ///
    /// 0 is never, less is at once, up to 30 days is from now, and more is a date. A date that is
    /// not after `now` has passed.
    pub fn expiry(self, now: u64) -> Expiry {
        match self.0 {
            0 => Expiry::Never,
            1..=RELATIVE_SECONDS_MAX => Expiry::At(now + u64::from(self.0.unsigned_abs())),
            ..0 => Expiry::Passed,
            date => {
                let date = u64::from(date.unsigned_abs());
                if date > now {
                    Expiry::At(date)
                } else {
                    Expiry::Passed
                }
            }
        }
    }

    /// When a `flush_all` with this number takes effect, seconds since 1970; 0 is at once, whatever the
    /// time is where it arrives.
    pub fn flush_at(self, now: u64) -> u64 {
        match self.expiry(now) {
            Expiry::Never | Expiry::Passed => 0,
            Expiry::At(at) => at,
        }
    }
}

impl Expiry {
    /// Seconds that are left at `now`; nothing if it does not end.
    pub fn seconds_left(self, now: u64) -> Option<u64> {
        match self {
            Self::Never => None,
            Self::Passed => Some(0),
            Self::At(at) => Some(at.saturating_sub(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    #[test]
    fn numbers_mean_what_memcached_documents() {
        for (number, expected) in [
            (0, Expiry::Never),
            (-1, Expiry::Passed),
            (i32::MIN, Expiry::Passed),
            (1, Expiry::At(NOW + 1)),
            (2_592_000, Expiry::At(NOW + 2_592_000)),
            (2_592_001, Expiry::Passed),
            (1_700_000_000, Expiry::Passed),
            (1_700_000_001, Expiry::At(1_700_000_001)),
            (i32::MAX, Expiry::At(2_147_483_647)),
        ] {
            assert_eq!(Exptime(number).expiry(NOW), expected, "{number}");
        }
    }

    #[test]
    fn an_item_ends_with_its_last_second() {
        let expiry = Exptime(10).expiry(NOW);
        assert_eq!(expiry.seconds_left(NOW + 3), Some(7));
        assert_eq!(Expiry::Never.seconds_left(NOW), None);
    }

    #[test]
    fn a_flush_is_now_or_later() {
        assert_eq!(Exptime(0).flush_at(NOW), 0);
        assert_eq!(Exptime(-5).flush_at(NOW), 0);
        assert_eq!(Exptime(5).flush_at(NOW), NOW + 5);
    }
}

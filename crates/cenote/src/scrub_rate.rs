//! How fast a served volume is looked through when nobody says it: by what is expected of its hosts, also
//! after that has changed while it is served.

use std::sync::atomic::{AtomicBool, Ordering};

use cenote_cli::size::Size;
use cenote_volume::{Resilience, Volume, VolumeError};

/// Bytes per second that a volume is looked through with when nothing else is said: a percent of a
/// gigabit link, and 4 TiB in twelve days.
const RATE: u64 = 4 << 20;

/// Of one volume that is served.
pub struct Scrubbing {
    is_protected: bool,
    /// Whether the rate is the usual one, which follows the volume's mode.
    is_usual: AtomicBool,
}

impl Scrubbing {
    /// Of a volume that is not looked through yet.
    pub fn new(is_protected: bool) -> Self {
        Self {
            is_protected,
            is_usual: AtomicBool::new(false),
        }
    }

    /// Has the volume looked through from now on, at this rate or the usual one.
    ///
    /// # Errors
    /// As [`Volume::set_scrub_rate`].
    pub fn begin(&self, volume: &Volume, rate: Option<Size>) -> Result<(), VolumeError> {
        self.is_usual.store(rate.is_none(), Ordering::Release);
        match rate {
            Some(rate) => volume.set_scrub_rate(rate.bytes()),
            None => self.follow(volume, volume.resilience()),
        }
    }

    /// Something else is expected of its hosts.
    ///
    /// # Errors
    /// As [`Volume::set_scrub_rate`].
    pub fn follow(&self, volume: &Volume, resilience: Resilience) -> Result<(), VolumeError> {
        if !self.is_usual.load(Ordering::Acquire) {
            return Ok(());
        }
        let is_worth_it = self.is_protected || resilience.compares();
        volume.set_scrub_rate(if is_worth_it { RATE } else { 0 })
    }
}

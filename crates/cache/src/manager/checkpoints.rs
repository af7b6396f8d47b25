//! Checkpoints of a cache that is in use, and regions that come back from one.
//!
//! Region after region: its writes are held, its bytes are copied to the file, its writes go on. If it was
//! not held all the while its copy is taken back and made again. So a region is in the file as it was at one
//! moment, with every write that was acknowledged before that; different regions at different moments,
//! in their order. Decision 83.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use cenote_fabric::{Time, Waker};
use cenote_pool::control::Window;

use super::Manager;
use super::saving::{CheckpointError, Checkpoints, Made, Saving, Step};
use crate::checkpoint::format::{self, Header};
use crate::checkpoint::restorer::{self, Restorer, Task};
use crate::checkpoint::saver::{Order, Saver, Told};
use crate::links::Caller;
use crate::owner::{Hold, HostIndex, Restored};

/// Times that a region is copied before the checkpoint is given up.
const TRIES_MAX: u32 = 8;

impl Manager {
    /// Lets it make checkpoints and use them; `caller` is how it reaches hosts for data.
    ///
    /// # Errors
    /// No descriptor is left, or no thread.
    pub fn enable_checkpoints(&mut self, caller: Caller) -> cenote_fabric::Result<()> {
        let waker = Waker::new()?;
        let restorer = Restorer::start(caller.clone(), waker.clone());
        let restorer = restorer
            .map_err(|error| cenote_fabric::Error::os("start a thread".to_owned(), error))?;
        self.checkpoints = Some(Checkpoints {
            caller,
            waker,
            saving: None,
            restorer,
            ends: std::collections::VecDeque::new(),
        });
        self.owner.expect_checkpoint(now_ms());
        Ok(())
    }

    /// Begins a checkpoint, which replaces what is at `path` when it is whole. Its end comes by
    /// [`Manager::take_checkpoint`]; regions that are lost from then on come back from it.
    ///
    /// # Errors
    /// `Busy`, `Off`, or the file cannot be made.
    pub fn begin_checkpoint(&mut self, path: &Path) -> Result<(), CheckpointError> {
        let header = Header {
            cache: self.settings.cache,
            region_bytes: self.settings.region_bytes(),
            begun_ms: now_ms(),
        };
        let checkpoints = self.checkpoints.as_mut().ok_or(CheckpointError::Off)?;
        if checkpoints.saving.is_some() {
            return Err(CheckpointError::Busy);
        }
        let (caller, waker) = (checkpoints.caller.clone(), checkpoints.waker.clone());
        let saver = Saver::begin(path, header, caller, waker).map_err(format::Error::from)?;
        checkpoints.saving = Some(Saving {
            path: path.to_owned(),
            saver,
            step: Step::Hold(0),
            tries: 0,
            made: Made {
                regions: 0,
                len_bytes: 0,
                longest_hold_ms: 0,
            },
            span: tracing::info_span!(
                "make checkpoint",
                cenote.cache = self.settings.cache as i64,
                cenote.regions = tracing::field::Empty,
                cenote.bytes = tracing::field::Empty,
                otel.status_description = tracing::field::Empty,
            ),
        });
        Ok(())
    }

    /// The end of a checkpoint.
    pub fn take_checkpoint(&mut self) -> Option<Result<Made, CheckpointError>> {
        self.checkpoints.as_mut()?.ends.pop_front()
    }

    /// Has regions that are lost from now on come back from the checkpoint at `path`; how many it has.
    ///
    /// # Errors
    /// `Off`; it is no checkpoint, or not of this cache.
    pub fn use_checkpoint(&mut self, path: &Path) -> Result<usize, CheckpointError> {
        let checkpoints = self.checkpoints.as_mut().ok_or(CheckpointError::Off)?;
        let region_bytes = self.settings.region_bytes();
        let (header, saved) = restorer::look(path, self.settings.cache, region_bytes)?;
        checkpoints.restorer.use_file(path, header);
        let count = saved.len();
        let times = saved.iter().map(|saved| (saved.region, saved.taken_ms));
        self.owner.use_checkpoint(times);
        Ok(count)
    }

    pub(super) fn checkpoint_fd(&self) -> Option<std::os::fd::RawFd> {
        use std::os::fd::{AsFd as _, AsRawFd as _};
        let checkpoints = self.checkpoints.as_ref()?;
        Some(checkpoints.waker.as_fd().as_raw_fd())
    }

    /// Takes what the threads said, and does what is next.
    pub(super) fn tend_checkpoints(&mut self, now: Time) {
        let Some(mut checkpoints) = self.checkpoints.take() else {
            return;
        };
        checkpoints.waker.clear();
        while let Some((request, end)) = checkpoints.restorer.poll() {
            let restored = match &end {
                Ok(taken_ms) => Restored::As(*taken_ms),
                Err(error) if error.is_of_checkpoint() => {
                    tracing::warn!(%error, "a region begins empty: the checkpoint does not have it");
                    Restored::Missing
                }
                Err(error) => {
                    tracing::warn!(%error, "a region has not come back from the checkpoint so far");
                    Restored::Again
                }
            };
            self.owner.handle_restored(now, request, restored);
        }
        if let Some(mut saving) = checkpoints.saving.take() {
            match self.go_on(now, &mut saving) {
                None => checkpoints.saving = Some(saving),
                Some(end) => {
                    match &end {
                        Ok(made) => {
                            saving
                                .span
                                .record("cenote.regions", i64::from(made.regions));
                            saving.span.record("cenote.bytes", made.len_bytes as i64);
                        }
                        Err(error) => {
                            let why = error.to_string();
                            saving.span.record("otel.status_description", &*why);
                        }
                    }
                    if let Step::Hold(region) | Step::Copy(region, ..) = saving.step {
                        self.owner.handle_release(now, region as usize);
                    }
                    checkpoints.ends.push_back(end);
                    self.checkpoints = Some(checkpoints);
                    return self.use_made(&saving.path);
                }
            }
        }
        self.checkpoints = Some(checkpoints);
    }

    fn use_made(&mut self, path: &Path) {
        let is_made = |checkpoints: &Checkpoints| matches!(checkpoints.ends.back(), Some(Ok(_)));
        if self.checkpoints.as_ref().is_some_and(is_made)
            && let Err(error) = self.use_checkpoint(path)
        {
            tracing::error!(%error, "a checkpoint that was made just now is not used");
        }
    }

    /// Its end, if that has come.
    fn go_on(&mut self, now: Time, saving: &mut Saving) -> Option<Result<Made, CheckpointError>> {
        loop {
            let is_going_on = match &saving.step {
                Step::Hold(region) => match self.hold(now, saving, *region) {
                    Ok(is_going_on) => is_going_on,
                    Err(error) => return Some(Err(error)),
                },
                Step::Copy(..) | Step::Finish => match saving.saver.poll() {
                    None => return None,
                    Some(Told::Broken(error)) => return Some(Err(error.into())),
                    Some(Told::Finished(Err(error))) => return Some(Err(error.into())),
                    Some(Told::Finished(Ok(len_bytes))) => {
                        saving.made.len_bytes = len_bytes;
                        return Some(Ok(saving.made));
                    }
                    Some(Told::Saved(end)) => {
                        if let Err(error) = self.take_saved(now, saving, end) {
                            return Some(Err(error));
                        }
                        true
                    }
                },
            };
            if !is_going_on {
                return None;
            }
        }
    }

    /// Holds a region and has it copied; false: it is not held yet.
    fn hold(
        &mut self,
        now: Time,
        saving: &mut Saving,
        region: u32,
    ) -> Result<bool, CheckpointError> {
        let at = region as usize;
        if at >= self.owner.region_count() {
            saving.saver.order(Order::Finish);
            saving.step = Step::Finish;
            return Ok(true);
        }
        if let Some(held) = self.owner.held(now, at) {
            let address = self.hosts[held.copy.host].config.address.clone();
            let taken_ms = now_ms();
            self.owner.handle_copied(region, taken_ms);
            saving.saver.order(Order::Save {
                region,
                taken_ms,
                address,
                windows: held.copy.windows.clone(),
            });
            saving.step = Step::Copy(region, held, now);
            return Ok(true);
        }
        if self.owner.is_holding(at) {
            return Ok(false);
        }
        match self.owner.handle_hold(now, at) {
            Hold::Begun => Ok(self.owner.held(now, at).is_some()),
            Hold::Busy => Ok(false),
            Hold::Nothing => {
                saving.step = Step::Hold(region + 1);
                Ok(true)
            }
            // The new file would replace its only copy. It may wait for a host without end.
            Hold::Lost => Err(CheckpointError::Region {
                region,
                why: "it is lost until it comes back from the checkpoint before, which stays"
                    .to_owned(),
            }),
        }
    }

    fn take_saved(
        &mut self,
        now: Time,
        saving: &mut Saving,
        end: Result<(), crate::checkpoint::bulk::Error>,
    ) -> Result<(), CheckpointError> {
        let Step::Copy(region, held, since) = std::mem::replace(&mut saving.step, Step::Finish)
        else {
            unreachable!("a copy was ordered");
        };
        let is_same = self.owner.held(now, region as usize).as_ref() == Some(&held);
        self.owner.handle_release(now, region as usize);
        saving.step = if end.is_ok() && is_same {
            saving.saver.order(Order::Keep);
            let held_ms = u64::try_from(now.since(since).as_millis()).unwrap_or(u64::MAX);
            saving.made.longest_hold_ms = saving.made.longest_hold_ms.max(held_ms);
            saving.made.regions += 1;
            saving.tries = 0;
            Step::Hold(region + 1)
        } else {
            saving.saver.order(Order::Discard);
            saving.tries += 1;
            if saving.tries >= TRIES_MAX {
                let why = match end {
                    Err(error) => error.to_string(),
                    Ok(()) => "it did not stay as it was".to_owned(),
                };
                return Err(CheckpointError::Region { region, why });
            }
            Step::Hold(region)
        };
        Ok(())
    }

    pub(super) fn restore(
        &mut self,
        now: Time,
        (request, region): (u64, u32),
        host: HostIndex,
        windows: Vec<Window>,
    ) {
        let address = self.hosts[host].config.address.clone();
        let task = Task {
            request,
            region,
            address,
            windows,
        };
        match &self.checkpoints {
            Some(checkpoints) => checkpoints.restorer.begin(task),
            None => self.owner.handle_restored(now, request, Restored::Missing),
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    // A clock before 1970 gives 0.
    u64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}

//! Words of owners, on one thread: gone by in turn, and answered once all threads go by them.
//!
//! A word about slabs waits for the stores that this thread has sent to their second copies: its
//! answer says that nothing from before it is under way, or names what nobody knows to have ended.

use std::collections::VecDeque;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_fabric::calls::{Answered, Call, CallId};
use cenote_proc::service::{DOUBTS_MAX, Doubt, Heard, Word, WriteState};

use super::super::directory::Notice;
use super::super::shared::{Heed, Taken};
use super::{Known, Worker};

/// Words that wait, in the order in which they came, and since when.
#[derive(Default)]
pub(super) struct HeldWords(VecDeque<(Notice, Taken, Time)>);

/// How long a word waits for stores before these count as lost. Arbitrary: many times what they
/// take, and so little that the word is answered and the next lease comes in time.
const HELD_MAX: Duration = Duration::from_millis(300);

impl Worker {
    pub(super) fn read_notice(&mut self, notice: Notice, taken: Taken) {
        let cache = notice.cache();
        let mut before = self.held_words.0.iter();
        let is_behind = before.any(|(other, ..)| other.cache() == cache);
        if !notice.is_leave() && (is_behind || self.is_flying(&notice)) {
            self.executor.stop_flights(cache, true);
            self.held_words.0.push_back((notice, taken, Time::now()));
            return;
        }
        self.go_by(notice, &taken);
    }

    /// Goes by the words that waited for what has landed since.
    pub(super) fn read_held(&mut self) {
        let mut flying = Vec::new();
        for _ in 0..self.held_words.0.len() {
            let Some((notice, taken, since)) = self.held_words.0.pop_front() else {
                return;
            };
            let cache = notice.cache();
            if self.is_flying(&notice) && self.now.since(since) >= HELD_MAX {
                self.executor.lose_flight(cache);
            }
            if flying.contains(&cache) || self.is_flying(&notice) {
                flying.push(cache);
                self.held_words.0.push_back((notice, taken, since));
                continue;
            }
            self.go_by(notice, &taken);
            let mut others = self.held_words.0.iter();
            if !others.any(|(other, ..)| other.cache() == cache) {
                self.executor.stop_flights(cache, false);
            }
        }
    }

    fn is_flying(&self, notice: &Notice) -> bool {
        let slots = match notice {
            Notice::Map { slots, .. } => Some(&slots[..]),
            Notice::Open(_)
            | Notice::Leave { .. }
            | Notice::Close { .. }
            | Notice::Write { .. }
            | Notice::Told { .. } => None,
        };
        self.executor.is_flying(notice.cache(), slots)
    }

    fn go_by(&mut self, notice: Notice, taken: &Taken) {
        let cache = notice.cache();
        let is_end = matches!(notice, Notice::Close { .. });
        let late = self.hear(notice);
        // Nothing runs here by the older word any more.
        self.act();
        let doubt = |(slab, generation)| {
            let slab = u32::try_from(slab).ok()?;
            Some(Doubt { slab, generation })
        };
        let said = (late, self.executor.write_state(cache));
        let doubts = self.executor.doubts(cache).filter_map(doubt);
        taken.note(&self.shared, said, doubts);
        if is_end {
            self.executor.forget_doubts(cache);
        }
    }

    /// All threads go by a word of this thread's.
    pub(super) fn word_taken(&mut self, word: u64, heed: Heed) {
        let Some((call, missing)) = self.words.remove(&word) else {
            return;
        };
        let mut missing = missing.saturating_add(heed.late);
        if heed.doubts.len() > DOUBTS_MAX {
            // It cannot say all of it: it loses its lease, and all that is here is doubted.
            missing = missing.max(1);
        }
        let heard = Heard::Taken {
            now: Time::now().0,
            missing,
            state: heed.state,
            doubts: heed.doubts.into_iter().take(DOUBTS_MAX).collect(),
        };
        self.answer_word(call, &heard);
    }

    /// Goes by a word from here on; of how many slabs a newer one is known.
    fn hear(&mut self, notice: Notice) -> u32 {
        let mut late = 0;
        match notice {
            Notice::Open(cache) => {
                let id = cache.id();
                let known = self.caches.get_mut(&id);
                match known.filter(|known| cache.is_as_before(&known.cache)) {
                    Some(known) => known.cache = cache,
                    // All of it is said again: by a follower, or of another number of slabs.
                    None => {
                        self.executor.handle_cache(id, cache.table());
                        let writes_until = Time(0);
                        let known = Known {
                            cache,
                            writes_until,
                        };
                        self.caches.insert(id, known);
                    }
                }
            }
            Notice::Map {
                cache,
                writes_until,
                slots,
            } => {
                for (slab, slot) in slots.iter() {
                    let holds = self.executor.handle_map(cache, *slab, slot.clone());
                    late += u32::from(!holds);
                }
                if let Some(known) = self.caches.get_mut(&cache)
                    && writes_until > known.writes_until
                {
                    known.writes_until = writes_until;
                    self.executor.handle_lease(cache, writes_until);
                }
            }
            Notice::Leave { cache, successor } => self.executor.handle_leave(cache, successor),
            Notice::Write { cache } => self.executor.handle_permit(cache),
            Notice::Told { cache, doubts } => {
                for doubt in doubts.iter() {
                    let slab = doubt.slab as usize;
                    self.executor.handle_told(cache, slab, doubt.generation);
                }
            }
            Notice::Close { cache } => {
                self.caches.remove(&cache);
                self.executor.handle_deleted(cache);
            }
        }
        late
    }

    pub(super) fn take_word(&mut self, call: &Call<'_>, word: Word) -> Answered {
        self.words_heard += 1;
        let number = self.words_heard;
        let taken = Taken::new(self.index, number);
        let mut told = false;
        let heard = self.shared.directory.hear(call.client.0, word, |notice| {
            told = true;
            self.shared.tell_all(&notice, &taken);
        });
        match heard {
            // Answered once every thread goes by it.
            Ok(missing) if told => {
                self.words.insert(number, (call.id, missing));
                taken.told(&self.shared);
            }
            Ok(missing) => {
                let heard = Heard::Taken {
                    now: Time::now().0,
                    missing,
                    state: WriteState::Idle,
                    doubts: Vec::new(),
                };
                self.answer_word(call.id, &heard);
            }
            Err(why) => self.answer_word(call.id, &Heard::Refused(why)),
        }
        Answered::Later
    }

    fn answer_word(&mut self, call: CallId, heard: &Heard) {
        let mut bytes = Vec::new();
        heard.write(&mut bytes);
        self.answers.push((call, bytes));
    }
}

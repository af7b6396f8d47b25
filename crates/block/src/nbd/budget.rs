//! Bytes that requests in flight may take: an allowance for each connection, and one pool for all.
//!
//! A connection's [`Account`] always has [`ALLOWANCE_BYTES`], which nobody can take from it. What it
//! needs beyond comes out of the server's [`Pool`] and returns there, so that memory is bounded in all
//! and a few clients with long requests cannot stop the short ones of the others.
//!
//! Concurrency: an account belongs to a connection; the pool is shared by all workers, and locked for a few
//! instructions by requests that pass their connection's allowance, not by others.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What every connection may have in flight whatever others do; two pieces of a long WRITE.
pub(crate) const ALLOWANCE_BYTES: usize = 2 << 20;

/// The bytes that are shared by all connections of a server. Who waits for some is served in the order of
/// coming: a long request is not passed by short ones for ever.
pub(crate) struct Pool {
    state: Mutex<State>,
    /// Whether anybody stands in line.
    is_wanted: AtomicBool,
    /// Number of the next account.
    next: AtomicU64,
    /// Tells all workers that somebody waits, or that it may be the turn of who does.
    ring: Box<dyn Fn() + Send + Sync>,
}

struct State {
    free_bytes: usize,
    /// Accounts that were refused, the first first.
    line: VecDeque<u64>,
}

impl Pool {
    /// A pool of `bytes`, which calls `ring` when somebody asks for more than there is, and when some
    /// are free again after that.
    pub(crate) fn new(bytes: usize, ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                free_bytes: bytes,
                line: VecDeque::new(),
            }),
            is_wanted: AtomicBool::new(false),
            next: AtomicU64::new(0),
            ring: Box::new(ring),
        })
    }

    /// Whether a connection waits for bytes that others have.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    /// Takes `bytes` if there are as many and nobody came before; stands in line otherwise.
    fn take(&self, account: u64, bytes: usize) -> bool {
        let mut state = self.lock();
        if state.is_turn_of(account, bytes) {
            state.free_bytes -= bytes;
            if state.line.pop_front().is_some() {
                self.line_moved(state);
            }
            return true;
        }
        if !state.line.contains(&account) {
            state.line.push_back(account);
            let is_first = state.line.len() == 1;
            self.is_wanted.store(true, Ordering::SeqCst);
            drop(state);
            if is_first {
                (self.ring)();
            }
        }
        false
    }

    fn could_take(&self, account: u64, bytes: usize) -> bool {
        self.lock().is_turn_of(account, bytes)
    }

    /// Whether others stand in line behind an account that is first.
    fn holds_up(&self, account: u64) -> bool {
        let state = self.lock();
        state.line.front() == Some(&account) && state.line.len() > 1
    }

    fn give(&self, bytes: usize) {
        let mut state = self.lock();
        state.free_bytes += bytes;
        self.line_moved(state);
    }

    /// Takes an account out of the line, wherever in it.
    fn leave(&self, account: u64) {
        let mut state = self.lock();
        let place = state.line.iter().position(|&waiting| waiting == account);
        if place.and_then(|place| state.line.remove(place)).is_some() {
            self.line_moved(state);
        }
    }

    /// It may be the turn of who is first now.
    fn line_moved(&self, state: MutexGuard<'_, State>) {
        let is_wanted = !state.line.is_empty();
        self.is_wanted.store(is_wanted, Ordering::SeqCst);
        drop(state);
        if is_wanted {
            (self.ring)();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_turn_of(&self, account: u64, bytes: usize) -> bool {
        self.line.front().is_none_or(|&first| first == account) && bytes <= self.free_bytes
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("is_wanted", &self.is_wanted)
            .finish_non_exhaustive()
    }
}

/// What one connection has in flight. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Account {
    pool: Arc<Pool>,
    /// Which of the pool's accounts it is.
    number: u64,
    /// Whether it stands in the pool's line.
    waits: bool,
    used_bytes: usize,
    /// Of the pool's; at least what `used_bytes` has beyond the allowance, unless charged.
    drawn_bytes: usize,
    /// Most that the connection may use, whatever the pool has.
    limit_bytes: usize,
}

impl Account {
    /// Nothing in flight; a request of any size is taken when it is alone, others up to `limit_bytes`.
    pub(crate) fn new(pool: Arc<Pool>, limit_bytes: usize) -> Self {
        Self {
            number: pool.next.fetch_add(1, Ordering::Relaxed),
            pool,
            waits: false,
            used_bytes: 0,
            drawn_bytes: 0,
            limit_bytes,
        }
    }

    /// Takes `bytes`, or none when they are not to be had now.
    pub(crate) fn try_take(&mut self, bytes: usize) -> bool {
        let missing = self.missing(bytes);
        if !self.fits(bytes) || missing == 0 {
            // What it would be given it could not use.
            self.leave_line();
            if !self.fits(bytes) {
                return false;
            }
        } else {
            self.waits = !self.pool.take(self.number, missing);
            if self.waits {
                return false;
            }
        }
        self.drawn_bytes += missing;
        self.used_bytes += bytes;
        true
    }

    /// Whether [`Account::try_take`] would succeed, as far as can be told without trying.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let missing = self.missing(bytes);
        self.fits(bytes) && (missing == 0 || self.pool.could_take(self.number, missing))
    }

    /// Counts bytes that were taken without asking, such as those of a short answer.
    pub(crate) fn charge(&mut self, bytes: usize) {
        self.used_bytes += bytes;
    }

    /// Gives bytes back that were taken or charged.
    pub(crate) fn give(&mut self, bytes: usize) {
        self.used_bytes -= bytes;
        let needed = self.used_bytes.saturating_sub(ALLOWANCE_BYTES);
        let spare = self.drawn_bytes.saturating_sub(needed);
        if spare > 0 {
            self.drawn_bytes -= spare;
            self.pool.give(spare);
        }
    }

    /// Whether others wait for what this connection has of the pool, or behind it.
    pub(crate) fn is_in_the_way(&self) -> bool {
        let is_ahead = || self.waits && self.pool.holds_up(self.number);
        self.pool.is_wanted() && (self.drawn_bytes > 0 || is_ahead())
    }

    fn leave_line(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.pool.leave(self.number);
        }
    }

    fn fits(&self, bytes: usize) -> bool {
        self.used_bytes == 0 || self.used_bytes + bytes <= self.limit_bytes
    }

    fn missing(&self, bytes: usize) -> usize {
        (self.used_bytes + bytes).saturating_sub(ALLOWANCE_BYTES + self.drawn_bytes)
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.leave_line();
        if self.drawn_bytes > 0 {
            self.pool.give(self.drawn_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    fn pool(bytes: usize) -> (Arc<Pool>, Arc<AtomicUsize>) {
        let rings = Arc::new(AtomicUsize::new(0));
        let heard = Arc::clone(&rings);
        let pool = Pool::new(bytes, move || {
            heard.fetch_add(1, Ordering::SeqCst);
        });
        (pool, rings)
    }

    #[test]
    fn a_dry_pool_leaves_everybody_an_allowance_and_rings_when_it_has_bytes_again() {
        let (pool, rings) = pool(62 * MIB);
        let mut greedy = Account::new(Arc::clone(&pool), 64 * MIB);
        assert!(greedy.try_take(64 * MIB));
        let mut other = Account::new(Arc::clone(&pool), 64 * MIB);
        assert!(other.try_take(ALLOWANCE_BYTES));
        assert!(!greedy.is_in_the_way());
        assert!(!other.try_take(1));
        assert!(greedy.is_in_the_way() && !other.is_in_the_way());
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        assert!(!other.try_take(1));
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        greedy.give(64 * MIB);
        assert_eq!(rings.load(Ordering::SeqCst), 2);
        assert!(other.try_take(62 * MIB));
        drop(other);
        assert_eq!(pool.lock().free_bytes, 62 * MIB);
        assert!(!pool.is_wanted());
    }

    #[test]
    fn a_long_request_is_not_passed_by_short_ones_that_come_later() {
        let (pool, rings) = pool(62 * MIB);
        let mut accounts: Vec<_> = (0..4)
            .map(|_| Account::new(Arc::clone(&pool), 64 * MIB))
            .collect();
        let [early, long, short, last] = &mut accounts[..] else {
            unreachable!("four")
        };
        assert!(early.try_take(4 * MIB));
        assert!(!long.try_take(64 * MIB));
        // There is room, and it is not theirs; what nobody can take from them is.
        assert!(!short.has_room(4 * MIB) && !short.try_take(4 * MIB));
        assert!(!last.try_take(4 * MIB));
        assert!(short.try_take(MIB));
        short.give(MIB);
        assert!(
            !short.try_take(4 * MIB),
            "it left the line, and came again behind the last"
        );
        assert!(long.is_in_the_way() && early.is_in_the_way());
        assert!(!short.is_in_the_way());
        let before = rings.load(Ordering::SeqCst);
        early.give(4 * MIB);
        assert!(rings.load(Ordering::SeqCst) > before);
        assert!(!last.has_room(4 * MIB), "others are first");
        assert!(long.has_room(64 * MIB) && long.try_take(64 * MIB));
        let before = rings.load(Ordering::SeqCst);
        long.give(64 * MIB);
        assert!(rings.load(Ordering::SeqCst) > before);
        assert!(!short.try_take(4 * MIB) && last.try_take(4 * MIB));
        assert!(short.try_take(4 * MIB));
        assert!(!pool.is_wanted());
    }

    #[test]
    fn who_is_first_and_goes_lets_the_next_have_its_turn() {
        let (pool, rings) = pool(4 * MIB);
        let mut long = Account::new(Arc::clone(&pool), 64 * MIB);
        assert!(!long.try_take(64 * MIB));
        let mut short = Account::new(Arc::clone(&pool), 64 * MIB);
        assert!(!short.try_take(4 * MIB));
        let before = rings.load(Ordering::SeqCst);
        drop(long);
        assert!(rings.load(Ordering::SeqCst) > before);
        assert!(short.try_take(4 * MIB));
        assert!(!pool.is_wanted());
    }

    #[test]
    fn one_long_request_is_taken_when_it_is_alone() {
        let (pool, _) = pool(1 << 30);
        let mut account = Account::new(pool, 8 * MIB);
        assert!(account.try_take(64 * MIB));
        assert!(!account.try_take(1));
    }

    proptest! {
        /// Nothing is lost and nothing is taken twice, whatever the accounts do.
        #[test]
        fn the_pool_and_the_accounts_add_up(
            steps in prop::collection::vec((0usize..3, any::<bool>(), 1usize..5 * MIB), 1..200),
        ) {
            let total = 16 * MIB;
            let (pool, _) = pool(total);
            let mut accounts: Vec<_> = (0..3)
                .map(|_| (Account::new(Arc::clone(&pool), 12 * MIB), Vec::new()))
                .collect();
            for (index, takes, bytes) in steps {
                let (account, taken) = &mut accounts[index];
                if takes && account.try_take(bytes) {
                    taken.push(bytes);
                } else if let Some(bytes) = taken.pop() {
                    account.give(bytes);
                }
                let drawn: usize = accounts.iter().map(|(account, _)| account.drawn_bytes).sum();
                prop_assert_eq!(pool.lock().free_bytes + drawn, total);
                for (account, taken) in &accounts {
                    prop_assert_eq!(account.used_bytes, taken.iter().sum::<usize>());
                    prop_assert!(account.used_bytes <= ALLOWANCE_BYTES + account.drawn_bytes);
                }
            }
        }
    }
}

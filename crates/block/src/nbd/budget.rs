//! Bytes that requests in flight may take: an allowance for each connection, and one pool for all.
//!
//! A connection's [`Account`] always has [`ALLOWANCE_BYTES`], which nobody can take from it. What it
//! needs beyond comes out of the server's [`Pool`] and returns there, so that memory is bounded in all
//! and a few clients with long requests cannot stop the short ones of the others.
//!
//! Concurrency: an account belongs to a connection; the pool is shared by all workers, lock-free.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What every connection may have in flight whatever others do; two pieces of a long WRITE.
pub(crate) const ALLOWANCE_BYTES: usize = 2 << 20;

/// The bytes that are shared by all connections of a server.
pub(crate) struct Pool {
    free_bytes: AtomicUsize,
    /// Somebody was refused since the last return.
    is_wanted: AtomicBool,
    /// Tells all workers that somebody waits, or that there is room again.
    ring: Box<dyn Fn() + Send + Sync>,
}

impl Pool {
    /// A pool of `bytes`, which calls `ring` when somebody asks for more than there is, and when some
    /// are free again after that.
    pub(crate) fn new(bytes: usize, ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            free_bytes: AtomicUsize::new(bytes),
            is_wanted: AtomicBool::new(false),
            ring: Box::new(ring),
        })
    }

    /// Whether a connection waits for bytes that others have.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::SeqCst)
    }

    fn take(&self, bytes: usize) -> bool {
        self.try_take(bytes) || {
            // Said before the second look: a return in between rings.
            let was_wanted = self.is_wanted.swap(true, Ordering::SeqCst);
            let taken = self.try_take(bytes);
            if !taken && !was_wanted {
                (self.ring)();
            }
            taken
        }
    }

    fn try_take(&self, bytes: usize) -> bool {
        self.free_bytes
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |free| {
                free.checked_sub(bytes)
            })
            .is_ok()
    }

    fn give(&self, bytes: usize) {
        self.free_bytes.fetch_add(bytes, Ordering::SeqCst);
        if self.is_wanted.swap(false, Ordering::SeqCst) {
            (self.ring)();
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("free_bytes", &self.free_bytes)
            .field("is_wanted", &self.is_wanted)
            .finish_non_exhaustive()
    }
}

/// What one connection has in flight. Dropping it gives everything back.
#[derive(Debug)]
pub(crate) struct Account {
    pool: Arc<Pool>,
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
            pool,
            used_bytes: 0,
            drawn_bytes: 0,
            limit_bytes,
        }
    }

    /// Takes `bytes`, or none when they are not to be had now.
    pub(crate) fn try_take(&mut self, bytes: usize) -> bool {
        if !self.fits(bytes) {
            return false;
        }
        let missing = self.missing(bytes);
        if missing > 0 && !self.pool.take(missing) {
            return false;
        }
        self.drawn_bytes += missing;
        self.used_bytes += bytes;
        true
    }

    /// Whether [`Account::try_take`] would succeed, as far as can be told without trying.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let free = self.pool.free_bytes.load(Ordering::SeqCst);
        self.fits(bytes) && self.missing(bytes) <= free
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

    /// Whether others wait for what this connection has of the pool.
    pub(crate) fn is_in_the_way(&self) -> bool {
        self.drawn_bytes > 0 && self.pool.is_wanted()
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
        if self.drawn_bytes > 0 {
            self.pool.give(self.drawn_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(pool.free_bytes.load(Ordering::SeqCst), 62 * MIB);
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
                prop_assert_eq!(pool.free_bytes.load(Ordering::SeqCst) + drawn, total);
                for (account, taken) in &accounts {
                    prop_assert_eq!(account.used_bytes, taken.iter().sum::<usize>());
                    prop_assert!(account.used_bytes <= ALLOWANCE_BYTES + account.drawn_bytes);
                }
            }
        }
    }
}

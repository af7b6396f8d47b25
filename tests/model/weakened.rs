//! What the model checker has in place of `std::sync`, weakened in one place at a time.
//!
//! A test program gives these to a file of ours as its `crate::sync`. Each ordering and each wake-up in that
//! file is a [`Site`]. [`lines`] takes them away one after the other, and says which of them the
//! model misses. One that it does not miss is needless, or the model is too weak to see it.
//!
//! The checker takes accesses that are `SeqCst` for acquire and release. Here a fence stands behind each that
//! stores, and none at those that only load: as compilers for x86-64 do it, and enough where one stores
//! and then loads what another stores.

#![allow(dead_code, unused_imports, reason = "each program needs some of it")]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::Location;

use loom::sync::atomic as checked;

pub use std::sync::atomic::Ordering;

/// A place in a file that is checked.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Site {
    file: &'static str,
    line: u32,
    column: u32,
    /// 1: the ordering of an exchange that fails.
    part: u8,
}

#[derive(Default)]
struct Sites {
    seen: BTreeSet<Site>,
    weakened: Option<Site>,
}

thread_local! {
    // All threads of a model run on the thread that checks it.
    static SITES: RefCell<Sites> = RefCell::default();
}

/// Whether the caller's place is as it is written.
#[track_caller]
fn is_whole(part: u8) -> bool {
    let at = Location::caller();
    let (file, line, column) = (at.file(), at.line(), at.column());
    let site = Site {
        file,
        line,
        column,
        part,
    };
    SITES.with_borrow_mut(|sites| {
        sites.seen.insert(site);
        sites.weakened != Some(site)
    })
}

#[track_caller]
fn now(ordering: Ordering, part: u8) -> Ordering {
    match ordering {
        Ordering::Relaxed => ordering,
        _ if is_whole(part) => ordering,
        _ => Ordering::Relaxed,
    }
}

/// A file that is checked: the end of its path, and its text.
#[derive(Clone, Copy)]
pub struct Source(pub &'static str, pub &'static str);

/// The lines of a file with an ordering or a wake-up, one for each.
#[derive(Debug, Default)]
pub struct Lines {
    /// Without these a model did not hold.
    pub needed: Vec<String>,
    /// The models did not miss these.
    pub unneeded: Vec<String>,
}

impl Lines {
    /// # Panics
    /// The models did not miss one of `lines`, or did not come by it.
    pub fn assert_needed(&self, lines: &[&str]) {
        for line in lines {
            let is_needed = self.needed.iter().any(|one| one == line);
            assert!(is_needed, "{line}: {self:#?}");
        }
    }
}

/// Goes through every interleaving of `model` as the code is, then without each of its orderings and
/// wake-ups in `source`: which of them are missed. `test` is the name of the test that calls.
///
/// # Panics
/// If the model does not hold as the code is.
pub fn lines(test: &str, source: Source, model: impl Fn()) -> Lines {
    if let Ok(wanted) = std::env::var(VARIANT) {
        // All places are known before one of them is weakened.
        model();
        let site = SITES.with_borrow(|sites| {
            let mut seen = sites.seen.iter();
            seen.find(|site| format!("{site:?}") == wanted).copied()
        });
        let site = site.expect("a place that was seen before");
        SITES.with_borrow_mut(|sites| sites.weakened = Some(site));
        model();
        std::process::exit(HELD);
    }
    SITES.with_borrow_mut(|sites| *sites = Sites::default());
    model();
    let mut seen = SITES.with_borrow(|sites| sites.seen.clone());
    seen.retain(|site| site.file.ends_with(source.0));
    let mut lines = Lines::default();
    for site in &seen {
        let line = source.1.lines().nth(site.line as usize - 1).unwrap_or("?");
        let part = ["", " (failed)"][usize::from(site.part)];
        let line = format!("{}{part}", line.trim());
        match held(test, &format!("{site:?}")) {
            true => lines.unneeded.push(line),
            false => lines.needed.push(line),
        }
    }
    lines
}

/// Whether a model that is wrong on purpose is found so. `test` is the name of the test that calls.
pub fn is_found(test: &str, model: impl Fn()) -> bool {
    if std::env::var_os(VARIANT).is_some() {
        model();
        std::process::exit(HELD);
    }
    !held(test, "wrong")
}

/// Names what a process is to weaken.
const VARIANT: &str = "CENOTE_MODEL_VARIANT";
/// What the checker says of a loop with no end.
const GIVEN_UP: &str = "exceeded maximum number of branches";
/// How it ends if the model held.
const HELD: i32 = 42;

/// Runs a test of this program once more, with something weakened: whether its model held. In a process of
/// its own, since the checker cannot clean up behind a deadlock, and aborts.
fn held(test: &str, variant: &str) -> bool {
    let program = std::env::current_exe().expect("it runs");
    let output = std::process::Command::new(program)
        .args([test, "--exact", "--nocapture"])
        .env(VARIANT, variant)
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("it runs again");
    let said = String::from_utf8_lossy(&output.stderr);
    let is_found = ["panicked at", "SIGABRT"]
        .iter()
        .any(|word| said.contains(word))
        // A loop that the checker gave up says nothing.
        && !said.contains(GIVEN_UP);
    let code = output.status.code();
    assert!(
        code == Some(HELD) || (code != Some(0) && is_found),
        "{:?}: {said}",
        output.status
    );
    code == Some(HELD)
}

/// A fence of the language, unless it is weakened.
#[track_caller]
pub fn fence(ordering: Ordering) {
    match now(ordering, 0) {
        Ordering::Relaxed => {}
        ordering => checked::fence(ordering),
    }
}

/// What is behind an access that stores.
fn in_order(ordering: Ordering) {
    if ordering == Ordering::SeqCst {
        checked::fence(ordering);
    }
}

macro_rules! atomic {
    ($name:ident $(<$of:ident>)?, $value:ty) => {
        #[derive(Debug)]
        pub struct $name $(<$of>)? (checked::$name $(<$of>)?);

        impl $(<$of>)? $name $(<$of>)? {
            pub fn new(value: $value) -> Self {
                Self(checked::$name::new(value))
            }

            #[track_caller]
            pub fn load(&self, ordering: Ordering) -> $value {
                self.0.load(now(ordering, 0))
            }

            #[track_caller]
            pub fn store(&self, value: $value, ordering: Ordering) {
                let ordering = now(ordering, 0);
                self.0.store(value, ordering);
                in_order(ordering);
            }

            #[track_caller]
            pub fn swap(&self, value: $value, ordering: Ordering) -> $value {
                let ordering = now(ordering, 0);
                let before = self.0.swap(value, ordering);
                in_order(ordering);
                before
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let (success, failure) = (now(success, 0), now(failure, 1));
                let outcome = self.0.compare_exchange(current, new, success, failure);
                in_order(if outcome.is_ok() { success } else { failure });
                outcome
            }
        }
    };
}

macro_rules! integer {
    ($name:ident, $value:ty) => {
        atomic!($name, $value);

        impl $name {
            #[track_caller]
            pub fn fetch_add(&self, value: $value, ordering: Ordering) -> $value {
                let ordering = now(ordering, 0);
                let before = self.0.fetch_add(value, ordering);
                in_order(ordering);
                before
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $value, ordering: Ordering) -> $value {
                let ordering = now(ordering, 0);
                let before = self.0.fetch_sub(value, ordering);
                in_order(ordering);
                before
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $value, ordering: Ordering) -> $value {
                let ordering = now(ordering, 0);
                let before = self.0.fetch_max(value, ordering);
                in_order(ordering);
                before
            }
        }
    };
}

integer!(AtomicU8, u8);
integer!(AtomicU32, u32);
integer!(AtomicU64, u64);
integer!(AtomicUsize, usize);
atomic!(AtomicBool, bool);
atomic!(AtomicPtr<T>, *mut T);

/// A condition on which a wake-up may be lost, and no wait ends by itself.
#[derive(Debug)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    #[track_caller]
    pub fn notify_one(&self) {
        if is_whole(0) {
            self.0.notify_one();
        }
    }

    /// Waits until it is woken, however long that is.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: loom::sync::MutexGuard<'a, T>,
        timeout: std::time::Duration,
    ) -> std::sync::LockResult<(loom::sync::MutexGuard<'a, T>, loom::sync::WaitTimeoutResult)> {
        self.0.wait_timeout(guard, timeout)
    }
}

pub use loom::sync::{Arc, Mutex, MutexGuard};
pub use loom::thread::yield_now;

//! SIGTERM and SIGINT as a flag and a call, for the commands that serve until told to stop; and
//! SIGHUP as another call, for those that have something to do then.
//!
//! The signals are blocked before the first thread starts, and one thread waits
//! for them; no code runs in a signal handler. SIGINT and SIGHUP stay ignored where whoever started
//! this process ignored them, as `nohup` and the `&` of a script do.
#![allow(unsafe_code, reason = "signal masks have no safe wrapper in std")]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, poll};

/// A signal that comes so soon after the first one is the same wish: `timeout` sends each twice, to
/// the process and to its group.
const REPEATED: Duration = Duration::from_millis(500);

/// Held while a signal is taken and acted on.
static TAKING: Mutex<()> = Mutex::new(());

/// Keeps signals from being taken by [`on_stop`] and its like until it is dropped: those that come
/// stay pending, also for a program that this process becomes meanwhile.
pub fn hold() -> MutexGuard<'static, ()> {
    TAKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has a reader of standard output that goes away end this process, as it does other tools. Not for
/// processes that have something to put in order when they end.
pub fn end_with_the_reader() {
    // SAFETY: no handler is installed; nothing else in this process has a say in this signal.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Has the kernel keep how each child ended until it is asked. Where whoever started this process
/// ignored SIGCHLD, waiting for a child would fail once it has ended.
pub fn heed_children() {
    // SAFETY: no handler is installed; nothing else in this process has a say in this signal.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}

/// Blocks SIGTERM, and of SIGINT and SIGHUP what is not ignored; the first to come sets the flag and
/// calls `then`. The second, unless it comes together with the first, ends the process at once.
///
/// Call it before any thread starts: threads inherit the mask.
///
/// # Errors
/// The mask cannot be set, or the thread not started.
pub fn on_stop(then: impl FnOnce() + Send + 'static) -> Result<Arc<AtomicBool>> {
    watch(|_| then(), None, || {})
}

/// As [`on_stop`]; the second signal calls `in_haste` before it ends the process, while every
/// other thread may be anywhere.
///
/// # Errors
/// As [`on_stop`].
pub fn on_stop_or_haste(
    then: impl FnOnce() + Send + 'static,
    in_haste: impl FnOnce() + Send + 'static,
) -> Result<Arc<AtomicBool>> {
    watch(|_| then(), None, in_haste)
}

/// As [`on_stop`], but SIGHUP only calls `on_hangup`, each time; `then` learns which signal it was.
///
/// # Errors
/// As [`on_stop`].
pub fn on_stop_or_hangup(
    then: impl FnOnce(i32) + Send + 'static,
    on_hangup: impl FnMut() + Send + 'static,
) -> Result<Arc<AtomicBool>> {
    watch(then, Some(Box::new(on_hangup)), || {})
}

fn watch(
    then: impl FnOnce(i32) + Send + 'static,
    mut on_hangup: Option<Box<dyn FnMut() + Send>>,
    in_haste: impl FnOnce() + Send + 'static,
) -> Result<Arc<AtomicBool>> {
    let set = stop_signals();
    // SAFETY: `set` is initialised; the old mask is not asked for.
    let result =
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
    if result != 0 {
        return Err(io::Error::from_raw_os_error(result)).context("block stop signals");
    }
    let pending = pending(&set).context("look at pending signals")?;
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let mut wait = || loop {
                // It stays pending; that the wait was interrupted is seen below.
                poll(&mut [PollFd::new(&pending, PollFlags::IN)], None).ok();
                // Who holds signals finds each either pending or acted on.
                let _taking = hold();
                match (take(&set), &mut on_hangup) {
                    (None, _) => {}
                    (Some(libc::SIGHUP), Some(on_hangup)) => on_hangup(),
                    (Some(signal), _) => {
                        flag.store(true, Ordering::SeqCst);
                        return signal;
                    }
                }
            };
            let first = wait();
            tracing::info!(signal = first, "stopping");
            then(first);
            let told = Instant::now();
            let second = loop {
                let next = wait();
                if told.elapsed() >= REPEATED {
                    break next;
                }
            };
            in_haste();
            std::process::exit(128 + second);
        })
        .context("start the signal thread")?;
    Ok(stop)
}

/// Starts something while this thread takes no signals: threads that it starts never take one. For threads
/// from before [`on_stop`].
#[cfg_attr(
    not(feature = "traces"),
    expect(dead_code, reason = "traces start such a thread")
)]
pub(crate) fn without<T>(start: impl FnOnce() -> T) -> T {
    let mut all = std::mem::MaybeUninit::uninit();
    let mut before = std::mem::MaybeUninit::uninit();
    // SAFETY: `all` is writable; sigfillset initialises all of it.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: `all` is initialised above; `before` is writable.
    let failed =
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
    let started = start();
    if failed == 0 {
        // SAFETY: the call above filled `before`; the mask of now is not asked for.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut());
        }
    }
    started
}

/// Linux keeps a blocked signal for who waits for it, also one that is ignored: ignored ones are not
/// in the set.
fn stop_signals() -> libc::sigset_t {
    let ignorable = [libc::SIGINT, libc::SIGHUP].into_iter();
    let heeded = ignorable.filter(|signal| !is_ignored(*signal));
    let signals: Vec<i32> = std::iter::once(libc::SIGTERM).chain(heeded).collect();
    set_of(&signals)
}

/// Whether whoever started this process had it ignore the signal: nothing here does.
fn is_ignored(signal: i32) -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is set, and `action` is writable.
    let failed = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    // SAFETY: the kernel filled it; zeros are right for all of its fields besides.
    let action = unsafe { action.assume_init() };
    failed == 0 && action.sa_sigaction == libc::SIG_IGN
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: `set` is writable; sigemptyset initialises all of it.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: `set` is initialised above and `signal` is a valid number.
        unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) };
    }
    // SAFETY: initialised above.
    unsafe { set.assume_init() }
}

/// A descriptor that is readable while one of the signals is pending.
fn pending(set: &libc::sigset_t) -> io::Result<OwnedFd> {
    // SAFETY: `set` is initialised; no descriptor is given.
    let fd = unsafe { libc::signalfd(-1, std::ptr::from_ref(set), libc::SFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one that is pending.
fn take(set: &libc::sigset_t) -> Option<i32> {
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both sets of numbers are valid for the length of the call; nothing else is wanted.
    let signal = unsafe {
        libc::sigtimedwait(
            std::ptr::from_ref(set),
            std::ptr::null_mut(),
            &raw const now,
        )
    };
    (signal > 0).then_some(signal)
}

/// Signals that a program that this process runs gets instead of it.
const FORWARDED: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// Passes signals on to a program. What the terminal sends goes to the program anyway.
pub struct Forwarding {
    /// Held while the program is started and while a signal is passed on.
    target: Arc<Mutex<Target>>,
}

/// Whose signals they are.
#[derive(Clone, Copy)]
enum Target {
    /// This process's, which ends: there is no program yet.
    Own,
    /// A child's, that nobody has waited for.
    Program(i32),
    /// Nobody's for [`CLEANUP`] since then, and this process's afterwards: the program has ended.
    Ended(Instant),
}

/// What follows the program's end is left to end by itself for so long: who signals a whole group, as
/// `timeout` does, or twice, means the program. Arbitrary.
const CLEANUP: Duration = Duration::from_secs(10);

impl Forwarding {
    /// Blocks them, and waits for them in a thread. Before there is a program they end this process.
    ///
    /// # Errors
    /// The mask cannot be set, or the thread not started.
    pub fn begin() -> Result<Self> {
        let set = set_of(&FORWARDED);
        // SAFETY: `set` is initialised; the old mask is not asked for.
        let result =
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if result != 0 {
            return Err(io::Error::from_raw_os_error(result)).context("block signals");
        }
        let target = Arc::new(Mutex::new(Target::Own));
        let known = Arc::clone(&target);
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                loop {
                    let (signal, is_terminals) = wait_for(&set);
                    let target = known.lock().unwrap_or_else(PoisonError::into_inner);
                    match *target {
                        Target::Program(_) if is_terminals => {}
                        // SAFETY: the number is that of a child that nobody has waited for.
                        Target::Program(pid) => drop(unsafe { libc::kill(pid, signal) }),
                        Target::Ended(at) if at.elapsed() < CLEANUP => {}
                        _ if [libc::SIGCONT, libc::SIGWINCH].contains(&signal) => {}
                        _ if is_ignored(signal) => {}
                        _ => std::process::exit(128 + signal),
                    }
                }
            })
            .context("start the signal thread")?;
        Ok(Self { target })
    }

    /// Starts a program. A signal that comes meanwhile is passed on to it: ending this process would
    /// leave it alone.
    ///
    /// # Errors
    /// As `start`.
    pub fn to(&self, start: impl FnOnce() -> Result<Child>) -> Result<Child> {
        let mut target = self.target();
        let child = start()?;
        *target = Target::Program(child.id() as i32);
        Ok(child)
    }

    /// Waits for the program's end. From some seconds after that on signals end this process.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        let ended = || {
            // SAFETY: the structure is numbers, for which 0 is right, and valid for the call.
            unsafe {
                let mut info = std::mem::zeroed();
                let options = libc::WEXITED | libc::WNOWAIT;
                libc::waitid(libc::P_PID, child.id(), &raw mut info, options)
            }
        };
        // Its number is nobody else's before it is waited for in earnest.
        while ended() != 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        *self.target() = Target::Ended(Instant::now());
        child.wait()
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets every signal through. It makes a system call alone: it may be called between `fork` and
/// `exec`.
pub fn unblock() -> io::Result<()> {
    let set = set_of(&[]);
    // SAFETY: `set` is initialised; the old mask is not asked for.
    match unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A signal, and whether the terminal sent it.
fn wait_for(set: &libc::sigset_t) -> (i32, bool) {
    loop {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: both pointers are valid for the length of the call.
        let signal = unsafe { libc::sigwaitinfo(std::ptr::from_ref(set), info.as_mut_ptr()) };
        if signal > 0 {
            // SAFETY: the kernel filled it; zeros are right for all of its fields besides.
            let code = unsafe { info.assume_init() }.si_code;
            return (signal, code > 0);
        }
    }
}

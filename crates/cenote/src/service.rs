//! What a service of systemd says to it and gets from it; where there is none, nothing.
//!
//! Messages are datagrams of lines to the socket in `NOTIFY_SOCKET`, see sd_notify(3);
//! descriptors that were stored come back from number 3 on, see sd_listen_fds(3).
#![allow(
    unsafe_code,
    reason = "descriptors in messages have no safe wrapper in std"
)]

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// First descriptor that a service manager passes.
const PASSED_FIRST: RawFd = 3;

/// Tells the service manager, if there is one, as in `READY=1`.
pub fn tell(state: &str) {
    if let Err(error) = send(state, None) {
        tracing::warn!(
            error = cenote_cli::failure::chain(&error),
            state,
            "tell the service manager"
        );
    }
}

/// Gives the service manager a copy of a descriptor, to be passed to the next process.
///
/// # Errors
/// There is none, or it cannot be reached.
pub fn store(name: &str, fd: BorrowedFd<'_>) -> Result<()> {
    match send(&format!("FDSTORE=1\nFDNAME={name}"), Some(fd))? {
        true => Ok(()),
        false => bail!("no service manager that could keep {name}"),
    }
}

/// Has the service manager drop what was stored under a name: it keeps what it passes, and would pass
/// it to the process after the next one as well.
pub fn forget(name: &str) {
    tell(&format!("FDSTOREREMOVE=1\nFDNAME={name}"));
}

/// How many descriptors the service manager keeps for this service, if it says so; it drops more than
/// that without a word.
pub fn stored_max() -> Option<usize> {
    std::env::var("FDSTORE").ok()?.parse().ok()
}

/// Takes what the manager passes: names and descriptors, stored by the process before or listened on
/// in this one's place. Each call but the first finds nothing.
pub fn stored() -> Vec<(String, OwnedFd)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    static TAKEN: std::sync::Once = std::sync::Once::new();
    let mut stored = Vec::new();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return stored;
    }
    TAKEN.call_once(|| {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let count = number("LISTEN_FDS").unwrap_or(0);
        let fds = PASSED_FIRST..PASSED_FIRST.saturating_add_unsigned(count);
        // Whoever passes sockets need not name them.
        let names = names.split(':').chain(std::iter::repeat("unknown"));
        for (fd, name) in fds.zip(names) {
            // SAFETY: the manager opened these for this process and says so by its number; they
            // are taken once, before anything else could own them.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // SAFETY: no pointers; the descriptor is open.
            unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
            stored.push((name.to_owned(), fd));
        }
    });
    stored
}

/// Sends a sign of life for as long as `beats` grows, twice as often as the manager wants one.
///
/// # Errors
/// The thread cannot be started.
pub fn watch(beats: Arc<AtomicU64>) -> Result<()> {
    let limit = std::env::var("WATCHDOG_USEC").ok();
    let Some(limit) = limit.and_then(|text| text.parse().ok().map(Duration::from_micros)) else {
        return Ok(());
    };
    let work = move || {
        let mut last = u64::MAX;
        loop {
            let now = beats.load(Ordering::Relaxed);
            if now != last {
                tell("WATCHDOG=1");
                last = now;
            }
            std::thread::sleep(limit / 2);
        }
    };
    let builder = std::thread::Builder::new().name("watchdog".into());
    builder
        .spawn(work)
        .context("start the watchdog's thread")
        .map(drop)
}

/// False where there is no service manager.
fn send(state: &str, fd: Option<BorrowedFd<'_>>) -> Result<bool> {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(false);
    };
    let address = parse(&address).context("NOTIFY_SOCKET")?;
    let socket = UnixDatagram::unbound().context("make a socket")?;
    socket
        .connect_addr(&address)
        .context("reach the service manager")?;
    let sent = match fd {
        None => socket.send(state.as_bytes()).map(|_| ()),
        Some(fd) => send_with(&socket, state, fd),
    };
    sent.context("talk to the service manager")?;
    Ok(true)
}

fn parse(address: &OsStr) -> io::Result<SocketAddr> {
    match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    }
}

fn send_with(socket: &UnixDatagram, state: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut part = libc::iovec {
        iov_base: state.as_ptr().cast_mut().cast(),
        iov_len: state.len(),
    };
    // Room for one descriptor, aligned as a header must be.
    let mut control = [0_u64; 4];
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: arithmetic on a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<RawFd>() as u32) } as usize;
    // SAFETY: the control buffer is aligned and has CMSG_SPACE of one descriptor, so that its
    // first header and its data are inside.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as usize;
        libc::CMSG_DATA(header)
            .cast::<RawFd>()
            .write_unaligned(fd.as_raw_fd());
    }
    // SAFETY: the message and all that it points to live through the call; sendmsg only reads.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

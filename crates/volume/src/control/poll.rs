//! Waiting for descriptors, shorter than a millisecond where need be.

use std::os::fd::RawFd;
use std::time::Duration;

use super::dialer::entry;
use super::hosts::Hosts;
use crate::directory::HostIndex;

/// Sleeps until a session or the waker wants attention, or the time is over; hosts with arrivals.
pub(super) fn ready_hosts(hosts: &Hosts, wake: RawFd, timeout: Duration) -> Vec<HostIndex> {
    let mut fds = vec![entry(Some(wake), false)];
    let mut polled = Vec::with_capacity(hosts.len());
    for (index, host) in hosts.iter().enumerate() {
        if let Some((fd, wants_write)) = host.interest() {
            fds.push(entry(fd, wants_write));
            polled.push(index);
        }
    }
    // A wait that fails (a signal came) shows no arrivals; the next turn waits again.
    wait(&mut fds, timeout);
    polled
        .into_iter()
        .zip(&fds[1..])
        // A session without a descriptor cannot say that something arrived: look.
        .filter(|&(host, fd)| fd.revents != 0 || fd.fd < 0 || hosts[host].is_unread)
        .map(|(host, _)| host)
        .collect()
}

/// Waits until one of them is ready, or for less than a second. One that fails shows nothing.
fn wait(fds: &mut [libc::pollfd], timeout: Duration) {
    let spec = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    // SAFETY: `fds` and `spec` are valid for the call; no signal mask is given.
    unsafe {
        libc::ppoll(
            fds.as_mut_ptr(),
            fds.len() as libc::nfds_t,
            &raw const spec,
            std::ptr::null(),
        )
    };
}

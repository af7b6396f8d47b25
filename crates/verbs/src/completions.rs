//! A completion queue, and the descriptor that tells of news in it.
//!
//! Waiting must miss nothing: whoever is about to wait arms the queue and looks into it once
//! more. An armed queue makes its descriptor readable once, which is taken back when the
//! completion that did it has been reaped.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;

use rdma_mummy_sys as sys;

use crate::{Device, check};

/// Completions of queue pairs.
pub struct Completions {
    queue: Arc<Queue>,
    is_armed: bool,
    /// Something was reaped since arming: the descriptor is readable, or soon will be.
    is_due: bool,
    system_calls: u64,
}

/// The queue itself, which the pairs that fill it keep.
pub(crate) struct Queue {
    /// Null until it is made.
    handle: *mut sys::ibv_cq,
    channel: *mut sys::ibv_comp_channel,
    device: Arc<Device>,
}

// SAFETY: libibverbs locks its objects, and `drop` alone frees them.
unsafe impl Send for Queue {}
// SAFETY: as above.
unsafe impl Sync for Queue {}

/// One completion, as far as it is of interest.
#[derive(Clone, Copy, Debug)]
pub struct Completed {
    /// The number that the request or receive was given.
    pub id: u64,
    /// How it ended.
    pub ended: Ended,
    /// Of receives.
    pub len_bytes: usize,
    /// Of receives that a WRITE took: the number that it said.
    pub immediate: Option<u32>,
}

/// How a work request ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ended {
    /// It was carried out.
    Ok,
    /// The peer's device refused the key, the right or the range; nothing later was carried out.
    Refused,
    /// The peer does not answer.
    Silent,
    /// The pair was in error already.
    Flushed,
    /// Anything else; no honest peer causes it.
    Broken(u32),
}

impl Completions {
    /// A queue with room for `capacity`.
    ///
    /// # Errors
    /// The device's, or the system's for the descriptor.
    ///
    /// # Panics
    /// If `capacity` is more than a C integer holds.
    pub fn new(device: &Arc<Device>, capacity: usize) -> io::Result<Self> {
        // SAFETY: an open context.
        let channel = unsafe { sys::ibv_create_comp_channel(device.context()) };
        if channel.is_null() {
            return Err(io::Error::last_os_error());
        }
        // From here on dropping it frees what is made.
        let mut queue = Queue {
            handle: std::ptr::null_mut(),
            channel,
            device: Arc::clone(device),
        };
        let capacity = libc::c_int::try_from(capacity).expect("a small constant");
        // SAFETY: open context and channel, no user pointer.
        queue.handle = unsafe {
            sys::ibv_create_cq(device.context(), capacity, std::ptr::null_mut(), channel, 0)
        };
        if queue.handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: no pointers; the descriptor is open.
        if unsafe { libc::fcntl(queue.raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self {
            queue: Arc::new(queue),
            is_armed: false,
            is_due: false,
            system_calls: 0,
        })
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Readable when an armed queue has news.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open while `self` lives.
        unsafe { BorrowedFd::borrow_raw(self.queue.raw_fd()) }
    }

    /// System calls so far.
    #[must_use]
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Adds completions to `out`, oldest first; how many: 0 when there are none left.
    ///
    /// # Errors
    /// The queue is broken, and stays so.
    pub fn take(&mut self, out: &mut Vec<Completed>) -> io::Result<usize> {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut taken: [sys::ibv_wc; TAKEN_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: an open queue and an exclusive array of that length.
        let count =
            unsafe { sys::ibv_poll_cq(self.queue.handle, TAKEN_MAX as i32, taken.as_mut_ptr()) };
        let count = usize::try_from(count)
            .map_err(|_| io::Error::other("the completion queue is broken"))?;
        self.is_due |= count > 0 && self.is_armed;
        out.extend(taken[..count].iter().map(|wc| Completed {
            id: wc.wr_id,
            ended: ended(wc.status),
            len_bytes: wc.byte_len as usize,
            immediate: immediate(wc),
        }));
        Ok(count)
    }

    /// Has the descriptor tell of the next completion. True: look into the queue again first.
    ///
    /// # Errors
    /// The device's.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.settle();
        if self.is_armed {
            return Ok(false);
        }
        self.system_calls += 1;
        // SAFETY: an open queue.
        check(unsafe { sys::ibv_req_notify_cq(self.queue.handle, 0) })?;
        self.is_armed = true;
        Ok(true)
    }

    /// Takes back what the descriptor tells of completions that were taken.
    pub fn settle(&mut self) {
        if self.is_due {
            self.take_event();
        }
    }

    fn take_event(&mut self) {
        let mut queue = std::ptr::null_mut();
        let mut context = std::ptr::null_mut();
        self.system_calls += 1;
        // SAFETY: an open, non-blocking channel and exclusive out-pointers. Refused when there is
        // no event yet: it will be there the next time.
        unsafe {
            if sys::ibv_get_cq_event(self.queue.channel, &raw mut queue, &raw mut context) == 0 {
                sys::ibv_ack_cq_events(queue, 1);
                self.is_armed = false;
                self.is_due = false;
            }
        }
    }
}

impl Queue {
    pub(crate) fn handle(&self) -> *mut sys::ibv_cq {
        self.handle
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    fn raw_fd(&self) -> RawFd {
        // SAFETY: the channel is open while `self` lives.
        unsafe { (*self.channel).fd }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: pairs that use the queue are gone: they keep it.
        unsafe {
            if !self.handle.is_null()
                && let Err(error) = check(sys::ibv_destroy_cq(self.handle))
            {
                tracing::error!(%error, "destroy a completion queue");
            }
            sys::ibv_destroy_comp_channel(self.channel);
        }
    }
}

fn immediate(wc: &sys::ibv_wc) -> Option<u32> {
    let is_notice = wc.status == sys::ibv_wc_status::IBV_WC_SUCCESS
        && wc.opcode == sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    // SAFETY: both views of the union are 32 plain bits.
    is_notice.then(|| u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data }))
}

fn ended(status: sys::ibv_wc_status::Type) -> Ended {
    match status {
        sys::ibv_wc_status::IBV_WC_SUCCESS => Ended::Ok,
        sys::ibv_wc_status::IBV_WC_REM_ACCESS_ERR => Ended::Refused,
        sys::ibv_wc_status::IBV_WC_RETRY_EXC_ERR => Ended::Silent,
        sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR => Ended::Flushed,
        other => Ended::Broken(other),
    }
}

/// Taken at a time.
const TAKEN_MAX: usize = 64;

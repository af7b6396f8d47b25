//! A reliable connected queue pair: made, connected to its peer, given work.

use std::io;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use super::Tuning;
use super::completions::Completions;
use super::device::{Device, check};
use crate::frame::PairName;

/// A queue pair. Destroyed when dropped: no byte moves by it afterwards.
pub(super) struct Pair {
    handle: *mut sys::ibv_qp,
    device: Arc<Device>,
    first_packet: u32,
    /// The longest payload that may ride in the work request itself.
    pub(super) inline_bytes: usize,
    requests: Vec<sys::ibv_send_wr>,
    parts: Vec<sys::ibv_sge>,
}

// SAFETY: libibverbs locks its objects; the pointers in `requests` are set just before their use.
unsafe impl Send for Pair {}

/// One request to the peer's device.
pub(super) struct Request {
    /// Comes back with the completion.
    pub(super) id: u64,
    pub(super) act: Act,
    /// Where the bytes come from or go to.
    pub(super) local: Local,
    /// Waits until earlier READs and atomics are done.
    pub(super) fence: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Act {
    Read {
        address: u64,
        key: u32,
    },
    Write {
        address: u64,
        key: u32,
    },
    /// A WRITE that takes a receive of the peer's, to which it says a number.
    WriteNotice {
        address: u64,
        key: u32,
        immediate: u32,
    },
    CompareSwap {
        address: u64,
        key: u32,
        expected: u64,
        new: u64,
    },
    FetchAdd {
        address: u64,
        key: u32,
        addend: u64,
    },
    Send,
}

/// Bytes of this process.
#[derive(Clone, Copy)]
pub(super) struct Local {
    pub(super) start: *const u8,
    pub(super) len_bytes: usize,
    /// `None`: not registered; the bytes are copied into the request.
    pub(super) key: Option<u32>,
}

impl Pair {
    /// A pair that is not connected yet, but takes receives.
    pub(super) fn new(
        device: &Arc<Device>,
        completions: &Completions,
        sends: usize,
        receives: usize,
    ) -> io::Result<Self> {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut wanted: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = completions.queue();
        wanted.recv_cq = completions.queue();
        wanted.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        wanted.cap.max_send_wr = sends as u32;
        wanted.cap.max_recv_wr = receives as u32;
        wanted.cap.max_send_sge = 1;
        wanted.cap.max_recv_sge = 1;
        wanted.cap.max_inline_data = INLINE_BYTES;
        // SAFETY: an open domain, and a struct whose queue is open.
        let handle = unsafe { sys::ibv_create_qp(device.domain(), &raw mut wanted) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        let pair = Self {
            handle,
            device: Arc::clone(device),
            first_packet: u32::from_le_bytes(random) & 0xff_ffff,
            inline_bytes: wanted.cap.max_inline_data as usize,
            requests: Vec::with_capacity(sends),
            parts: Vec::with_capacity(sends),
        };
        let mut attributes = attributes(sys::ibv_qp_state::IBV_QPS_INIT);
        attributes.port_num = device.port;
        attributes.qp_access_flags = (sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_ATOMIC)
            .0;
        pair.modify(
            attributes,
            sys::ibv_qp_attr_mask::IBV_QP_STATE
                | sys::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
                | sys::ibv_qp_attr_mask::IBV_QP_PORT
                | sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS,
        )?;
        Ok(pair)
    }

    /// What the peer needs to connect to it.
    pub(super) fn name(&self) -> PairName {
        PairName {
            // SAFETY: the handle is valid while `self` is.
            number: unsafe { (*self.handle).qp_num },
            first_packet: self.first_packet,
            lid: self.device.lid,
            mtu: self.device.mtu,
            reads: self.device.reads_answered,
            gid: self.device.gid,
        }
    }

    /// Connects to the peer's pair, which may not be connected yet.
    pub(super) fn connect(&self, peer: &PairName) -> io::Result<()> {
        use sys::ibv_qp_attr_mask as mask;
        let mut receive = attributes(sys::ibv_qp_state::IBV_QPS_RTR);
        receive.path_mtu = self.device.mtu.min(peer.mtu).into();
        receive.dest_qp_num = peer.number;
        receive.rq_psn = peer.first_packet;
        receive.max_dest_rd_atomic = self.device.reads_answered;
        receive.min_rnr_timer = RECEIVER_TIMER;
        receive.ah_attr.dlid = peer.lid;
        receive.ah_attr.port_num = self.device.port;
        // InfiniBand inside one subnet goes by LID; everything else by GID.
        if self.device.lid == 0 || peer.lid == 0 {
            receive.ah_attr.is_global = 1;
            receive.ah_attr.grh.dgid.raw = peer.gid;
            receive.ah_attr.grh.sgid_index = self.device.gid_index;
            receive.ah_attr.grh.hop_limit = 64;
        }
        self.modify(
            receive,
            mask::IBV_QP_STATE
                | mask::IBV_QP_AV
                | mask::IBV_QP_PATH_MTU
                | mask::IBV_QP_DEST_QPN
                | mask::IBV_QP_RQ_PSN
                | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                | mask::IBV_QP_MIN_RNR_TIMER,
        )?;
        let mut send = attributes(sys::ibv_qp_state::IBV_QPS_RTS);
        send.sq_psn = self.first_packet;
        send.timeout = ACK_TIMEOUT;
        send.retry_cnt = RETRIES;
        // A peer that keeps to its credits always finds a receive.
        send.rnr_retry = 1;
        send.max_rd_atomic = self.device.reads_asked.min(peer.reads.max(1));
        self.modify(
            send,
            mask::IBV_QP_STATE
                | mask::IBV_QP_TIMEOUT
                | mask::IBV_QP_RETRY_CNT
                | mask::IBV_QP_RNR_RETRY
                | mask::IBV_QP_SQ_PSN
                | mask::IBV_QP_MAX_QP_RD_ATOMIC,
        )
    }

    /// Has the pair refuse everything; receives that wait end as flushed.
    pub(super) fn close(&self) -> io::Result<()> {
        self.modify(
            attributes(sys::ibv_qp_state::IBV_QPS_ERR),
            sys::ibv_qp_attr_mask::IBV_QP_STATE,
        )
    }

    /// Adds a request to the batch that [`Pair::post`] hands over.
    pub(super) fn add(&mut self, request: &Request) {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut raw: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = request.id;
        let mut flags = 0;
        if request.fence {
            flags |= sys::ibv_send_flags::IBV_SEND_FENCE.0;
        }
        if request.local.key.is_none() {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        raw.send_flags = flags;
        raw.num_sge = 1;
        let rdma = |address, key| sys::rdma_t {
            remote_addr: address,
            rkey: key,
        };
        let atomic = |address, key, compare_add, swap| sys::atomic_t {
            remote_addr: address,
            compare_add,
            swap,
            rkey: key,
        };
        use sys::ibv_wr_opcode as opcode;
        match request.act {
            Act::Read { address, key } => {
                raw.opcode = opcode::IBV_WR_RDMA_READ;
                raw.wr.rdma = rdma(address, key);
            }
            Act::Write { address, key } => {
                raw.opcode = opcode::IBV_WR_RDMA_WRITE;
                raw.wr.rdma = rdma(address, key);
            }
            Act::WriteNotice {
                address,
                key,
                immediate,
            } => {
                raw.opcode = opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                raw.wr.rdma = rdma(address, key);
                raw.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
            }
            Act::CompareSwap {
                address,
                key,
                expected,
                new,
            } => {
                raw.opcode = opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                raw.wr.atomic = atomic(address, key, expected, new);
            }
            Act::FetchAdd {
                address,
                key,
                addend,
            } => {
                raw.opcode = opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                raw.wr.atomic = atomic(address, key, addend, 0);
            }
            Act::Send => raw.opcode = opcode::IBV_WR_SEND,
        }
        self.parts.push(sys::ibv_sge {
            addr: request.local.start as u64,
            length: u32::try_from(request.local.len_bytes).expect("pieces are small"),
            lkey: request.local.key.unwrap_or(0),
        });
        self.requests.push(raw);
    }

    /// Hands the batch to the device with one call. The last request and every [`SIGNAL_EVERY`]th is
    /// signalled, or all are: a completion stands for all requests before it.
    ///
    /// # Safety
    /// The local bytes of every request added are valid until its completion: registered with the
    /// key given, or, without a key, readable now.
    pub(super) unsafe fn post(&mut self, tuning: Tuning) -> io::Result<()> {
        let signal_every = if tuning.selective_signals {
            SIGNAL_EVERY
        } else {
            1
        };
        let count = self.requests.len();
        if count == 0 {
            return Ok(());
        }
        for index in 0..count {
            let next = if index + 1 < count {
                &raw mut self.requests[index + 1]
            } else {
                std::ptr::null_mut()
            };
            let part = &raw mut self.parts[index];
            let request = &mut self.requests[index];
            request.next = next;
            request.sg_list = part;
            if next.is_null() || (index + 1) % signal_every == 0 {
                request.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: a valid pair and a list whose links and parts lie in vectors that do not move
        // during the call; what they point to is the caller's promise.
        let posted = unsafe {
            sys::ibv_post_send(self.handle, self.requests.as_mut_ptr(), &raw mut refused)
        };
        self.requests.clear();
        self.parts.clear();
        check(posted)
    }

    /// Drops the requests that are added and not posted.
    pub(super) fn forget(&mut self) {
        self.requests.clear();
        self.parts.clear();
    }

    /// Offers a buffer for one message.
    ///
    /// # Safety
    /// The bytes are registered with `key`, and nobody else's, until the receive's completion.
    pub(super) unsafe fn receive(
        &self,
        id: u64,
        start: *mut u8,
        len_bytes: usize,
        key: u32,
    ) -> io::Result<()> {
        let mut part = sys::ibv_sge {
            addr: start as u64,
            length: u32::try_from(len_bytes).expect("a small constant"),
            lkey: key,
        };
        let mut receive = sys::ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: &raw mut part,
            num_sge: 1,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: a valid pair; the list lives through the call, the bytes are the caller's promise.
        check(unsafe { sys::ibv_post_recv(self.handle, &raw mut receive, &raw mut refused) })
    }

    /// Offers a receive for one notice, which has no bytes that land there.
    pub(super) fn receive_notice(&self, id: u64) -> io::Result<()> {
        let mut receive = sys::ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: std::ptr::null_mut(),
            num_sge: 0,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: a valid pair; the list lives through the call and names no memory.
        check(unsafe { sys::ibv_post_recv(self.handle, &raw mut receive, &raw mut refused) })
    }

    fn modify(
        &self,
        mut attributes: sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> io::Result<()> {
        // SAFETY: a valid pair and an exclusive struct.
        check(unsafe {
            sys::ibv_modify_qp(self.handle, &raw mut attributes, mask.0 as libc::c_int)
        })
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        // SAFETY: a valid pair that nobody uses afterwards.
        if let Err(error) = check(unsafe { sys::ibv_destroy_qp(self.handle) }) {
            tracing::error!(%error, "destroy a queue pair");
        }
    }
}

fn attributes(state: sys::ibv_qp_state::Type) -> sys::ibv_qp_attr {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut attributes: sys::ibv_qp_attr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// Asked for; devices give more or less.
const INLINE_BYTES: u32 = 220;
/// Far below the depth of a send queue, so that room is known of early; far above one, since a
/// completion costs about as much as a request.
const SIGNAL_EVERY: usize = 16;
/// 4.096 us * 2^14, about 67 ms; with the retries about half a second until a peer that answers
/// nothing counts as silent, inside the failure timeout.
const ACK_TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
/// 0.64 ms.
const RECEIVER_TIMER: u8 = 12;

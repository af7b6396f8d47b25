//! A reliable connected queue pair: made, connected to its peer, given work.

use std::io;
use std::sync::Arc;

use rdma_mummy_sys as sys;

use crate::completions::Queue;
use crate::{Completions, Device, Local, Part, Request, check};

/// A queue pair. Destroyed when dropped: no byte moves by it afterwards.
pub struct Pair {
    handle: *mut sys::ibv_qp,
    device: Arc<Device>,
    _queue: Arc<Queue>,
    first_packet: u32,
    inline_bytes: usize,
    /// The batch that [`Pair::post`] hands over.
    requests: Vec<sys::ibv_send_wr>,
    /// One for each request. Inline ones have their place in `inlined` in it until they are posted.
    parts: Vec<sys::ibv_sge>,
    inlined: Vec<u8>,
}

// SAFETY: libibverbs locks its objects; the pointers in `requests` are set just before their use.
unsafe impl Send for Pair {}

/// What a peer must know of a pair to connect to it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PairAddress {
    /// The pair's, on its device.
    pub number: u32,
    /// Sequence number of the first packet that it sends, of 24 bits.
    pub first_packet: u32,
    /// 0 on Ethernet.
    pub lid: u16,
    /// As `ibv_mtu` counts: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// READs and atomics that it answers at a time.
    pub reads: u8,
    /// Of its port.
    pub gid: [u8; 16],
}

impl Pair {
    /// A pair that is not connected yet, but takes receives: room for so many requests and receives
    /// at a time. Their completions go to `completions`, whose device is the pair's.
    ///
    /// # Errors
    /// The device's, or there are no random numbers.
    pub fn new(completions: &Completions, sends: usize, receives: usize) -> io::Result<Self> {
        let device = completions.queue().device();
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(io::Error::other)?;
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut wanted: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        wanted.send_cq = completions.queue().handle();
        wanted.recv_cq = completions.queue().handle();
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
        let pair = Self {
            handle,
            device: Arc::clone(device),
            _queue: Arc::clone(completions.queue()),
            first_packet: u32::from_le_bytes(random) & 0xff_ffff,
            inline_bytes: wanted.cap.max_inline_data as usize,
            // Posting allocates nothing.
            inlined: Vec::with_capacity(sends * wanted.cap.max_inline_data as usize),
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
    #[must_use]
    pub fn address(&self) -> PairAddress {
        PairAddress {
            // SAFETY: the handle is valid while `self` is.
            number: unsafe { (*self.handle).qp_num },
            first_packet: self.first_packet,
            lid: self.device.lid,
            mtu: self.device.mtu,
            reads: self.device.reads_answered,
            gid: self.device.gid,
        }
    }

    /// The longest payload that may ride in the work request itself.
    #[must_use]
    pub fn inline_bytes(&self) -> usize {
        self.inline_bytes
    }

    /// Connects to the peer's pair, which may not be connected yet. What comes before this is lost.
    ///
    /// # Errors
    /// The device's: what the peer says cannot be.
    pub fn connect(&self, peer: &PairAddress) -> io::Result<()> {
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
    ///
    /// # Errors
    /// The device's.
    pub fn close(&self) -> io::Result<()> {
        self.modify(
            attributes(sys::ibv_qp_state::IBV_QPS_ERR),
            sys::ibv_qp_attr_mask::IBV_QP_STATE,
        )
    }

    /// Adds a request to the batch that [`Pair::post`] hands over.
    ///
    /// # Panics
    /// If inline bytes are more than [`Pair::inline_bytes`].
    pub fn add(&mut self, request: &Request<'_>) {
        let mut raw = request.raw();
        let at = self.inlined.len();
        match request.local {
            Local::Part(_) => {}
            Local::Inline(bytes) => self.inlined.extend_from_slice(bytes),
            Local::InlinePages {
                pages,
                at: place,
                len_bytes,
            } => {
                self.inlined.resize(at + len_bytes, 0);
                pages.read(place, &mut self.inlined[at..]);
            }
        }
        let part = if let Local::Part(part) = request.local {
            part
        } else {
            let len_bytes = self.inlined.len() - at;
            assert!(len_bytes <= self.inline_bytes);
            raw.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
            Part {
                address: at as u64,
                len_bytes: len_bytes as u32,
                key: 0,
            }
        };
        self.parts.push(part.raw());
        self.requests.push(raw);
    }

    /// Hands the batch to the device with one call. The last request and every `signal_every`th is
    /// signalled: a completion stands for all requests before it.
    ///
    /// # Errors
    /// The device's: it has as many requests as it takes, or the pair is not connected. Some of the
    /// batch may be on its way; nothing of it is kept here.
    ///
    /// # Panics
    /// If `signal_every` is 0.
    pub fn post(&mut self, signal_every: usize) -> io::Result<()> {
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
            let part = &mut self.parts[index];
            let request = &mut self.requests[index];
            if request.send_flags & sys::ibv_send_flags::IBV_SEND_INLINE.0 != 0 {
                part.addr += self.inlined.as_ptr() as u64;
            }
            request.next = next;
            request.sg_list = &raw mut *part;
            if next.is_null() || (index + 1).is_multiple_of(signal_every) {
                request.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
            }
        }
        let mut refused = std::ptr::null_mut();
        // SAFETY: a valid pair and a list whose links, parts and inline bytes lie in vectors that
        // do not move during the call. Other bytes the device reaches by the key of a registration,
        // which owns them.
        let posted = unsafe {
            sys::ibv_post_send(self.handle, self.requests.as_mut_ptr(), &raw mut refused)
        };
        self.forget();
        check(posted)
    }

    /// Drops the requests that are added and not posted.
    pub fn forget(&mut self) {
        self.requests.clear();
        self.parts.clear();
        self.inlined.clear();
    }

    /// Offers a buffer for one message, which no other receive should have.
    ///
    /// # Errors
    /// The device's: it has as many receives as it takes.
    pub fn receive(&self, id: u64, buffer: Part) -> io::Result<()> {
        let mut part = buffer.raw();
        self.offer(id, &raw mut part, 1)
    }

    /// Offers a receive for one notice, which has no bytes that land there.
    ///
    /// # Errors
    /// As [`Pair::receive`].
    pub fn receive_notice(&self, id: u64) -> io::Result<()> {
        self.offer(id, std::ptr::null_mut(), 0)
    }

    /// `parts`: so many, which live through the call.
    fn offer(&self, id: u64, parts: *mut sys::ibv_sge, count: libc::c_int) -> io::Result<()> {
        let mut receive = sys::ibv_recv_wr {
            wr_id: id,
            next: std::ptr::null_mut(),
            sg_list: parts,
            num_sge: count,
        };
        let mut refused = std::ptr::null_mut();
        // SAFETY: a valid pair; the list lives through the call. The bytes that it names the device
        // reaches by the key of a registration, which owns them.
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
/// 4.096 us * 2^14, about 67 ms; with the retries about half a second until a peer that answers
/// nothing counts as silent.
const ACK_TIMEOUT: u8 = 14;
const RETRIES: u8 = 6;
/// 0.64 ms.
const RECEIVER_TIMER: u8 = 12;

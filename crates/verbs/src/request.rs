//! Requests to a peer's device, and the bytes of this process that they use.

use rdma_mummy_sys as sys;

use crate::Pages;

/// One request to the peer's device.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Comes back with the completion.
    pub id: u64,
    /// What the device does.
    pub act: Act,
    /// Where the bytes come from or go to.
    pub local: Local<'a>,
    /// Waits until earlier READs and atomics are done.
    pub fence: bool,
}

/// What a device does. Addresses and keys are the peer's: of memory that it registered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Act {
    /// Copies the peer's bytes here.
    Read {
        /// Where they are.
        address: u64,
        /// Of their memory.
        key: u32,
    },
    /// Copies bytes to the peer.
    Write {
        /// Where they go.
        address: u64,
        /// Of that memory.
        key: u32,
    },
    /// A WRITE that takes a receive of the peer's, to which it says a number.
    WriteNotice {
        /// Where the bytes go.
        address: u64,
        /// Of that memory.
        key: u32,
        /// The number.
        immediate: u32,
    },
    /// Puts `new` in the place of `expected`; what was there comes here.
    CompareSwap {
        /// Of the word, a multiple of 8.
        address: u64,
        /// Of its memory.
        key: u32,
        /// Else the word stays.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
    /// Adds to a word; what was there comes here.
    FetchAdd {
        /// Of the word, a multiple of 8.
        address: u64,
        /// Of its memory.
        key: u32,
        /// What is added, modulo 2^64.
        addend: u64,
    },
    /// A message, into a receive of the peer's.
    Send,
}

/// Bytes of this process.
#[derive(Clone, Copy)]
pub enum Local<'a> {
    /// The device copies them when it carries the request out.
    Part(Part),
    /// They are copied into the request when it is added, and belong to a WRITE or a message.
    Inline(&'a [u8]),
    /// The same, of pages.
    InlinePages {
        /// Registered or not.
        pages: &'a Pages,
        /// Where the bytes begin.
        at: usize,
        /// And how many there are.
        len_bytes: usize,
    },
}

/// Bytes of registered memory; made by [`Registered::part`](crate::Registered::part).
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub(crate) address: u64,
    pub(crate) len_bytes: u32,
    pub(crate) key: u32,
}

impl Part {
    pub(crate) fn raw(self) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.address,
            length: self.len_bytes,
            lkey: self.key,
        }
    }
}

impl Request<'_> {
    /// As libibverbs has it, but for its bytes and its place in a list.
    pub(crate) fn raw(&self) -> sys::ibv_send_wr {
        // SAFETY: all-zero is a valid value of this plain C struct.
        let mut raw: sys::ibv_send_wr = unsafe { std::mem::zeroed() };
        raw.wr_id = self.id;
        raw.num_sge = 1;
        if self.fence {
            raw.send_flags |= sys::ibv_send_flags::IBV_SEND_FENCE.0;
        }
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
        match self.act {
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
        raw
    }
}

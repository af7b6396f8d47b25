//! The words that the kernel's ublk driver and its server exchange: `linux/ublk_cmd.h` of 6.12.
//!
//! Plain data and constants, no system call. Layouts are the kernel's, so every struct is
//! `repr(C)` without padding of its own; the sizes are checked at the end.

/// What a control command carries, inside the last 80 bytes of a large submission entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ControlCommand {
    /// `u32::MAX` where the kernel is to choose one.
    pub(super) device: u32,
    /// `u16::MAX`: the command is about no queue.
    pub(super) queue: u16,
    /// Length of what `address` points to.
    pub(super) len_bytes: u16,
    pub(super) address: u64,
    pub(super) data: u64,
    pub(super) path_len_bytes: u16,
    pub(super) padding: u16,
    pub(super) reserved: u32,
}

impl ControlCommand {
    /// As the submission entry holds it.
    pub(super) fn bytes(&self) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&self.device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[6..8].copy_from_slice(&self.len_bytes.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.data.to_ne_bytes());
        bytes[24..26].copy_from_slice(&self.path_len_bytes.to_ne_bytes());
        bytes
    }
}

/// A device as the driver knows it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DeviceInfo {
    pub(super) queue_count: u16,
    pub(super) queue_depth: u16,
    /// One of [`state`].
    pub(super) state: u16,
    pub(super) padding: u16,
    /// Longest request.
    pub(super) request_bytes_max: u32,
    pub(super) device: u32,
    pub(super) server_pid: i32,
    pub(super) padding1: u32,
    /// Of [`feature`]; the kernel clears those that it does not have.
    pub(super) features: u64,
    /// Ours to use: which disk the device shows.
    pub(super) identity: u64,
    pub(super) owner_uid: u32,
    pub(super) owner_gid: u32,
    pub(super) reserved: [u64; 2],
}

/// What the device tells file systems about itself.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parameters {
    pub(super) len_bytes: u32,
    /// Which of the parts below are meant, of [`parameter`].
    pub(super) types: u32,
    pub(super) attributes: u32,
    pub(super) logical_block_shift: u8,
    pub(super) physical_block_shift: u8,
    pub(super) optimal_io_shift: u8,
    pub(super) minimal_io_shift: u8,
    pub(super) request_sectors_max: u32,
    pub(super) chunk_sectors: u32,
    pub(super) sectors: u64,
    pub(super) virtual_boundary: u64,
    pub(super) discard_alignment: u32,
    pub(super) discard_granularity: u32,
    pub(super) discard_sectors_max: u32,
    pub(super) write_zeroes_sectors_max: u32,
    pub(super) discard_segments_max: u16,
    pub(super) reserved: u16,
    /// Numbers of the device files; the kernel fills them in.
    pub(super) device_numbers: [u32; 4],
    pub(super) padding: u32,
}

/// One request, in memory that the kernel shares with the queue's thread.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestDescriptor {
    /// Lowest 8 bits: of [`operation`].
    pub(super) operation_flags: u32,
    pub(super) sectors: u32,
    pub(super) first_sector: u64,
    pub(super) address: u64,
}

/// Asks for the next request of a tag, and ends the one before.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueCommand {
    pub(super) queue: u16,
    pub(super) tag: u16,
    /// Bytes done, or a negative error number.
    pub(super) result: i32,
    /// Where the kernel puts what is written, and takes what was read.
    pub(super) address: u64,
}

impl QueueCommand {
    /// As the submission entry holds it.
    pub(super) fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.address.to_ne_bytes());
        bytes
    }
}

/// Numbers of control commands, encoded as those of ioctls.
pub(super) mod control {
    use super::{ControlCommand, encoded};

    const READ: u32 = 2;
    const BOTH: u32 = 3;
    const fn number(direction: u32, number: u32) -> u32 {
        encoded(direction, number, size_of::<ControlCommand>())
    }

    pub(crate) const INFO: u32 = number(READ, 0x02);
    pub(crate) const ADD: u32 = number(BOTH, 0x04);
    pub(crate) const DELETE: u32 = number(BOTH, 0x05);
    pub(crate) const START: u32 = number(BOTH, 0x06);
    pub(crate) const STOP: u32 = number(BOTH, 0x07);
    pub(crate) const SET_PARAMETERS: u32 = number(BOTH, 0x08);
    pub(crate) const PARAMETERS: u32 = number(READ, 0x09);
    pub(crate) const START_RECOVERY: u32 = number(BOTH, 0x10);
    pub(crate) const END_RECOVERY: u32 = number(BOTH, 0x11);
}

/// Numbers of a queue's commands.
pub(super) mod queue {
    use super::encoded;

    /// Asks for the first request of a tag.
    pub(crate) const FETCH: u32 = encoded(3, 0x20, 16);
    /// Ends a tag's request and asks for the next.
    pub(crate) const COMMIT_AND_FETCH: u32 = encoded(3, 0x21, 16);
}

/// What a device may do beyond the least.
pub(super) mod feature {
    /// A device whose server died waits for another.
    pub(crate) const RECOVERY: u64 = 1 << 3;
    /// And what the dead one had not ended is asked of that other again.
    pub(crate) const RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands are numbered as here; Linux 6.4.
    pub(crate) const IOCTL_ENCODING: u64 = 1 << 6;
}

/// Parts of [`Parameters`].
pub(super) mod parameter {
    pub(crate) const BASIC: u32 = 1 << 0;
    pub(crate) const DISCARD: u32 = 1 << 1;
}

/// States of a device.
pub(super) mod state {
    /// A server serves it.
    pub(crate) const LIVE: u16 = 1;
    /// Its server is gone; requests wait.
    pub(crate) const QUIESCED: u16 = 2;
}

/// What a request wants.
pub(super) mod operation {
    pub(crate) const READ: u32 = 0;
    pub(crate) const WRITE: u32 = 1;
    pub(crate) const FLUSH: u32 = 2;
    pub(crate) const DISCARD: u32 = 3;
    pub(crate) const WRITE_ZEROES: u32 = 5;
}

/// `_IOC` of the kernel, with ublk's letter.
const fn encoded(direction: u32, number: u32, len_bytes: usize) -> u32 {
    direction << 30 | (len_bytes as u32) << 16 | (b'u' as u32) << 8 | number
}

/// What a sector is, whatever the device's blocks are.
pub(super) const SECTOR_BYTES: u64 = 512;
/// Descriptors that a queue may have at most; queues' shares of the mapping are this far apart.
pub(super) const QUEUE_DEPTH_MAX: usize = 4096;

const _: () = assert!(size_of::<ControlCommand>() == 32);
const _: () = assert!(size_of::<DeviceInfo>() == 64);
const _: () = assert!(size_of::<Parameters>() == 80);
const _: () = assert!(size_of::<RequestDescriptor>() == 24);

#[cfg(test)]
mod tests {
    use super::*;

    /// As the C compiler computes them from the kernel's header.
    #[test]
    fn command_numbers_are_the_kernels() {
        assert_eq!(control::INFO, 0x8020_7502);
        assert_eq!(control::ADD, 0xc020_7504);
        assert_eq!(control::END_RECOVERY, 0xc020_7511);
        assert_eq!(queue::FETCH, 0xc010_7520);
        assert_eq!(queue::COMMIT_AND_FETCH, 0xc010_7521);
    }

    #[test]
    fn a_queue_command_has_its_fields_where_the_kernel_reads_them() {
        let command = QueueCommand {
            queue: 0x0102,
            tag: 0x0304,
            result: -5,
            address: 0x0a0b_0c0d_0e0f_1011,
        };
        let bytes = command.bytes();
        assert_eq!(bytes[..2], 0x0102_u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 0x0304_u16.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(bytes[8..], 0x0a0b_0c0d_0e0f_1011_u64.to_ne_bytes());
    }
}

//! FUSE requests as their server sees them, and the bytes of replies: `linux/fuse.h`.
//!
//! Only the operations of a file that is there for good: who serves whole file systems reads more.
//! Whatever a request names is checked against what came, so that no header leads outside of it.

use crate::abi::HEADER_BYTES;

/// A request that came over a ring.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    header: &'a [u8; HEADER_BYTES],
    op_in: &'a [u8; HEADER_BYTES],
    payload: &'a [u8],
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// The inode of a name in the directory; replied to with [`entry`].
    Lookup(&'a [u8]),
    /// Attributes of the inode; [`attributes`].
    Getattr,
    /// [`opened`].
    Open,
    /// Bytes of the file, as the payload.
    Read {
        /// Where they begin.
        offset: u64,
        /// How many at most.
        len_bytes: u32,
    },
    /// The payload is to be written; [`written`].
    Write {
        /// Where.
        offset: u64,
        /// How many bytes of the payload: all of them.
        len_bytes: u32,
    },
    /// Space of a range; nothing.
    Fallocate {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len_bytes: u64,
        /// As of `fallocate(2)`.
        mode: i32,
    },
    /// Of the file system; [`statfs`].
    Statfs,
    /// What is acknowledged stays: FSYNC; nothing.
    Fsync,
    /// A descriptor is closed, or a file's last one, or the connection ends: FLUSH, RELEASE,
    /// DESTROY; nothing.
    End,
    /// Anything else, by its number.
    Other(u32),
    /// Its headers contradict each other.
    Malformed,
}

impl<'a> Request<'a> {
    pub(crate) fn new(
        header: &'a [u8; HEADER_BYTES],
        op_in: &'a [u8; HEADER_BYTES],
        payload: &'a [u8],
    ) -> Self {
        Self {
            header,
            op_in,
            payload,
        }
    }

    /// The inode that it is about.
    #[must_use]
    pub fn inode(&self) -> u64 {
        word(self.header, 16)
    }

    /// What it asks for.
    #[must_use]
    pub fn operation(&self) -> Operation<'a> {
        match half(self.header, 4) {
            1 => match self.payload.iter().position(|byte| *byte == 0) {
                Some(end) => Operation::Lookup(&self.payload[..end]),
                None => Operation::Malformed,
            },
            3 => Operation::Getattr,
            14 => Operation::Open,
            15 => Operation::Read {
                offset: word(self.op_in, 8),
                len_bytes: half(self.op_in, 16),
            },
            16 => {
                let len_bytes = half(self.op_in, 16);
                if len_bytes as usize != self.payload.len() {
                    return Operation::Malformed;
                }
                Operation::Write {
                    offset: word(self.op_in, 8),
                    len_bytes,
                }
            }
            17 => Operation::Statfs,
            20 => Operation::Fsync,
            18 | 25 | 38 => Operation::End,
            43 => Operation::Fallocate {
                offset: word(self.op_in, 8),
                len_bytes: word(self.op_in, 16),
                mode: half(self.op_in, 24).cast_signed(),
            },
            other => Operation::Other(other),
        }
    }
}

fn word(bytes: &[u8; HEADER_BYTES], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn half(bytes: &[u8; HEADER_BYTES], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// What the kernel is told of an inode: one that is root's, has one name and no times.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Its number.
    pub inode: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Type and permissions, as of `stat(2)`.
    pub mode: u32,
    /// Preferred size of a request.
    pub block_bytes: u32,
}

impl Attributes {
    /// `fuse_attr`.
    fn bytes(&self) -> [u8; 88] {
        let mut bytes = [0; 88];
        bytes[..8].copy_from_slice(&self.inode.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.size_bytes.to_ne_bytes());
        bytes[16..24].copy_from_slice(&(self.size_bytes / 512).to_ne_bytes());
        bytes[60..64].copy_from_slice(&self.mode.to_ne_bytes());
        bytes[64..68].copy_from_slice(&1_u32.to_ne_bytes());
        bytes[80..84].copy_from_slice(&self.block_bytes.to_ne_bytes());
        bytes
    }
}

/// `fuse_entry_out`: a name's inode, which the kernel may believe in for `ttl_s` seconds.
#[must_use]
pub fn entry(attributes: &Attributes, ttl_s: u64) -> [u8; 128] {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&attributes.inode.to_ne_bytes());
    bytes[16..24].copy_from_slice(&ttl_s.to_ne_bytes());
    bytes[24..32].copy_from_slice(&ttl_s.to_ne_bytes());
    bytes[40..].copy_from_slice(&attributes.bytes());
    bytes
}

/// `fuse_attr_out`, as [`entry`].
#[must_use]
pub fn attributes(attributes: &Attributes, ttl_s: u64) -> [u8; 104] {
    let mut bytes = [0; 104];
    bytes[..8].copy_from_slice(&ttl_s.to_ne_bytes());
    bytes[16..].copy_from_slice(&attributes.bytes());
    bytes
}

/// `fuse_open_out`; `flags` are FOPEN_*.
#[must_use]
pub fn opened(handle: u64, flags: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&handle.to_ne_bytes());
    bytes[8..12].copy_from_slice(&flags.to_ne_bytes());
    bytes
}

/// `fuse_write_out`.
#[must_use]
pub fn written(len_bytes: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&len_bytes.to_ne_bytes());
    bytes
}

/// `fuse_statfs_out` of a full file system.
#[must_use]
pub fn statfs(block_count: u64, file_count: u64, block_bytes: u32) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[..8].copy_from_slice(&block_count.to_ne_bytes());
    bytes[24..32].copy_from_slice(&file_count.to_ne_bytes());
    bytes[40..44].copy_from_slice(&block_bytes.to_ne_bytes());
    bytes[44..48].copy_from_slice(&255_u32.to_ne_bytes());
    bytes[48..52].copy_from_slice(&block_bytes.to_ne_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request as the kernel would put it.
    fn operation(number: u32, op_in: &[u8], payload: &[u8]) -> String {
        let mut header = [0; HEADER_BYTES];
        header[4..8].copy_from_slice(&number.to_ne_bytes());
        let mut op = [0; HEADER_BYTES];
        op[..op_in.len()].copy_from_slice(op_in);
        format!("{:?}", Request::new(&header, &op, payload).operation())
    }

    #[test]
    fn a_write_is_as_long_as_what_came() {
        let mut op_in = [0; 40];
        op_in[8..16].copy_from_slice(&8192_u64.to_ne_bytes());
        op_in[16..20].copy_from_slice(&3_u32.to_ne_bytes());
        assert_eq!(
            operation(16, &op_in, b"abc"),
            "Write { offset: 8192, len_bytes: 3 }"
        );
        assert_eq!(operation(16, &op_in, b"ab"), "Malformed");
        assert_eq!(operation(16, &op_in, b"abcd"), "Malformed");
    }

    #[test]
    fn a_name_ends_where_the_kernel_ends_it() {
        assert_eq!(operation(1, &[], b"disk\0"), "Lookup([100, 105, 115, 107])");
        assert_eq!(operation(1, &[], b"disk"), "Malformed");
        assert_eq!(operation(1, &[], b""), "Malformed");
    }

    #[test]
    fn any_number_is_an_operation() {
        for number in 0..64 {
            assert!(!operation(number, &[], &[]).is_empty());
        }
        assert_eq!(operation(4, &[], &[]), "Other(4)");
        assert_eq!(operation(u32::MAX, &[], &[]), "Other(4294967295)");
    }

    /// Offsets as the C compiler has them for `fuse_attr`.
    #[test]
    fn attributes_are_where_the_kernel_reads_them() {
        let given = Attributes {
            inode: 2,
            size_bytes: 1 << 20,
            mode: libc::S_IFREG | 0o600,
            block_bytes: 4096,
        };
        let bytes = attributes(&given, 7);
        assert_eq!(bytes[..8], 7_u64.to_ne_bytes());
        assert_eq!(bytes[16 + 8..16 + 16], (1_u64 << 20).to_ne_bytes());
        assert_eq!(bytes[16 + 60..16 + 64], 0o100_600_u32.to_ne_bytes());
        assert_eq!(entry(&given, 7)[40..], bytes[16..]);
    }
}

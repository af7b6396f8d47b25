use zerocopy::IntoBytes as _;

use super::*;
use crate::abi::HEADER_BYTES;

/// A request in both forms in which it may come.
#[derive(Clone, Debug)]
struct Made {
    header: abi::fuse_in_header,
    op: Vec<u8>,
    payload: Vec<u8>,
}

impl Made {
    fn new(opcode: u32, op: &[u8], payload: &[u8]) -> Self {
        let header = abi::fuse_in_header {
            len: (40 + op.len() + payload.len()) as u32,
            opcode,
            unique: 77,
            nodeid: 5,
            uid: 1000,
            gid: 100,
            ..Default::default()
        };
        Self {
            header,
            op: op.to_vec(),
            payload: payload.to_vec(),
        }
    }

    /// As `/dev/fuse` gives it.
    fn bytes(&self) -> Vec<u8> {
        [self.header.as_bytes(), &self.op, &self.payload].concat()
    }

    fn over_the_device(&self) -> Result<String, Malformed> {
        let bytes = self.bytes();
        let request = Request::of_bytes(&bytes)?;
        request
            .operation()
            .map(|operation| format!("{operation:?}"))
    }

    /// What a former request left behind the operation's header is still there.
    fn over_a_ring(&self) -> Result<String, Malformed> {
        let (mut header, mut op) = ([0xFF; HEADER_BYTES], [0xFF; HEADER_BYTES]);
        header[..40].copy_from_slice(self.header.as_bytes());
        op[..self.op.len()].copy_from_slice(&self.op);
        let request = Request::of_parts(&header, &op, &self.payload);
        request
            .operation()
            .map(|operation| format!("{operation:?}"))
    }

    fn both(&self) -> Result<String, Malformed> {
        let (device, ring) = (self.over_the_device(), self.over_a_ring());
        assert_eq!(device, ring, "{self:?}");
        device
    }
}

/// Numbers in the order of the header that they make.
fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// One good request of each operation, with the payload that it must have.
fn all() -> Vec<Made> {
    let with = |opcode: u32| {
        let op = vec![0; op_header_bytes(opcode).expect("a known operation")];
        let payload: &[u8] = match opcode {
            number::LOOKUP
            | number::MKNOD
            | number::MKDIR
            | number::UNLINK
            | number::RMDIR
            | number::LINK
            | number::CREATE
            | number::GETXATTR
            | number::REMOVEXATTR => b"name\0",
            number::SYMLINK | number::RENAME | number::RENAME2 => b"one\0two\0",
            number::SETXATTR => b"user.a\0",
            _ => b"",
        };
        Made::new(opcode, &op, payload)
    };
    number::ALL.iter().map(|opcode| with(*opcode)).collect()
}

#[test]
fn every_operation_is_the_same_over_both_transports() {
    for made in all() {
        let said = made.both().unwrap_or_else(|_| panic!("{made:?}"));
        assert!(!said.starts_with("Other"), "{said}: {made:?}");
    }
    // IOCTL, and one that no kernel has.
    for unknown in [39, 4096, u32::MAX] {
        let made = Made::new(unknown, &[7; 30], b"anything");
        assert_eq!(made.both(), Ok(format!("Other({unknown})")));
    }
}

#[test]
fn who_asks_and_about_what_is_in_the_header() {
    let bytes = Made::new(number::GETATTR, &[0; 16], &[]).bytes();
    let request = Request::of_bytes(&bytes).expect("a request");
    assert_eq!((request.unique(), request.inode()), (77, 5));
    assert_eq!((request.uid(), request.gid()), (1000, 100));
}

#[test]
fn a_request_that_is_cut_or_longer_than_it_says_is_malformed() {
    for made in all() {
        let whole = made.bytes();
        for len in 0..whole.len() {
            assert_eq!(Request::of_bytes(&whole[..len]).err(), Some(Malformed));
            // Nor when the header agrees with where it was cut: an operation misses something.
            let mut cut = whole[..len].to_vec();
            if len >= 40 {
                cut[..4].copy_from_slice(&(len as u32).to_ne_bytes());
                let operation = Request::of_bytes(&cut).and_then(|cut| cut.operation());
                assert_eq!(operation, Err(Malformed), "{len} of {made:?}");
            }
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Request::of_bytes(&longer).err(), Some(Malformed));
    }
}

#[test]
fn names_end_with_a_zero_and_nothing_is_behind_them() {
    let lookup = |payload: &[u8]| Made::new(number::LOOKUP, &[], payload).both();
    assert_eq!(lookup(b"disk\0"), Ok("Lookup([100, 105, 115, 107])".into()));
    assert_eq!(lookup(b"disk"), Err(Malformed));
    assert_eq!(lookup(b""), Err(Malformed));
    assert_eq!(lookup(b"a\0b"), Err(Malformed));
    let rename = |payload: &[u8]| Made::new(number::RENAME2, &words(&[9, 0, 2, 0]), payload).both();
    let good = "Rename { name: [97], to_parent: 9, to_name: [98], flags: 2 }";
    assert_eq!(rename(b"a\0b\0"), Ok(good.into()));
    assert_eq!(rename(b"a\0b"), Err(Malformed));
    assert_eq!(rename(b"a\0"), Err(Malformed));
    assert_eq!(rename(b"a\0b\0c\0"), Err(Malformed));
}

#[test]
fn data_is_as_long_as_its_header_says() {
    let op = |len: u32| words(&[0, 0, 8192, 0, len, 1, 0, 0, 0, 0]);
    let write = |len, payload: &[u8]| Made::new(number::WRITE, &op(len), payload).both();
    let good = "Write { offset: 8192, data: [97, 98, 99], flags: 1 }";
    assert_eq!(write(3, b"abc"), Ok(good.into()));
    for len in [0, 2, 4, u32::MAX] {
        assert_eq!(write(len, b"abc"), Err(Malformed), "{len}");
    }
    let set = |len, payload: &[u8]| Made::new(number::SETXATTR, &words(&[len, 2]), payload).both();
    let good = "Setxattr { name: [97], value: [0, 1], flags: 2 }";
    assert_eq!(set(2, b"a\0\0\x01"), Ok(good.into()));
    assert_eq!(set(1, b"a\0\0\x01"), Err(Malformed));
    assert_eq!(set(u32::MAX, b"a\0\0\x01"), Err(Malformed));
    assert_eq!(set(0, b"a"), Err(Malformed));
}

#[test]
fn inodes_that_are_forgotten_are_as_many_as_the_header_says() {
    let pairs = words(&[3, 0, 1, 0, 4, 0, 2, 0]);
    let forget = |count, payload: &[u8]| {
        let made = Made::new(number::BATCH_FORGET, &words(&[count, 0]), payload);
        assert_eq!(made.both().is_err(), made.over_a_ring().is_err());
        let bytes = made.bytes();
        match Request::of_bytes(&bytes).and_then(|request| request.operation()) {
            Ok(Operation::BatchForget(forgets)) => Some(forgets.collect::<Vec<_>>()),
            _ => None,
        }
    };
    assert_eq!(forget(2, &pairs), Some(vec![(3, 1), (4, 2)]));
    assert_eq!(forget(0, &[]), Some(vec![]));
    for count in [0, 1, 3, 1 << 28, u32::MAX] {
        assert_eq!(forget(count, &pairs), None, "{count}");
    }
    assert_eq!(forget(1, &pairs[..15]), None);
}

#[test]
fn times_are_set_as_the_flags_say() {
    let op = abi::fuse_setattr_in {
        valid: abi::FATTR_ATIME | abi::FATTR_MTIME | abi::FATTR_MTIME_NOW | abi::FATTR_CTIME,
        size: 5,
        atime: (-7_i64).cast_unsigned(),
        atimensec: 8,
        mtime: 9,
        ctime: 10,
        ctimensec: u32::MAX,
        ..Default::default()
    };
    let made = Made::new(number::SETATTR, op.as_bytes(), &[]);
    made.both().expect("a request");
    let bytes = made.bytes();
    let operation = Request::of_bytes(&bytes).expect("a request").operation();
    let at = |seconds, nanos| Time { seconds, nanos };
    let expected = Setattr {
        atime: Some(When::At(at(-7, 8))),
        mtime: Some(When::Now),
        ctime: Some(at(10, 999_999_999)),
        ..Setattr::default()
    };
    assert_eq!(operation, Ok(Operation::Setattr(expected)));
}

#[test]
fn extensions_that_a_request_carries_are_not_its_names() {
    let mut made = Made::new(number::LOOKUP, &[], b"name\0AAAAAAAA");
    made.header.total_extlen = 1;
    assert_eq!(made.both(), Ok("Lookup([110, 97, 109, 101])".into()));
    made.header.total_extlen = 2;
    assert_eq!(made.both(), Err(Malformed));
    made.header.total_extlen = u16::MAX;
    assert_eq!(made.both(), Err(Malformed));
}

/// No bytes whatever make it panic; a request that is cut somewhere is where that would show.
#[test]
fn bytes_at_random_are_a_request_or_not() {
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut good = 0;
    for _ in 0..200_000 {
        let len = 40 + random() as usize % 100;
        let mut bytes: Vec<u8> = (0..len).map(|_| (random() >> 32) as u8).collect();
        bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[4..8].copy_from_slice(&(random() as u32 % 56).to_ne_bytes());
        bytes[36..38].copy_from_slice(&(u16::from(random() % 4 == 0)).to_ne_bytes());
        let operation = Request::of_bytes(&bytes).and_then(|request| request.operation());
        if let Ok(Operation::BatchForget(forgets)) = operation {
            assert!(forgets.count() <= 100);
        }
        good += usize::from(operation.is_ok());
    }
    assert!(good > 10_000, "{good} were requests");
}

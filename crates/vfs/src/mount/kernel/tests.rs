use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::Timestamp;
use crate::database::cache;
use crate::medium::faulty::{Access, Faulty};
use crate::medium::model::ModelMedium;
use crate::medium::{Medium, MediumError};
use crate::records::ROOT;

/// A kernel over an empty file system, and what it was told of.
fn kernel() -> (Kernel, Arc<Mutex<Vec<Ino>>>) {
    kernel_over(Arc::new(ModelMedium::new(16 << 20)))
}

fn kernel_over(medium: Arc<dyn Medium>) -> (Kernel, Arc<Mutex<Vec<Ino>>>) {
    let caller = Caller {
        uid: 1000,
        gid: 1000,
        now: Timestamp::default(),
    };
    let files = Files::open(medium, caller).expect("a file system");
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = Arc::clone(&told);
    let kernel = Kernel::new(Arc::new(files), move |ino| tell.lock().unwrap().push(ino));
    (kernel, told)
}

/// A request as `/dev/fuse` gives it, from user 1000.
fn bytes(opcode: u32, inode: u64, op: &[u32], payload: &[u8]) -> Vec<u8> {
    let len = 40 + 4 * op.len() + payload.len();
    let mut bytes = Vec::new();
    for word in [len as u32, opcode, 1, 0, inode as u32, 0, 1000, 1000, 9, 0] {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    for word in op {
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

fn ask(kernel: &Kernel, request: &[u8], room: &mut [u8]) -> Answer {
    let request = Request::of_bytes(request).expect("a request");
    kernel.answer(&request, room)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Makes a file; its inode.
fn made(kernel: &Kernel, name: &[u8], mode: u32) -> u64 {
    let mut room = [0; 4096];
    // CREATE, O_RDWR.
    let request = bytes(35, ROOT, &[2, libc::S_IFREG | mode, 0, 0], name);
    assert_eq!(ask(kernel, &request, &mut room), Answer::Bytes(128 + 16));
    word(&room, 0)
}

#[test]
fn what_is_written_is_read_and_a_name_that_is_not_there_has_no_inode() {
    let (kernel, told) = kernel();
    let mut room = [7; 4096];
    let lookup = |name: &[u8]| bytes(1, ROOT, &[], name);
    assert_eq!(ask(&kernel, &lookup(b"f\0"), &mut room), Answer::Bytes(128));
    assert_eq!(word(&room, 0), 0);
    assert_eq!(word(&room, 16), 24 * 3600, "may be believed");
    let ino = made(&kernel, b"f\0", 0o4755);
    let write = bytes(16, ino, &[0, 0, 3, 0, 5, 4, 0, 0, 0, 0], b"hello");
    assert_eq!(ask(&kernel, &write, &mut room), Answer::Bytes(8));
    assert_eq!(word(&room, 0), 5);
    assert_eq!(*told.lock().unwrap(), [ino], "the set-user-ID bit went");
    let read = bytes(15, ino, &[0, 0, 1, 0, 4096, 0, 0, 0, 0, 0], b"");
    assert_eq!(ask(&kernel, &read, &mut room), Answer::Bytes(7));
    assert_eq!(room[..7], *b"\0\0hello");
    let mut exact = [0; 4];
    assert_eq!(kernel.read(ino, 4, &mut exact), Answer::Bytes(4));
    assert_eq!(exact, *b"ello");
}

#[test]
fn space_and_bytes_that_a_user_changes_take_rights_away_too() {
    const PUNCH: u32 = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE).cast_unsigned();
    let (kernel, told) = kernel();
    let source = made(&kernel, b"source\0", 0o600);
    let write = bytes(16, source, &[0, 0, 0, 0, 5, 0, 0, 0, 0, 0], b"hello");
    let mut room = [0; 4096];
    assert_eq!(ask(&kernel, &write, &mut room), Answer::Bytes(8));
    let fallocate = |ino, mode| bytes(43, ino, &[0, 0, 0, 0, 4096, 0, mode, 0], b"");
    let copy = |ino: u64| {
        let words = [0, 0, 0, 0, ino as u32, 0, 0, 0, 0, 0, 5, 0, 0, 0];
        bytes(47, source, &words, b"")
    };
    for (name, change) in [
        (
            b"a\0",
            &(|ino| fallocate(ino, 0)) as &dyn Fn(u64) -> Vec<u8>,
        ),
        (b"b\0", &|ino| fallocate(ino, PUNCH)),
        (b"c\0", &copy),
    ] {
        let ino = made(&kernel, name, 0o6755);
        let answer = ask(&kernel, &change(ino), &mut room);
        assert!(matches!(answer, Answer::Bytes(_)), "{answer:?}");
        let mode = kernel.files.inode(ino).expect("an inode").mode & 0o7777;
        assert_eq!(mode, 0o755);
        assert_eq!(std::mem::take(&mut *told.lock().unwrap()), [ino]);
    }
}

#[test]
fn a_read_that_is_longer_than_the_room_is_refused_and_not_cut() {
    let (kernel, _) = kernel();
    let ino = made(&kernel, b"f\0", 0o600);
    let mut room = [0; 100];
    for len in [101, u32::MAX] {
        let read = bytes(15, ino, &[0, 0, 0, 0, len, 0, 0, 0, 0, 0], b"");
        assert_eq!(ask(&kernel, &read, &mut room), Answer::Errno(libc::EINVAL));
    }
    // A reply that has no room is refused as well.
    let getattr = bytes(3, ino, &[0; 4], b"");
    assert_eq!(
        ask(&kernel, &getattr, &mut room),
        Answer::Errno(libc::EINVAL)
    );
}

#[test]
fn attributes_have_the_room_that_was_asked_for() {
    let (kernel, _) = kernel();
    let ino = made(&kernel, b"f\0", 0o600);
    let mut room = [0; 4096];
    let set = bytes(21, ino, &[5, 0], b"user.a\0value");
    assert_eq!(ask(&kernel, &set, &mut room), Answer::Bytes(0));
    let get = |room: u32| bytes(22, ino, &[room, 0], b"user.a\0");
    assert_eq!(ask(&kernel, &get(0), &mut room), Answer::Bytes(8));
    assert_eq!(word(&room, 0), 5);
    assert_eq!(
        ask(&kernel, &get(4), &mut room),
        Answer::Errno(libc::ERANGE)
    );
    assert_eq!(ask(&kernel, &get(5), &mut room), Answer::Bytes(5));
    assert_eq!(room[..5], *b"value");
    let list = |room: u32| bytes(23, ino, &[room, 0], b"");
    assert_eq!(
        ask(&kernel, &list(6), &mut room),
        Answer::Errno(libc::ERANGE)
    );
    assert_eq!(ask(&kernel, &list(100), &mut room), Answer::Bytes(7));
    assert_eq!(room[..7], *b"user.a\0");
}

#[test]
fn what_is_forgotten_has_no_reply_and_a_deleted_file_goes_with_it() {
    let (kernel, _) = kernel();
    let ino = made(&kernel, b"f\0", 0o600);
    let mut room = [0; 4096];
    assert_eq!(
        ask(&kernel, &bytes(10, ROOT, &[], b"f\0"), &mut room),
        Answer::Bytes(0)
    );
    let getattr = bytes(3, ino, &[0; 4], b"");
    assert_eq!(ask(&kernel, &getattr, &mut room), Answer::Bytes(104));
    let release = bytes(18, ino, &[0, 0, 2, 0, 0, 0], b"");
    assert_eq!(ask(&kernel, &release, &mut room), Answer::Bytes(0));
    // Of many at a time; one of them is not known.
    let pairs: Vec<u8> = [99_u64, 1, ino, 1]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    let forget = bytes(42, 0, &[2, 0], &pairs);
    assert_eq!(ask(&kernel, &forget, &mut room), Answer::Nothing);
    assert_eq!(
        ask(&kernel, &getattr, &mut room),
        Answer::Errno(libc::ENOENT)
    );
    let other = made(&kernel, b"g\0", 0o600);
    let one = bytes(2, other, &[1, 0], b"");
    assert_eq!(ask(&kernel, &one, &mut room), Answer::Nothing);
}

#[test]
fn entries_that_have_no_room_come_with_the_next_request() {
    let (kernel, _) = kernel();
    let mut room = [0; 4096];
    for name in ["a", "b", "c", "d"] {
        made(&kernel, format!("{name}\0").as_bytes(), 0o600);
    }
    assert_eq!(
        ask(&kernel, &bytes(27, ROOT, &[0, 0], b""), &mut room),
        Answer::Bytes(16)
    );
    let handle = word(&room, 0) as u32;
    for opcode in [28, 44] {
        let (mut offset, mut names) = (0, Vec::new());
        loop {
            let request = [handle, 0, offset, 0, 400, 0, 0, 0, 0, 0];
            let request = bytes(opcode, ROOT, &request, b"");
            let Answer::Bytes(len) = ask(&kernel, &request, &mut room) else {
                panic!("entries");
            };
            assert!(len <= 400);
            if len == 0 {
                break;
            }
            let mut at = 0;
            while at < len {
                at += if opcode == 44 { 128 } else { 0 };
                offset = word(&room, at + 8) as u32;
                let name_len = word(&room, at + 16) as u32 as usize;
                names.push(String::from_utf8_lossy(&room[at + 24..][..name_len]).into_owned());
                at += (24 + name_len).next_multiple_of(8);
            }
            assert_eq!(at, len);
        }
        assert_eq!(names, [".", "..", "a", "b", "c", "d"], "{opcode}");
    }
}

/// Inodes that a reply to READDIRPLUS tells of, but for `.` and `..`.
fn looked_up(reply: &[u8]) -> Vec<Ino> {
    let (mut at, mut inodes) = (0, Vec::new());
    while at < reply.len() {
        let name_len = word(reply, at + 128 + 16) as u32 as usize;
        if !reply[at + 128 + 24..][..name_len].starts_with(b".") {
            inodes.push(word(reply, at));
        }
        at += 128 + (24 + name_len).next_multiple_of(8);
    }
    inodes
}

#[test]
fn a_listing_that_fails_half_way_leaves_no_file_that_nobody_can_forget() {
    const FILES: usize = 200;
    cache::turn_off();
    let medium = Arc::new(Faulty::new(16 << 20));
    let (kernel, _) = kernel_over(medium.clone());
    let names: Vec<_> = (0..FILES).map(|file| format!("f{file:03}\0")).collect();
    let mut forgets: Vec<Ino> = names
        .iter()
        .map(|name| made(&kernel, name.as_bytes(), 0o600))
        .collect();
    let inodes = forgets.clone();
    kernel.files.commit().expect("a commit");
    let mut room = vec![0; 64 << 10];
    let mut list = || {
        let request = bytes(44, ROOT, &[0, 0, 0, 0, 64 << 10, 0, 0, 0, 0, 0], b"");
        match ask(&kernel, &request, &mut room) {
            Answer::Bytes(len) => Ok(looked_up(&room[..len])),
            other => Err(other),
        }
    };
    let read_count = Arc::new(AtomicU64::new(0));
    let reads = Arc::clone(&read_count);
    medium.refuse(move |access| {
        let is_read = access == Access::Read;
        reads.fetch_add(u64::from(is_read), Ordering::Relaxed);
        None
    });
    let all = list().expect("a listing");
    assert_eq!(all.len(), FILES);
    forgets.extend(all);
    // The last of these reads is one of the second part of the names.
    let left = read_count;
    medium.refuse(move |access| {
        let is_last = access == Access::Read && left.fetch_sub(1, Ordering::Relaxed) == 1;
        is_last.then_some(MediumError::Io)
    });
    let half = list().expect("what was read before");
    assert!((1..FILES).contains(&half.len()), "{}", half.len());
    forgets.extend(half);

    medium.refuse(|_| None);
    kernel.files.commit().expect("it is opened again");
    for name in &names {
        let unlink = bytes(10, ROOT, &[], name.as_bytes());
        assert_eq!(ask(&kernel, &unlink, &mut room), Answer::Bytes(0));
    }
    for ino in forgets {
        let forget = bytes(2, ino, &[1, 0], b"");
        assert_eq!(ask(&kernel, &forget, &mut room), Answer::Nothing);
    }
    let is_gone = |ino: &Ino| kernel.files.inode(*ino) == Err(FsError::NotFound);
    assert!(inodes.iter().all(is_gone));
}

/// Names of a reply to READDIR, each with where the listing goes on after it.
fn names_at(kernel: &Kernel, handle: u32, offset: u32, most: u32) -> Vec<(Vec<u8>, u32)> {
    let mut room = [0; 4096];
    let request = [handle, 0, offset, 0, most, 0, 0, 0, 0, 0];
    let request = bytes(28, ROOT, &request, b"");
    let Answer::Bytes(len) = ask(kernel, &request, &mut room) else {
        panic!("entries");
    };
    let (mut at, mut names) = (0, Vec::new());
    while at < len {
        let name_len = word(&room, at + 16) as u32 as usize;
        let name = room[at + 24..][..name_len].to_vec();
        names.push((name, word(&room, at + 8) as u32));
        at += (24 + name_len).next_multiple_of(8);
    }
    names
}

#[test]
fn a_listing_goes_on_at_any_offset_that_was_told_also_after_a_step_back() {
    let (kernel, _) = kernel();
    for file in 0..500 {
        made(&kernel, format!("f{file:03}\0").as_bytes(), 0o600);
    }
    let open = || {
        let mut room = [0; 4096];
        let opened = ask(&kernel, &bytes(27, ROOT, &[0, 0], b""), &mut room);
        assert_eq!(opened, Answer::Bytes(16));
        word(&room, 0) as u32
    };
    let handle = open();
    let mut listed: Vec<(Vec<u8>, u32)> = Vec::new();
    loop {
        let offset = listed.last().map_or(0, |(_, offset)| *offset);
        let more = names_at(&kernel, handle, offset, 4096);
        if more.is_empty() {
            break;
        }
        listed.extend(more);
    }
    assert_eq!(listed.len(), 502);
    for at in [1, 2, 3, 130, 400, 500] {
        // Room for one entry.
        assert_eq!(names_at(&kernel, handle, 0, 32), listed[..1]);
        let offset = listed[at].1;
        for handle in [handle, open()] {
            let next = names_at(&kernel, handle, offset, 32);
            assert_eq!(next, listed[at + 1..at + 2], "at {offset}");
        }
    }
    let end = listed[501].1;
    assert_eq!(names_at(&kernel, open(), end, 4096), []);
    assert_eq!(names_at(&kernel, open(), end + 1000, 4096), []);
}

#[test]
fn what_is_not_known_or_makes_no_sense_is_an_error() {
    let (kernel, _) = kernel();
    let mut room = [0; 4096];
    // FLUSH, INTERRUPT, IOCTL, a number of no kernel.
    for (opcode, op) in [(25, 6), (36, 2), (39, 8), (4096, 0)] {
        let request = bytes(opcode, ROOT, &vec![0; op], b"");
        assert_eq!(
            ask(&kernel, &request, &mut room),
            Answer::Errno(libc::ENOSYS),
            "{opcode}"
        );
    }
    // A name without an end.
    let endless = bytes(1, ROOT, &[], b"name");
    assert_eq!(
        ask(&kernel, &endless, &mut room),
        Answer::Errno(libc::EINVAL)
    );
    // RENAME2 with flags that no kernel has, LSEEK of SEEK_SET and from beyond all files.
    let rename = bytes(45, ROOT, &[1, 0, 1 << 9, 0], b"a\0b\0");
    assert_eq!(
        ask(&kernel, &rename, &mut room),
        Answer::Errno(libc::EINVAL)
    );
    let seek = |offset_high, whence| bytes(46, ROOT, &[0, 0, 0, offset_high, whence, 0], b"");
    assert_eq!(
        ask(&kernel, &seek(0, 0), &mut room),
        Answer::Errno(libc::EINVAL)
    );
    assert_eq!(
        ask(&kernel, &seek(1 << 31, 3), &mut room),
        Answer::Errno(libc::ENXIO)
    );
    // DESTROY.
    assert_eq!(
        ask(&kernel, &bytes(38, 0, &[], b""), &mut room),
        Answer::Bytes(0)
    );
}

//! Random operations on a file here and on one of another file system, which must stay the same: by
//! system calls, past the cache, through mmap, across remounts.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use cenote_vfs::medium::model::mix;

use crate::mount::Mounted;

/// Largest file; arbitrary.
const FILE_BYTES: u64 = 300_000;
const PAGE: u64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % bound.max(1)
    }
}

#[derive(Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Direct(u64, u64, u8),
    Mapped(u64, Vec<u8>),
    Cut(u64),
    Allocate(i32, u64, u64),
    CopyRange(u64, u64, u64),
    Read(u64, u64),
    Sync,
    Forget,
    Reopen,
}

fn step(random: &mut Random, size: u64) -> Step {
    let at = match random.below(3) {
        0 => random.below(FILE_BYTES / PAGE) * PAGE,
        _ => random.below(FILE_BYTES),
    };
    let len = 1 + random.below((FILE_BYTES - at).min(70_000));
    let fill = 1 + random.below(250) as u8;
    let keep = libc::FALLOC_FL_KEEP_SIZE;
    match random.below(20) {
        0..=4 => Step::Write(at, vec![fill; len as usize]),
        5 => Step::Direct(at / PAGE * PAGE, (len / PAGE).max(1) * PAGE, fill),
        6 | 7 if size > 0 => {
            let at = at % size;
            Step::Mapped(at, vec![fill; len.min(size - at) as usize])
        }
        8 | 9 => Step::Cut(at),
        10 => Step::Allocate([0, keep][random.below(2) as usize], at, len),
        11 => Step::Allocate(libc::FALLOC_FL_PUNCH_HOLE | keep, at, len),
        12 => Step::Allocate(
            libc::FALLOC_FL_ZERO_RANGE | [0, keep][random.below(2) as usize],
            at,
            len,
        ),
        13 => {
            let (from, to) = (at / 2, FILE_BYTES / 2 + at / 2);
            Step::CopyRange(from, to, len.min(to - from).min(FILE_BYTES - to))
        }
        14 => Step::Sync,
        15 => Step::Forget,
        16 => Step::Reopen,
        _ => Step::Read(at, len),
    }
}

fn opened(path: &Path, flags: i32) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(flags).open(path).expect("a file")
}

/// A buffer that begins with a page, as O_DIRECT wants it.
fn aligned(len: u64, fill: u8) -> (Vec<u8>, usize) {
    let buffer = vec![fill; (len + PAGE) as usize];
    let offset = buffer.as_ptr().align_offset(PAGE as usize);
    (buffer, offset)
}

fn fallocate(file: &File, mode: i32, at: u64, len: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open for the call.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, at as i64, len as i64) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Writes through a shared mapping of the whole file.
fn write_mapped(file: &File, size: u64, at: u64, bytes: &[u8]) {
    let (len, fd) = (size as usize, file.as_raw_fd());
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the mapping is of an open file, checked, written within its length, and unmapped.
    unsafe {
        let map = libc::mmap(std::ptr::null_mut(), len, rights, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED, "{}", io::Error::last_os_error());
        let target = map.cast::<u8>().add(at as usize);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
        assert_eq!(libc::munmap(map, len), 0);
    }
}

fn copy_range(file: &File, from: u64, to: u64, len: u64) -> io::Result<()> {
    let (mut from, mut to, mut left) = (from as i64, to as i64, len as usize);
    while left > 0 {
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open and the offsets live for the call.
        let done = unsafe { libc::copy_file_range(fd, &raw mut from, fd, &raw mut to, left, 0) };
        match done {
            0 => return Ok(()),
            done if done > 0 => left -= done as usize,
            _ => return Err(io::Error::last_os_error()),
        }
    }
    Ok(())
}

/// One file, and how it is reached.
struct Side {
    path: PathBuf,
    file: File,
}

impl Side {
    fn new(path: PathBuf) -> Self {
        let file = opened(&path, 0);
        Self { path, file }
    }

    fn run(&mut self, step: &Step, supports_direct: bool) -> io::Result<()> {
        match step {
            Step::Write(at, bytes) => self.file.write_all_at(bytes, *at),
            Step::Direct(at, len, fill) => {
                let (buffer, offset) = aligned(*len, *fill);
                let part = &buffer[offset..offset + *len as usize];
                match supports_direct {
                    true => opened(&self.path, libc::O_DIRECT).write_all_at(part, *at),
                    false => self.file.write_all_at(part, *at),
                }
            }
            Step::Mapped(at, bytes) => {
                let size = self.file.metadata()?.len();
                write_mapped(&self.file, size, *at, bytes);
                Ok(())
            }
            Step::Cut(size) => self.file.set_len(*size),
            Step::Allocate(mode, at, len) => fallocate(&self.file, *mode, *at, *len),
            Step::CopyRange(from, to, len) => copy_range(&self.file, *from, *to, *len),
            Step::Read(..) => Ok(()),
            Step::Sync => self.file.sync_all(),
            Step::Forget => {
                self.file.sync_all()?;
                let fd = self.file.as_raw_fd();
                // SAFETY: the descriptor is open for the call.
                unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) };
                Ok(())
            }
            Step::Reopen => {
                self.file = opened(&self.path, 0);
                Ok(())
            }
        }
    }

    fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        let size = self.file.metadata().expect("metadata").len();
        let mut bytes = vec![0; len.min(size.saturating_sub(at)) as usize];
        self.file.read_exact_at(&mut bytes, at).expect("a read");
        bytes
    }
}

/// The other file system may lack what a step needs (tmpfs zeroes no range): bytes stand in for it.
fn run_elsewhere(side: &mut Side, step: &Step) {
    let outcome = side.run(step, false);
    let Step::Allocate(mode, at, len) = *step else {
        return outcome.expect("a step elsewhere");
    };
    if outcome.is_err() {
        let size = side.file.metadata().expect("metadata").len();
        let grown = match mode & libc::FALLOC_FL_KEEP_SIZE {
            0 => size.max(at + len),
            _ => size,
        };
        side.file.set_len(grown).expect("a size");
        let end = (at + len).min(grown);
        if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 && at < end {
            side.file
                .write_all_at(&vec![0; (end - at) as usize], at)
                .expect("zeros");
        }
    }
}

fn exercise(seed: u64, count: u64) {
    let Some(mut mounted) = Mounted::new(24 << 20) else {
        return;
    };
    let elsewhere = tempfile::tempdir().expect("a folder");
    let mut there = Side::new(elsewhere.path().join("file"));
    let mut here = Side::new(mounted.at("file"));
    let mut random = Random(seed);
    let mut log = Vec::new();
    for number in 0..count {
        if number % 200 == 199 {
            drop(here);
            mounted.again();
            here = Side::new(mounted.at("file"));
        }
        let size = there.file.metadata().expect("metadata").len();
        let step = step(&mut random, size);
        run_elsewhere(&mut there, &step);
        let outcome = here.run(&step, true);
        assert!(
            outcome.is_ok(),
            "seed {seed}, step {number}: {step:?}: {outcome:?}"
        );
        let (at, len) = match step {
            Step::Read(at, len) => (at, len),
            _ if number % 50 == 0 => (0, FILE_BYTES * 2),
            _ => continue,
        };
        log.push(number);
        let (expected, found) = (there.bytes(at, len), here.bytes(at, len));
        let differs = expected.iter().zip(&found).position(|(a, b)| a != b);
        assert!(
            expected.len() == found.len() && differs.is_none(),
            "seed {seed}, step {number}: {} and {} bytes from {at} on differ at {differs:?}",
            expected.len(),
            found.len()
        );
    }
    assert!(!log.is_empty());
    drop(here);
    fs::remove_file(mounted.at("file")).expect("a deletion");
}

#[test]
fn a_file_is_what_it_is_elsewhere() {
    exercise(1, 600);
}

mod long {
    use super::*;

    #[test]
    fn a_file_is_what_it_is_elsewhere() {
        for seed in 10..18 {
            exercise(seed, 1500);
        }
    }
}

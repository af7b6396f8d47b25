//! Real regions: real page faults of real threads, real hosts, some of which die.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_pager::{Handlers, MemoryError, Region, RegionAllocator, RegionConfig, RegionError};
use cenote_test_kit::cluster::{Cluster, Transport};
use cenote_test_kit::{Random, page, wait_until};
use cenote_volume::{PAGE_BYTES, Volume};

const MIB: u64 = 1 << 20;

/// One of two handlers.
fn region(volume: &Volume, len_bytes: u64, resident_max_bytes: u64) -> Region {
    region_of(2, volume, len_bytes, resident_max_bytes)
}

fn region_of(handlers: usize, volume: &Volume, len_bytes: u64, resident_max_bytes: u64) -> Region {
    let config = RegionConfig {
        offset: 0,
        len_bytes,
        resident_max_bytes,
        handlers: Handlers::new(handlers).expect("a number of handlers"),
    };
    Region::new(volume, config).unwrap_or_else(|error| panic!("{error}"))
}

fn cluster(hosts: usize, transport: Transport) -> Cluster {
    Cluster::start(hosts, transport, 32 * MIB, MIB)
}

/// Says why regions cannot be tested here, if they cannot.
fn is_skipped() -> bool {
    match cenote_pager::works() {
        Ok(()) => false,
        Err(error @ (MemoryError::Denied(_) | MemoryError::Kernel { .. })) => {
            println!("skipped: regions of memory: {error}");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

/// Bytes of the region that are in this machine's memory, as the kernel counts them.
fn resident(region: &Region) -> u64 {
    let pages = region.bytes().len() / PAGE_BYTES;
    let mut there = vec![0_u8; pages];
    // SAFETY: the range is a mapping, and `there` has a byte for each of its pages.
    let result = unsafe {
        libc::mincore(
            region.base().as_ptr().cast(),
            region.bytes().len(),
            there.as_mut_ptr(),
        )
    };
    assert_eq!(result, 0);
    there.iter().filter(|page| **page & 1 == 1).count() as u64 * PAGE_BYTES as u64
}

fn walks(transport: Transport, handlers: usize) {
    let cluster = cluster(6, transport);
    let volume = cluster.volume("rs:4+2", 16 * MIB);
    let mut region = region_of(handlers, &volume, 16 * MIB, 4 * MIB);
    for round in 0..3 {
        for (index, bytes) in region.bytes_mut().chunks_exact_mut(PAGE_BYTES).enumerate() {
            if round > 0 {
                assert!(bytes == page(index as u64, round - 1), "page {index}");
            }
            bytes.copy_from_slice(&page(index as u64, round));
        }
    }
    for (index, bytes) in region.bytes().chunks_exact(PAGE_BYTES).enumerate() {
        assert!(bytes == page(index as u64, 2), "page {index}");
    }
    assert!(resident(&region) <= 4 * MIB, "{}", resident(&region));
    let counters = region.status().counters;
    assert!(counters.reads_ahead_useful > counters.reads, "{counters:?}");
    assert_eq!((counters.lost, counters.write_failures), (0, 0));
}

#[test]
fn what_is_written_is_read_over_shm_and_little_is_resident() {
    if is_skipped() {
        return;
    }
    walks(Transport::Shm, 1);
    walks(Transport::Shm, 3);
}

#[test]
fn what_is_written_is_read_over_tcp_and_little_is_resident() {
    if is_skipped() {
        return;
    }
    walks(Transport::Tcp, 2);
}

#[test]
fn threads_that_write_and_read_everywhere_see_their_own_bytes() {
    if is_skipped() {
        return;
    }
    const THREADS: u64 = 4;
    const WORDS: u64 = PAGE_BYTES as u64 / 8;
    let cluster = cluster(5, Transport::Shm);
    let volume = cluster.volume("rs:4+1", 12 * MIB);
    let region = region(&volume, 12 * MIB, 2 * MIB);
    let pages = region.bytes().len() as u64 / PAGE_BYTES as u64;
    let base = region.base().as_ptr() as usize;
    // Each thread has a word of every page for itself.
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = Random(thread);
                let mut truth = vec![0_u64; pages as usize];
                for step in 1..40_000_u64 {
                    let at = random.below(pages);
                    let word = (base as u64 + (at * WORDS + thread) * 8) as *mut u64;
                    // SAFETY: the word is inside the region, which outlives the scope; no other
                    // thread touches it.
                    let seen = unsafe { word.read_volatile() };
                    assert_eq!(seen, truth[at as usize], "thread {thread}, page {at}");
                    if random.below(3) == 0 {
                        truth[at as usize] = step;
                        // SAFETY: as above.
                        unsafe { word.write_volatile(step) };
                    }
                }
            });
        }
    });
    assert!(resident(&region) <= 2 * MIB);
}

#[test]
fn hosts_that_die_cost_no_byte() {
    if is_skipped() {
        return;
    }
    let mut cluster = cluster(8, Transport::Shm);
    let volume = cluster.volume("rs:4+2", 16 * MIB);
    let mut region = region(&volume, 16 * MIB, 2 * MIB);
    for round in 0..4 {
        for (index, bytes) in region.bytes_mut().chunks_exact_mut(PAGE_BYTES).enumerate() {
            if round > 0 {
                assert!(bytes == page(index as u64, round - 1), "page {index}");
            }
            bytes.copy_from_slice(&page(index as u64, round));
            if index == 2_000 && (1..3).contains(&round) {
                cluster.stop(round as usize);
            }
        }
    }
}

#[test]
fn system_calls_may_fault_too() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("mirror:3", 8 * MIB);
    let mut region = region(&volume, 8 * MIB, MIB);
    let mut source = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut source, &vec![7; 8 << 20]).unwrap();
    let mut source = reopened(&source);
    source.read_exact(region.bytes_mut()).unwrap();
    assert!(region.bytes().iter().all(|byte| *byte == 7));
    let mut target = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut target, region.bytes()).unwrap();
    let mut copied = Vec::new();
    reopened(&target).read_to_end(&mut copied).unwrap();
    assert!(copied == region.bytes());
}

/// The same file, read from its beginning.
fn reopened(file: &File) -> File {
    use std::os::fd::AsRawFd;
    File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()
}

#[test]
fn what_is_discarded_is_zeros_and_gives_memory_back() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let mut region = region(&volume, 8 * MIB, MIB);
    region.bytes_mut().fill(9);
    region.discard(100..2_000);
    for (index, bytes) in region.bytes().chunks_exact(PAGE_BYTES).enumerate() {
        let wanted = if (100..2_000).contains(&index) { 0 } else { 9 };
        assert!(bytes.iter().all(|byte| *byte == wanted), "page {index}");
    }
    region.bytes_mut()[150 * PAGE_BYTES] = 1;
    assert_eq!(region.bytes()[150 * PAGE_BYTES], 1);
}

#[test]
fn collections_may_live_in_a_region() {
    use allocator_api2::{boxed::Box, vec::Vec};
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 24 * MIB);
    let memory = RegionAllocator::new(region(&volume, 24 * MIB, MIB));
    let mut numbers: Vec<u64, &RegionAllocator> = Vec::new_in(&memory);
    numbers.extend((0..500_000).map(|n| n * n));
    let page = Box::new_in([7_u8; PAGE_BYTES], &memory);
    assert!(numbers.iter().zip(0..).all(|(number, n)| *number == n * n));
    assert!(page.iter().all(|byte| *byte == 7));
    // What is freed is there again, and zeros.
    drop(numbers);
    let mut bytes: Vec<u8, &RegionAllocator> = Vec::new_in(&memory);
    assert!(bytes.try_reserve_exact(25 << 20).is_err());
    bytes.try_reserve_exact(16 << 20).expect("room");
    assert!(resident(memory.region()) <= MIB);
}

#[test]
fn room_can_change_in_use() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let mut region = region(&volume, 8 * MIB, 8 * MIB);
    region.bytes_mut().fill(5);
    assert_eq!(region.status().counters.drops, 0);
    region.set_resident_max(MIB).unwrap();
    wait_until(
        || region.status().resident_bytes <= MIB,
        || format!("{:?}", region.status()),
    );
    assert!(resident(&region) <= MIB);
    assert!(region.bytes().iter().all(|byte| *byte == 5));
}

#[test]
fn what_is_touched_may_take_the_room_of_what_is_not() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 16 * MIB);
    let mut region = region(&volume, 16 * MIB, 4 * MIB);
    region.bytes_mut().fill(7);
    // Every second MiB is one handler's; three of these are more than an equal part of the room.
    let walk = || {
        for at in (0..6 * MIB as usize).step_by(PAGE_BYTES) {
            if (at as u64 / MIB).is_multiple_of(2) {
                assert_eq!(region.bytes()[at], 7);
            }
        }
        region.status().counters.faults
    };
    let mut before = walk();
    wait_until(
        || {
            let now = walk();
            std::mem::replace(&mut before, now) == now
        },
        || format!("{:?}", region.status()),
    );
    assert!(resident(&region) <= 4 * MIB);
}

#[test]
fn locked_memory_is_served_as_other_memory_is() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    // SAFETY: takes no pointers.
    if unsafe { libc::mlockall(libc::MCL_FUTURE) } < 0 {
        println!("skipped: locked memory: needs the right to lock");
        return;
    }
    let mut region = region(&volume, 8 * MIB, MIB);
    let there = resident(&region);
    // SAFETY: as above.
    unsafe { libc::munlockall() };
    assert_eq!(there, 0, "nothing is here before it is touched");
    for bytes in region.bytes_mut().chunks_exact_mut(PAGE_BYTES) {
        // SAFETY: the page is the region's. It may go all the same.
        assert_eq!(unsafe { libc::mlock(bytes.as_ptr().cast(), PAGE_BYTES) }, 0);
        bytes.fill(5);
    }
    assert!(region.bytes().iter().all(|byte| *byte == 5));
    assert!(resident(&region) <= MIB);
}

#[test]
fn lost_bytes_raise_sigbus_and_never_become_others() {
    if is_skipped() {
        return;
    }
    let mut cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let mut region = region_of(1, &volume, 8 * MIB, MIB);
    region.bytes_mut().fill(3);
    // A page whose write fails stays here. If all did, no touch would find room: so some have gone.
    wait_until(
        || {
            let status = region.status();
            status.room_bytes > status.resident_bytes
        },
        || format!("some room: {:?}", region.status()),
    );
    cluster.stop(0);
    cluster.stop(1);
    cluster.stop(2);
    // Where the page can still be read it is as it was; the others say so.
    let lost = AtomicBool::new(false);
    let base = region.base().as_ptr();
    for index in 0..64 {
        // SAFETY: the address is inside the region.
        let at = unsafe { base.add(index * 32 * PAGE_BYTES) };
        match touch(at) {
            Some(byte) => assert_eq!(byte, 3, "page {}", index * 32),
            None => lost.store(true, Ordering::Relaxed),
        }
    }
    assert!(lost.load(Ordering::Relaxed));
    assert!(region.status().counters.lost > 0);
}

/// Reads a byte by a system call, which says EFAULT where a thread would get SIGBUS.
fn touch(at: *const u8) -> Option<u8> {
    let (mut ends, mut byte) = ([0; 2], 0_u8);
    // SAFETY: `ends` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the kernel checks the address.
    let written = unsafe { libc::write(ends[1], at.cast(), 1) };
    if written == 1 {
        // SAFETY: `byte` is valid for one byte.
        assert_eq!(unsafe { libc::read(ends[0], (&raw mut byte).cast(), 1) }, 1);
    }
    for end in ends {
        // SAFETY: the descriptor is this function's own.
        unsafe { libc::close(end) };
    }
    (written == 1).then_some(byte)
}

#[test]
fn what_is_no_region_is_refused() {
    if is_skipped() {
        return;
    }
    let cluster = cluster(3, Transport::Shm);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let refused = |offset, len_bytes, resident_max_bytes| {
        let config = RegionConfig {
            offset,
            len_bytes,
            resident_max_bytes,
            handlers: Handlers::default(),
        };
        Region::new(&volume, config).err().expect("refused")
    };
    for (offset, len_bytes) in [
        (0, 0),
        (1, 4096),
        (0, 4097),
        (4096, 8 * MIB),
        (u64::MAX - 4095, 4096),
    ] {
        let error = refused(offset, len_bytes, MIB);
        assert!(matches!(error, RegionError::Range { .. }), "{error}");
    }
    assert!(matches!(refused(0, MIB, 4096), RegionError::Resident(4096)));
}

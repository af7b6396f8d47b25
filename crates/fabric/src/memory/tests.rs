use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;
use crate::{Generation, Rights, WindowId};

const MIB: u64 = 1 << 20;

fn read(mapping: &Mapping, start: usize, target: &mut [u8]) -> std::result::Result<(), Dead> {
    assert!(start + target.len() <= mapping.view.len_bytes());
    // SAFETY: in bounds as just asserted; `target` is exclusive.
    unsafe { mapping.view.read(start, target.as_mut_ptr(), target.len()) }
}

fn seal(region: &Region, seals: libc::c_int) -> libc::c_int {
    // SAFETY: no pointers.
    unsafe { libc::fcntl(region.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) }
}

fn region(len_bytes: u64) -> Region {
    Region::create("test", len_bytes, RegionOptions::default()).unwrap()
}

fn mapping(region: &Region, rights: Rights) -> Mapping {
    let grant = region.grant(rights.contains(Rights::WRITE)).unwrap();
    let descriptor = WindowDescriptor {
        id: WindowId(0),
        generation: Generation(1),
        len_bytes: region.len_bytes(),
        rights,
    };
    Mapping::new(grant.as_fd(), descriptor).unwrap()
}

#[test]
fn a_client_sees_what_the_host_wrote_and_the_other_way_round() {
    for options in [
        RegionOptions::default(),
        RegionOptions {
            huge: true,
            reserved: true,
            lock: false,
        },
    ] {
        let region = Region::create("test", 4 * MIB, options).unwrap();
        region.populate().unwrap();
        let mapping = mapping(&region, Rights::ALL);
        region.write(MIB + 5, b"from the host").unwrap();
        let mut seen = [0; 13];
        read(&mapping, MIB as usize + 5, &mut seen).unwrap();
        assert_eq!(&seen, b"from the host");
        // SAFETY: in bounds, writable.
        unsafe { mapping.view.write(0, b"back".as_ptr(), 4) }.unwrap();
        assert_eq!(mapping.view.fetch_add(8, 5), Ok(0));
        assert_eq!(mapping.view.compare_swap(8, 4, 9), Ok(5));
        assert_eq!(mapping.view.compare_swap(8, 5, 0x0102), Ok(5));
        let mut head = [0; 16];
        region.read(0, &mut head).unwrap();
        assert_eq!(&head, b"back\0\0\0\0\x02\x01\0\0\0\0\0\0");
    }
}

#[test]
fn a_memfd_can_be_cut_but_neither_grown_nor_sealed() {
    let region = region(8192);
    assert!(set_len(&region.fd, 8193).is_err());
    assert_eq!(seal(&region, libc::F_SEAL_SHRINK), -1);
    region.truncate().unwrap();
    assert!(set_len(&region.fd, 8192).is_err(), "given back for good");
}

#[test]
fn a_read_only_grant_cannot_be_mapped_for_writing_or_cut() {
    let region = region(4096);
    let grant = region.grant(false).unwrap();
    assert!(View::map(grant.as_fd(), 4096, true).is_err());
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(grant.as_fd().as_raw_fd(), 0) }, -1);
}

/// A peer may open what it was granted once more, by the path of its descriptor.
#[test]
fn kept_memory_that_peers_only_read_is_neither_written_nor_cut_by_any_descriptor_of_it() {
    let region = Region::create_kept("test", 8192, RegionOptions::default()).unwrap();
    region.seal(Rights::READ).unwrap();
    region.write(0, b"before").unwrap();
    let grant = region.grant(false).unwrap();
    let open = |fd: BorrowedFd<'_>, is_to_write| {
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        File::options().read(true).write(is_to_write).open(path)
    };
    let again = open(grant.as_fd(), true);
    let fds = [
        Ok(grant.as_fd()),
        Ok(region.as_fd()),
        again.as_ref().map(AsFd::as_fd),
    ];
    for fd in fds.into_iter().filter_map(std::result::Result::ok) {
        assert!(View::map(fd, 8192, true).is_err(), "mapped for writing");
        let file = File::from(fd.try_clone_to_owned().unwrap());
        assert!(file.write_at(b"other", 0).is_err(), "written");
        assert!(file.set_len(0).is_err(), "cut");
        assert!(file.set_len(1 << 20).is_err(), "grown");
    }
    // Its owner's mapping goes on, and so do readers'.
    region.write(0, b"after ").unwrap();
    let mut seen = [0; 6];
    read(&mapping(&region, Rights::READ), 0, &mut seen).unwrap();
    assert_eq!(&seen, b"after ");
    region.truncate().unwrap();
    assert!(!region.is_dead(), "it is kept");
    // For good: another owner of its windows cannot have it written.
    region.seal(Rights::READ).unwrap();
    assert!(region.seal(Rights::ALL).is_err());
}

#[test]
fn kept_memory_that_peers_write_is_not_cut() {
    let region = Region::create_kept("test", 4096, RegionOptions::default()).unwrap();
    region.seal(Rights::ALL).unwrap();
    let grant = region.grant(true).unwrap();
    assert!(View::map(grant.as_fd(), 4096, true).is_ok());
    assert_eq!(seal(&region, libc::F_SEAL_FUTURE_WRITE), -1);
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::ftruncate(grant.as_fd().as_raw_fd(), 0) }, -1);
    region.seal(Rights::ALL).unwrap();
}

#[test]
fn memory_is_opened_by_its_user_alone() {
    let file = File::from(region(4096).as_fd().try_clone_to_owned().unwrap());
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
}

#[test]
fn both_sides_survive_the_loss_and_are_told() {
    let region = region(2 * MIB);
    let mapping = mapping(&region, Rights::ALL);
    // As a client would: the host's own flag is not set by it.
    set_len(&region.fd, 0).unwrap();
    let mut bytes = [1; 4096];
    assert_eq!(region.read(4096, &mut bytes), Err(Dead));
    assert_eq!(region.write(4096, &bytes), Err(Dead));
    assert!(region.is_dead());
    assert_eq!(read(&mapping, 0, &mut bytes), Err(Dead));
    assert_eq!(mapping.view.fetch_add(0, 1), Err(Dead));
    assert!(region.populate().is_err() || region.is_dead());
}

#[test]
fn bytes_in_place_are_the_memory_itself_until_it_is_gone() {
    let region = region(2 * MIB);
    let window = crate::RemoteWindow::new(
        mapping(&region, Rights::READ).descriptor,
        Some(Arc::new(mapping(&region, Rights::READ))),
    );
    let (out, seen) = (region.in_place(4096, 8), window.in_place(4096, 8));
    let seen = seen.expect("it is mapped").unwrap();
    // SAFETY: a range of the region, 8 bytes long; no reference covers it.
    unsafe { out.pointer().cast::<u64>().write_volatile(7) };
    // SAFETY: the same range, in the client's mapping.
    let read = || unsafe { seen.pointer().cast::<u64>().read_volatile() };
    assert_eq!((read(), seen.alive(), seen.len_bytes()), (7, Ok(()), 8));
    let stale = crate::RemoteWindow {
        descriptor: WindowDescriptor {
            generation: Generation(2),
            ..window.descriptor
        },
        ..window.clone()
    };
    let refused = stale.in_place(4096, 8).expect("it is mapped");
    assert_eq!(refused.unwrap_err(), crate::Status::StaleGeneration);
    set_len(&region.fd, 0).unwrap();
    assert_eq!(seen.alive(), Ok(()), "nobody touched it since");
    assert_eq!((read(), seen.alive()), (0, Err(Dead)));
    let refused = window.in_place(0, 0).expect("it is mapped");
    assert_eq!(refused.unwrap_err(), crate::Status::StaleGeneration);
}

#[test]
fn a_copy_that_is_under_way_when_the_memory_goes_ends_dead() {
    for _ in 0..50 {
        let region = region(MIB);
        region.populate().unwrap();
        let mapping = mapping(&region, Rights::ALL);
        let started = AtomicBool::new(false);
        thread::scope(|scope| {
            let copier = scope.spawn(|| {
                let mut bytes = vec![0; MIB as usize];
                let mut copies = 0_u32;
                // Used, or an optimised build has no reason to copy.
                while read(&mapping, 0, std::hint::black_box(&mut bytes)).is_ok() {
                    copies += 1;
                    started.store(true, Ordering::Release);
                }
                copies
            });
            while !started.load(Ordering::Acquire) {
                thread::yield_now();
            }
            region.truncate().unwrap();
            assert!(copier.join().unwrap() > 0);
        });
    }
}

#[test]
fn mappings_come_and_go_while_others_fault() {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let held: Vec<_> = (0..40).map(|_| region(4096)).collect();
                for region in &held {
                    assert_eq!(region.read(0, &mut [1; 8]), Ok(()));
                }
            }
        });
        for _ in 0..300 {
            let region = region(4096);
            set_len(&region.fd, 0).unwrap();
            assert_eq!(region.read(0, std::hint::black_box(&mut [0; 8])), Err(Dead));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn ten_thousand_mappings_stand_at_once() {
    raise_descriptor_limit();
    let region = Arc::new(region(4096));
    let mappings: Vec<_> = (0..10_000)
        .map(|_| mapping(&region, Rights::READ))
        .collect();
    region.write(0, &[9]).unwrap();
    let mut byte = [0];
    for mapping in &mappings {
        read(mapping, 0, &mut byte).unwrap();
        assert_eq!(byte, [9]);
    }
    region.truncate().unwrap();
    assert_eq!(read(&mappings[9_999], 0, &mut byte), Err(Dead));
    assert_eq!(read(&mappings[0], 0, &mut byte), Err(Dead));
}

#[test]
fn a_mapping_of_a_window_that_is_gone_or_short_is_refused() {
    let region = region(4096);
    let fd = region.fd.as_fd();
    let mut descriptor = WindowDescriptor {
        id: WindowId(0),
        generation: Generation(1),
        len_bytes: 8192,
        rights: Rights::READ,
    };
    assert!(matches!(
        Mapping::new(fd, descriptor),
        Err(Error::StaleWindow)
    ));
    descriptor.len_bytes = 4096;
    region.truncate().unwrap();
    assert!(matches!(
        Mapping::new(fd, descriptor),
        Err(Error::StaleWindow)
    ));
}

#[test]
fn a_locked_region_is_locked_by_the_kernel() {
    let options = RegionOptions {
        huge: false,
        reserved: false,
        lock: true,
    };
    let region = Region::create("cenote-locked", 64 << 10, options).unwrap();
    region.populate().unwrap();
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let ours = maps
        .split("memfd:cenote-locked")
        .nth(1)
        .expect("the region is mapped");
    let flags = ours
        .lines()
        .find(|line| line.starts_with("VmFlags:"))
        .unwrap();
    assert!(flags.split(' ').any(|flag| flag == "lo"), "{flags}");
}

/// Runs one of the tests below alone in another process, where it may install handlers and die.
fn run_alone(test: &str) -> std::process::ExitStatus {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("memory::tests::{test}"),
            "--ignored",
            "--nocapture",
        ])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
}

fn fault_outside_our_mappings() {
    let foreign = region(4096);
    set_len(&foreign.fd, 0).unwrap();
    // SAFETY: a new mapping; reading it faults, as this is meant to.
    unsafe {
        let fd = foreign.fd.as_raw_fd();
        let start = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_SHARED,
            fd,
            0,
        );
        assert_ne!(start, libc::MAP_FAILED);
        start.cast::<u8>().read_volatile();
    }
}

const HANDLED: i32 = 42;

#[test]
fn a_fault_that_is_not_ours_reaches_the_handler_before_us() {
    assert_eq!(
        run_alone("child_with_an_earlier_handler").code(),
        Some(HANDLED)
    );
}

#[test]
#[ignore = "run in a process of its own by another test"]
fn child_with_an_earlier_handler() {
    extern "C" fn leave(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: an SA_SIGINFO handler gets a valid siginfo; `_exit` may be called here.
        unsafe {
            libc::_exit(if (*info).si_code == libc::BUS_ADRERR {
                HANDLED
            } else {
                1
            })
        }
    }
    // SAFETY: a valid sigaction with a handler of the type that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = leave as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    fault_outside_our_mappings();
}

#[test]
fn a_fault_that_is_nobodys_ends_the_process() {
    assert_eq!(
        run_alone("child_without_a_handler").signal(),
        Some(libc::SIGBUS)
    );
    assert_eq!(
        run_alone("child_that_is_sent_the_signal").signal(),
        Some(libc::SIGBUS)
    );
}

#[test]
#[ignore = "run in a process of its own by another test"]
fn child_without_a_handler() {
    fault_outside_our_mappings();
}

#[test]
#[ignore = "run in a process of its own by another test"]
fn child_that_is_sent_the_signal() {
    // SAFETY: a valid sigaction; the default action, so that nothing of the test harness is in the way.
    unsafe {
        let action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
    let _ours = region(4096);
    // SAFETY: no pointers.
    unsafe { libc::raise(libc::SIGBUS) };
}

//! A ring against this machine's kernel: a mount whose every request comes over it.
//!
//! Needs root, `/dev/fuse` and FUSE over io_uring; a test says what it lacks and is skipped.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, mpsc};

use cenote_fuse::reply::{self, Attributes};
use cenote_fuse::request::Operation;
use cenote_fuse::{Options, Ring, SWITCH, Slot, State};

const FILE: u64 = 2;
const FILE_BYTES: usize = 3 << 16;
const WRITE_BYTES_MAX: usize = 64 << 10;

/// Agrees on rings and answers nothing: what works came over a ring.
struct Mounted;

impl fuser::Filesystem for Mounted {
    fn init(&mut self, _: &fuser::Request, config: &mut fuser::KernelConfig) -> io::Result<()> {
        let rings = fuser::InitFlags::FUSE_OVER_IO_URING;
        let refused = |flags| io::Error::other(format!("{flags:?}"));
        config.add_capabilities(rings).map_err(refused)?;
        let most = config.set_max_write(WRITE_BYTES_MAX as u32);
        most.map(drop)
            .map_err(|most| io::Error::other(most.to_string()))
    }
}

#[test]
fn a_file_is_read_and_written_over_a_ring_until_it_is_unmounted() {
    let _switch = match Switch::on() {
        Ok(switch) => switch,
        Err(lacks) => {
            println!("skipped: FUSE over io_uring: needs {lacks}");
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let session =
        fuser::Session::new(Mounted, folder.path(), &fuser::Config::default()).expect("a mount");
    let device = session.as_fd().try_clone_to_owned().unwrap();
    let session = session.spawn().unwrap();
    let (ready, is_ready) = mpsc::channel();
    let server = std::thread::spawn(move || serve(Arc::new(device), &ready));
    is_ready.recv().expect("the kernel takes the ring");

    let path = folder.path().join("file");
    let read = fs::read(&path).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    // Longer than one request, and not in whole pages.
    let text: Vec<u8> = (0..WRITE_BYTES_MAX + 5000)
        .map(|at| (at % 251) as u8)
        .collect();
    file.write_all_at(&text, 4097).unwrap();
    let mut back = vec![0; text.len()];
    file.read_exact_at(&mut back, 4097).unwrap();
    let missing = File::open(folder.path().join("other")).unwrap_err();
    drop(file);
    session.umount_and_join().unwrap();
    let served = server.join().unwrap();

    assert_eq!(read.len(), FILE_BYTES);
    assert!(
        read.iter().all(|byte| *byte == 7),
        "the file was filled with 7"
    );
    assert!(back == text, "bytes came back different");
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    // Two reads and two writes at least, as long as they are.
    assert!(served >= 8, "{served} requests came over the ring");
}

#[test]
fn a_ring_without_a_connection_hands_nothing_over() {
    let made = Ring::new(&Options {
        queues: vec![0, 1],
        depth: 3,
        payload_bytes_max: 8192,
    });
    let mut ring = match made {
        Ok(ring) => ring,
        Err(error) => {
            println!("skipped: a ring: needs io_uring ({error})");
            return;
        }
    };
    assert_eq!(ring.slot_count(), 6);
    assert!(ring.is_over());
    assert!(!ring.has_news());
    assert!(ring.next_request().is_none());
    let file = tempfile::tempfile().unwrap();
    assert!(ring.register(Arc::new(file.into())).is_err(), "no FUSE");
}

/// Serves every queue by one ring; returns how many requests that took.
fn serve(device: Arc<OwnedFd>, ready: &mpsc::Sender<()>) -> usize {
    let mut ring = Ring::new(&Options {
        queues: (0..cenote_fuse::queue_count().unwrap()).collect(),
        depth: 2,
        // The kernel wants room for 32 pages at least.
        payload_bytes_max: 128 << 10,
    })
    .unwrap();
    ring.register(device).unwrap();
    ready.send(()).unwrap();
    let mut content = vec![7; FILE_BYTES];
    let mut served = 0;
    while !ring.is_over() {
        while let Some(slot) = ring.next_request() {
            answer(&mut ring, slot.unwrap(), &mut content);
            served += 1;
        }
        ring.submit_and_wait().unwrap();
    }
    served
}

fn answer(ring: &mut Ring, slot: Slot, content: &mut [u8]) {
    let attributes = |inode| Attributes {
        inode,
        size_bytes: if inode == FILE { FILE_BYTES as u64 } else { 0 },
        mode: match inode {
            FILE => libc::S_IFREG | 0o600,
            _ => libc::S_IFDIR | 0o700,
        },
        block_bytes: 4096,
        ..Attributes::default()
    };
    let request = ring.request(slot);
    let inode = request.inode();
    let found = match request.operation().expect("a good request") {
        Operation::Lookup(b"file") => Ok(reply::entry(&attributes(FILE), 1).to_vec()),
        Operation::Lookup(_) => Err(libc::ENOENT),
        Operation::Getattr => Ok(reply::attributes(&attributes(inode), 1).to_vec()),
        // FOPEN_DIRECT_IO
        Operation::Open { .. } => Ok(reply::opened(1, 1).to_vec()),
        Operation::Read { offset, len_bytes } => {
            let start = (offset as usize).min(content.len());
            let end = (start + len_bytes as usize).min(content.len());
            Ok(content[start..end].to_vec())
        }
        Operation::Write { offset, data, .. } => {
            content[offset as usize..][..data.len()].copy_from_slice(data);
            Ok(reply::written(data.len() as u32).to_vec())
        }
        Operation::Flush | Operation::Release { .. } | Operation::Destroy | Operation::Fsync => {
            Ok(Vec::new())
        }
        _ => Err(libc::ENOSYS),
    };
    let outcome = match found {
        Ok(bytes) => {
            ring.write_payload(slot, &bytes);
            ring.reply(slot, Ok(bytes.len()))
        }
        Err(errno) => ring.reply(slot, Err(errno)),
    };
    outcome.unwrap();
}

/// FUSE over io_uring switched on, as long as this lives.
struct Switch {
    was_off: bool,
}

impl Switch {
    fn on() -> Result<Self, &'static str> {
        // SAFETY: no arguments, no memory.
        if unsafe { libc::geteuid() } != 0 {
            return Err("root");
        }
        match cenote_fuse::state() {
            State::On => Ok(Self { was_off: false }),
            State::Off if fs::write(SWITCH, "Y").is_ok() => Ok(Self { was_off: true }),
            State::Off => Err("the right to switch it on"),
            State::Missing => Err("a kernel with it"),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.was_off {
            fs::write(SWITCH, "N").unwrap();
        }
    }
}

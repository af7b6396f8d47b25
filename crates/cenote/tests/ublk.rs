//! `cenote ublk` in a guest whose kernel has the driver: a verifying load over a host's death, a
//! server killed and followed by another, and the same load beside the kernel's nbd.
//!
//! The guest's steps are `ublk.sh`. The server that is killed there is this test binary: its disk
//! is a file in memory, which outlives it as a volume does not.

use std::env;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use cenote_block::disk::{Disk, Extent, Queue};
use cenote_block::ublk::{Device, Options};
use cenote_volume::{Done, Op, Request};

#[test]
fn a_ublk_device_outlives_a_host_and_its_server() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(source.join("../../scripts/test-guest.sh"));
    command
        .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/guest-ublk"))
        .arg(source.join("tests/ublk.sh"))
        .arg(env!("CARGO_BIN_EXE_cenote"))
        .arg(env::current_exe().expect("this program has a file"));
    for tool in ["fio", "nbd-client"] {
        let Some(path) = find(tool) else {
            println!("skipped: ublk in a guest: {tool} is not installed");
            return;
        };
        command.arg(path);
    }
    let ended = command
        .env("GUEST_KERNEL", KERNELS)
        .env("GUEST_MODULES", "ublk_drv nbd")
        .output()
        .expect("the script runs");
    let text = String::from_utf8_lossy(&ended.stdout);
    if ended.status.code() == Some(77) {
        let reason = text.lines().last().unwrap_or_default();
        println!("skipped: ublk in a guest: {reason}");
        return;
    }
    // Marked, so that its lines are not taken for this machine's results.
    text.lines().for_each(|line| println!("guest: {line}"));
    assert!(ended.status.success(), "{:?}", ended.status);
    for line in [
        "every block was right although a host died",
        "every block was right although the server died three times",
        "an empty volume took the device over",
        "what waited for a deleted device failed",
        "nothing is left",
    ] {
        assert!(text.contains(line), "the guest did not say {line:?}");
    }
}

/// Serves a file as a device until it is killed; inside the guest only.
#[test]
fn the_server() {
    let Some(path) = env::var_os("CENOTE_GUEST_DISK") else {
        return;
    };
    let disk: Arc<dyn Disk> = Arc::new(FileDisk::open(Path::new(&path)).expect("the disk's file"));
    let mut options = Options::new(IDENTITY);
    options.queue_depth = 16;
    let device = match env::var_os("CENOTE_GUEST_RECOVER") {
        None => {
            // A disk of another identity is not gone on with, and one of another size neither.
            assert!(Device::recover(&disk, IDENTITY).is_err());
            Device::serve(&disk, options)
        }
        Some(_) => {
            assert!(Device::recover(&disk, IDENTITY + 1).is_err());
            let other = tempfile::NamedTempFile::new().expect("a file");
            other.as_file().set_len(4096).expect("its size");
            let other: Arc<dyn Disk> = Arc::new(FileDisk::open(other.path()).expect("the file"));
            assert!(Device::recover(&other, IDENTITY).is_err());
            assert!(Device::serve(&disk, options).is_err());
            Device::recover(&disk, IDENTITY)
        }
    };
    let device = device.expect("a device");
    fs::write("/run/device", device.path().to_str().expect("ASCII")).expect("a file in the guest");
    while !Path::new("/run/stop").exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    device.stop().expect("the end of the device");
}

/// A disk in a file, which outlives its server.
struct FileDisk {
    file: Arc<File>,
    size_bytes: u64,
}

impl FileDisk {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self {
            size_bytes: file.metadata()?.len(),
            file: Arc::new(file),
        })
    }
}

impl Disk for FileDisk {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(FileQueue {
            file: Arc::clone(&self.file),
            done: Vec::new(),
        }))
    }

    fn extents(&self, _offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        out.push(Extent {
            len_bytes,
            allocated: true,
        });
    }

    fn description(&self) -> String {
        "a file".to_owned()
    }
}

struct FileQueue {
    file: Arc<File>,
    done: Vec<Done>,
}

impl Queue for FileQueue {
    fn submit(&mut self, mut request: Request) -> Result<(), Request> {
        let at = request.offset;
        match &mut request.op {
            Op::Read(buffer) => self.file.read_exact_at(buffer, at),
            Op::Write(buffer) => self.file.write_all_at(buffer, at),
            Op::Discard { len_bytes } => self.file.write_all_at(&vec![0; *len_bytes as usize], at),
        }
        .expect("a file in memory");
        self.done.push(Done {
            tag: request.tag,
            op: request.op,
            result: Ok(()),
        });
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        done.append(&mut self.done);
    }

    fn wait_fds(&self, _out: &mut Vec<RawFd>) {}

    fn deadline(&self) -> Option<Duration> {
        None
    }
}

fn find(tool: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .map(|folder| folder.join(tool))
        .find(|file| file.exists())
}

/// Kernels of 6.12 and later, small ones, as Debian 12 and 13 name them.
const KERNELS: &str =
    r"^linux-image-6\.1[2-9][0-9.]*(\+deb1[0-9]+(\.[0-9]+)?)?-cloud-amd64(-unsigned)?$";
const IDENTITY: u64 = 0x1d;

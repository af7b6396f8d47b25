//! A loop device over an open file, made by the kernel's own calls.
//!
//! The device clears itself when its last user closes it (autoclear), so a server that is killed
//! leaves none behind once swap is off. Direct I/O is required, not asked for: pages that are
//! swapped out must not need the page cache on their way.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A configured loop device; dropping it detaches it as soon as nobody else has it open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    file: File,
}

impl LoopDevice {
    /// Puts a free loop device over `backing` with `block_bytes` blocks and direct I/O. The
    /// `label`, of at most 63 bytes, can be asked for with [`label_of`](Self::label_of).
    ///
    /// # Errors
    /// When there is no free device, the file takes no direct I/O, or we lack the rights.
    pub fn attach(backing: &File, block_bytes: u32, label: &str) -> io::Result<Self> {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")?;
        let mut config = Config::new(backing, block_bytes, label);
        loop {
            // SAFETY: LOOP_CTL_GET_FREE takes no argument and returns an index.
            let index = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if index < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = node(index)?;
            let file = OpenOptions::new().read(true).write(true).open(&path)?;
            // SAFETY: `config` is a live loop_config whose fd is `backing`, open for the call.
            let outcome = unsafe { libc::ioctl(file.as_raw_fd(), LOOP_CONFIGURE, &raw mut config) };
            if outcome == 0 {
                let device = Self { path, file };
                device.require_direct_io()?;
                return Ok(device);
            }
            let error = io::Error::last_os_error();
            // Another process took the index between the two calls.
            if error.raw_os_error() != Some(libc::EBUSY) {
                return Err(error);
            }
        }
    }

    /// `/dev/loopN`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The label that a configured loop device was given.
    ///
    /// # Errors
    /// When the device cannot be opened or is not configured.
    pub fn label_of(path: &Path) -> io::Result<String> {
        let file = File::open(path)?;
        let mut info = Info::EMPTY;
        // SAFETY: `info` is a live loop_info64 that the call fills.
        if unsafe { libc::ioctl(file.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let len = info.file_name.iter().position(|byte| *byte == 0);
        let label = &info.file_name[..len.unwrap_or(LABEL_BYTES)];
        Ok(String::from_utf8_lossy(label).into_owned())
    }

    /// Lets neighbouring pages that are swapped out together become one request, which a loop
    /// device does not by itself.
    ///
    /// # Errors
    /// When the queue's setting cannot be written.
    pub fn allow_merging(&self) -> io::Result<()> {
        self.open_merge_switch()?.write_all(b"0")
    }

    /// The file that takes `2` to make every page a request of its own, so that one unreadable page
    /// fails no neighbour, and `0` to have requests merged; for a thread that must not allocate by
    /// then.
    ///
    /// # Errors
    /// When the queue's setting cannot be opened.
    pub fn open_merge_switch(&self) -> io::Result<File> {
        let path = self.sysfs().join("queue/nomerges");
        OpenOptions::new().write(true).open(path)
    }

    fn require_direct_io(&self) -> io::Result<()> {
        let dio = fs::read_to_string(self.sysfs().join("loop/dio"))?;
        if dio.trim() == "1" {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "the loop device does no direct I/O on this file",
        ))
    }

    fn sysfs(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default();
        Path::new("/sys/block").join(name)
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // SAFETY: LOOP_CLR_FD takes no argument; with other users it defers to the last close.
        unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_CLR_FD) };
    }
}

/// The device node, made where no daemon makes it (a container's /dev).
fn node(index: libc::c_int) -> io::Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{index}"));
    let minor = u32::try_from(index).map_err(io::Error::other)?;
    make_node(&path, LOOP_MAJOR, minor)?;
    Ok(path)
}

/// Makes the node of a block device unless it is there.
pub(super) fn make_node(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
    let device = libc::makedev(major, minor);
    // SAFETY: `name` is a live C string; mknod reads nothing else.
    let made = unsafe { libc::mknod(name.as_ptr(), libc::S_IFBLK | 0o600, device) };
    if made != 0 && !path.exists() {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; LABEL_BYTES],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

impl Info {
    const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; LABEL_BYTES],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

impl Config {
    fn new(backing: &File, block_bytes: u32, label: &str) -> Self {
        let mut file_name = [0; LABEL_BYTES];
        let len = label.len().min(LABEL_BYTES - 1);
        file_name[..len].copy_from_slice(&label.as_bytes()[..len]);
        Self {
            fd: u32::try_from(backing.as_raw_fd()).expect("an open file has a descriptor >= 0"),
            block_size: block_bytes,
            info: Info {
                flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
                file_name,
                ..Info::EMPTY
            },
            reserved: [0; 8],
        }
    }
}

/// `LO_NAME_SIZE`, with its terminator.
const LABEL_BYTES: usize = 64;
const LOOP_MAJOR: u32 = 7;
const LOOP_CLR_FD: libc::Ioctl = 0x4C01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

//! An export as `/dev/nbdN`: the kernel's own client, connected inside this process.
//!
//! Each serving thread has one end of a socket pair and the kernel the other, so the device has a
//! queue per thread. A thread serves one request at a time, from the read of its header to the
//! send of its reply, with the worker of the export that has its number.
//! Invariants: nothing on the path of a page allocates, and every buffer and stack was used, by a
//! request of the largest size, before the kernel gets a socket; the device has no other server.
//! Elsewhere: the handshake, which these connections do without; the general server is `nbd`.

use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_volume::IoError;

use super::area::PAGE_BYTES;
use super::export::{Export, REQUEST_BYTES_MAX, Worker};
use super::loop_device;
use crate::nbd::sys;
use crate::nbd::wire::{Errno, Head, REQUEST_HEADER_BYTES, RequestHeader, command, export_flag};

/// A connected nbd device; dropping it disconnects it and ends its threads.
#[derive(Debug)]
pub(super) struct KernelNbd {
    path: PathBuf,
    device: File,
    /// Waits for the process that the kernel waits on as long as the device is connected.
    keeper: Option<JoinHandle<io::Result<()>>>,
    servers: Vec<JoinHandle<()>>,
}

impl KernelNbd {
    /// Whether this kernel has nbd, as a module if need be, which is loaded then.
    pub(super) fn is_available() -> bool {
        let there = || Path::new("/sys/block/nbd0").exists();
        there() || (load_module() && there())
    }

    /// Connects a free device to `export`, served by `thread_count` threads, one for each of its
    /// workers. The export's counters start at zero.
    ///
    /// # Errors
    /// When no device is free, the kernel refuses a step, or the export cannot be read.
    pub(super) fn attach(export: &Arc<Export>, thread_count: usize) -> io::Result<Self> {
        let mut sockets = Vec::with_capacity(thread_count);
        let mut servers = Vec::with_capacity(thread_count);
        for index in 0..thread_count {
            let (ours, kernels) = UnixStream::pair()?;
            for end in [&ours, &kernels] {
                sys::enlarge_buffers(end.as_raw_fd(), SOCKET_BUFFER_BYTES);
            }
            let export = Arc::clone(export);
            servers.push(
                std::thread::Builder::new()
                    .name(format!("swap-{index}"))
                    .spawn(move || serve(&export, index, &ours))?,
            );
            sockets.push(kernels);
        }
        for socket in &mut sockets {
            warm_up(socket, export.size_bytes())?;
        }
        export.counters().start_over();
        let (path, device) = claim(&sockets)?;
        // From here on a failure disconnects the device by the drop of this.
        let mut attached = Self {
            path,
            device,
            keeper: None,
            servers,
        };
        // The kernel has its own hold on them; a copy here would hide its end from the threads.
        drop(sockets);
        attached.configure(export.size_bytes())?;
        attached.start(export.size_bytes())?;
        Ok(attached)
    }

    /// `/dev/nbdN`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What tells this connection of the device from others: the process that keeps it.
    pub(super) fn label_of(path: &Path) -> io::Result<String> {
        let pid = fs::read_to_string(sysfs(path).join("pid"))?;
        Ok(format!("nbd-{}", pid.trim()))
    }

    /// The file that takes `2` to make every page a request of its own, so that one unreadable page
    /// fails no neighbour, and `0` to have requests merged.
    pub(super) fn open_merge_switch(&self) -> io::Result<File> {
        let path = sysfs(&self.path).join("queue/nomerges");
        OpenOptions::new().write(true).open(path)
    }

    fn configure(&self, size_bytes: u64) -> io::Result<()> {
        let set = |what, value| control(&self.device, what, value);
        let pages = usize::try_from(size_bytes / PAGE_BYTES as u64).map_err(io::Error::other)?;
        set(NBD_SET_BLKSIZE, PAGE_BYTES)?;
        set(NBD_SET_SIZE_BLOCKS, pages)?;
        // No SEND_FLUSH: an acknowledged write is as safe as it will ever be.
        let flags = export_flag::HAS_FLAGS | export_flag::SEND_TRIM | export_flag::CAN_MULTI_CONN;
        set(NBD_SET_FLAGS, usize::from(flags))?;
        set(NBD_SET_TIMEOUT, TIMEOUT_S)
    }

    /// Starts the connection and waits until the device has its size.
    fn start(&mut self, size_bytes: u64) -> io::Result<()> {
        let device = self.device.as_raw_fd();
        // Kept at once: joining it comes before the close of the device.
        let keeper = self.keeper.insert(
            std::thread::Builder::new()
                .name("swap-nbd".to_owned())
                .spawn(move || keep(device))?,
        );
        let patience = Instant::now() + START_LIMIT;
        let sectors = (size_bytes / 512).to_string();
        let size = sysfs(&self.path).join("size");
        while fs::read_to_string(&size)?.trim() != sectors {
            if keeper.is_finished() {
                let ended = self.keeper.take().map(JoinHandle::join);
                return ended
                    .and_then(Result::ok)
                    .unwrap_or_else(|| Err(io::Error::other("the device's thread panicked")))
                    .and(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if Instant::now() > patience {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let longest = sysfs(&self.path).join("queue/max_sectors_kb");
        let kib = fs::read_to_string(&longest)?;
        if kib
            .trim()
            .parse()
            .is_ok_and(|kib: usize| kib * 1024 <= REQUEST_BYTES_MAX)
        {
            return Ok(());
        }
        fs::write(&longest, (REQUEST_BYTES_MAX / 1024).to_string())
    }
}

impl Drop for KernelNbd {
    fn drop(&mut self) {
        if let Err(error) = control(&self.device, NBD_DISCONNECT, 0) {
            tracing::debug!(%error, "disconnect the nbd device");
        }
        // Takes the sockets from a connection that never started, too.
        if let Err(error) = control(&self.device, NBD_CLEAR_SOCK, 0) {
            tracing::debug!(%error, "clear the nbd device");
        }
        if let Some(keeper) = self.keeper.take()
            && let Ok(Err(error)) = keeper.join()
        {
            tracing::debug!(%error, "end the nbd device");
        }
        for server in self.servers.drain(..) {
            if server.join().is_err() {
                tracing::error!("a thread of the swap device panicked");
            }
        }
    }
}

/// Keeps the device connected until it is disconnected or this process ends.
///
/// The kernel ends a device when the thread that waits for it in the kernel gets a signal, one that
/// stops the process included. So that thread is a process of its own, with this one's memory, no
/// other descriptor and nobody's terminal: who stops the server does not reach it, and who kills
/// the server kills it. Generic netlink needs no such thread, but then requests that were asked of
/// a server which was killed are not given up.
fn keep(device: RawFd) -> io::Result<()> {
    let mut stack = vec![0_u8; STACK_BYTES];
    let top = stack.as_mut_ptr_range().end;
    let top = top.wrapping_sub(top.addr() % 16);
    let mut order = Order {
        device,
        // SAFETY: no memory is passed.
        parent: unsafe { libc::getpid() },
    };
    // Without a signal at its end: nobody else who waits for children is to hear of it.
    // SAFETY: the stack and the order outlive the process, which is waited for below; it makes
    // system calls only.
    let pid = unsafe {
        let order = (&raw mut order).cast();
        libc::clone(wait_in_kernel, top.cast(), libc::CLONE_VM, order)
    };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    // SAFETY: `status` is live; the process is ours, and waited for here alone.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::__WALL) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    match (libc::WIFEXITED(status), libc::WEXITSTATUS(status)) {
        (true, 0) => Ok(()),
        (true, code) => Err(io::Error::from_raw_os_error(code)),
        (false, _) => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// What the keeper is told.
struct Order {
    device: RawFd,
    parent: libc::pid_t,
}

/// The life of the keeper; its exit code is an errno.
///
/// Of its descriptors it keeps the device alone. With our ends of the sockets it would keep them
/// open when this process is killed: a request that waits for room in such a socket, which nobody
/// reads any more, holds the lock that the keeper's own end has to take, and both would stay for
/// ever.
extern "C" fn wait_in_kernel(order: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the order lives until this process has ended.
    let order = unsafe { &*order.cast::<Order>() };
    let number = order.device.cast_unsigned();
    // SAFETY: system calls with integers, and a set of signals on this stack. The memory is the
    // other process's too, and nothing of it is changed but the errno of the thread that waits for
    // this one.
    unsafe {
        // With the thread that waits, that is with the process: it waits to the end.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() != order.parent {
            return libc::ECHILD;
        }
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const all, std::ptr::null_mut());
        libc::setsid();
        let mut failed = libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, 0) != 0;
        if let Some(below) = number.checked_sub(1) {
            failed |= libc::syscall(libc::SYS_close_range, 0, below, 0) != 0;
        }
        if failed || libc::ioctl(order.device, NBD_DO_IT, 0) < 0 {
            return *libc::__errno_location();
        }
    }
    0
}

/// Serves one connection to its end.
fn serve(export: &Export, index: usize, socket: &UnixStream) {
    let mut worker = export.worker_at(index);
    if let Err(error) = serve_requests(export, &mut worker, socket)
        && error.kind() != io::ErrorKind::UnexpectedEof
    {
        tracing::error!(%error, "a connection of the swap device ended");
    }
}

/// Answers requests until DISC; an end of the stream is `UnexpectedEof`.
fn serve_requests(export: &Export, worker: &mut Worker, mut socket: &UnixStream) -> io::Result<()> {
    let mut header = [0; REQUEST_HEADER_BYTES];
    loop {
        // A write of another queue may wait for one of this.
        worker.land(Some(socket.as_raw_fd()));
        socket.read_exact(&mut header)?;
        let Some(request) = RequestHeader::parse(&header) else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let (offset, len) = (request.offset, request.len_bytes as usize);
        let is_inside = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= export.size_bytes());
        let has_data = matches!(request.command, command::READ | command::WRITE);
        if has_data && len > REQUEST_BYTES_MAX {
            // The kernel was told not to; the buffer has no room for it.
            return Err(io::ErrorKind::InvalidData.into());
        }
        if request.command == command::WRITE {
            socket.read_exact(worker.room(len))?;
        }
        let outcome = match request.command {
            command::DISC => return Ok(()),
            command::FLUSH => Ok(()),
            _ if !is_inside => Err(Errno::Invalid),
            command::READ => export.read_whole(worker, offset, len).map_err(errno_of),
            command::WRITE => export.write_pages(worker, offset).map_err(errno_of),
            command::TRIM => export.discard(worker, offset, len as u64).map_err(errno_of),
            _ => Err(Errno::Invalid),
        };
        let data: &[u8] = match outcome {
            Ok(()) if request.command == command::READ => worker.data(),
            _ => &[],
        };
        let head = Head::simple(request.cookie, outcome.err());
        send(socket, head.bytes(), data)?;
    }
}

/// Sends all of a reply.
fn send(mut socket: &UnixStream, head: &[u8], data: &[u8]) -> io::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(data)];
    let mut left = &mut parts[..];
    // Leading parts without bytes are dropped here and by each advance.
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match socket.write_vectored(left) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn errno_of(error: IoError) -> Errno {
    match error {
        IoError::NoSpace => Errno::NoSpace,
        _ => Errno::Io,
    }
}

/// Has the thread at the other end run one read of the largest size, as the kernel would ask for
/// it, so that its stack, its buffers and its queue have their memory.
fn warm_up(socket: &mut UnixStream, size_bytes: u64) -> io::Result<()> {
    let len = REQUEST_BYTES_MAX.min(usize::try_from(size_bytes).unwrap_or(usize::MAX));
    let request = RequestHeader {
        flags: 0,
        command: command::READ,
        cookie: 1,
        offset: 0,
        len_bytes: len as u64,
    };
    socket.write_all(&request.bytes())?;
    let good = Head::simple(request.cookie, None);
    let mut head = vec![0; good.bytes().len()];
    socket.read_exact(&mut head)?;
    if head != good.bytes() {
        return Err(io::Error::other("the disk cannot be read"));
    }
    socket.read_exact(&mut vec![0; len])
}

/// Gives the sockets to the first device that nobody uses.
fn claim(sockets: &[UnixStream]) -> io::Result<(PathBuf, File)> {
    for number in 0.. {
        let path = PathBuf::from(format!("/dev/nbd{number}"));
        let Ok(numbers) = fs::read_to_string(sysfs(&path).join("dev")) else {
            break;
        };
        let size = fs::read_to_string(sysfs(&path).join("size"))?;
        if sysfs(&path).join("pid").exists() || size.trim() != "0" {
            continue;
        }
        make_node(&path, numbers.trim())?;
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut given = sockets
            .iter()
            .map(|socket| control(&device, NBD_SET_SOCK, socket.as_raw_fd() as usize));
        match given.try_for_each(|outcome| outcome) {
            Ok(()) => return Ok((path, device)),
            // The first one is refused where another process was faster.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) => {
                tracing::debug!(%error, path = %path.display(), "claim an nbd device");
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::NotFound,
        "no nbd device is free",
    ))
}

/// Makes the device node where no daemon does; `numbers` is `MAJOR:MINOR`.
fn make_node(path: &Path, numbers: &str) -> io::Result<()> {
    let parsed = numbers
        .split_once(':')
        .and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let (major, minor) = parsed.ok_or(io::ErrorKind::InvalidData)?;
    loop_device::make_node(path, major, minor)
}

fn sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

fn load_module() -> bool {
    let loaded = Command::new("modprobe")
        .args(["-q", "nbd"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    loaded.is_ok_and(|status| status.success())
}

/// One of nbd's ioctls, all of which take an integer.
fn control(device: &File, what: libc::Ioctl, value: usize) -> io::Result<()> {
    // SAFETY: the requests used here take integers and touch no memory of ours.
    if unsafe { libc::ioctl(device.as_raw_fd(), what, value) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Asked of the kernel per direction: a whole reply of the largest size.
const SOCKET_BUFFER_BYTES: i32 = 2 << 20;
/// How long a request may take before the kernel gives its connection up: 11 days. A server that
/// was merely stopped for a while would lose the pages that were asked of it; 0, "for ever", is
/// half a minute to a device of several connections.
const TIMEOUT_S: usize = 1_000_000;
/// The keeper's, which makes a few system calls.
const STACK_BYTES: usize = 64 << 10;
/// How long the kernel may take to start a connection; arbitrary.
const START_LIMIT: Duration = Duration::from_secs(10);

/// From linux/nbd.h.
const NBD_SET_SOCK: libc::Ioctl = 0xab00;
const NBD_SET_BLKSIZE: libc::Ioctl = 0xab01;
const NBD_DO_IT: libc::Ioctl = 0xab03;
const NBD_CLEAR_SOCK: libc::Ioctl = 0xab04;
const NBD_SET_SIZE_BLOCKS: libc::Ioctl = 0xab07;
const NBD_DISCONNECT: libc::Ioctl = 0xab08;
const NBD_SET_TIMEOUT: libc::Ioctl = 0xab09;
const NBD_SET_FLAGS: libc::Ioctl = 0xab0a;

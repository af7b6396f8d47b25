//! What a client finds after the process of its host was replaced: the same slabs, under the same
//! names, with the same bytes; and nothing under names that are gone.

#[path = "inheriting/client.rs"]
mod client;
mod support;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cenote_fabric::{ClusterKey, Error, RemoteWindow, Status};
use cenote_pool::control::{Reply, Request, Window};
use client::Client;
use support::lab::wait_until;
use support::net::Killed;
use support::{Folder, cenote, run, signal, words};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: &[u8] = b"written before the process was replaced";

/// Two slabs with bytes in them, as one life of the host lent them.
struct Before {
    windows: [Window; 2],
    mapped: RemoteWindow,
    incarnation: u64,
}

fn lend(client: &mut Client) -> Before {
    let windows = [client.map(0), client.map(1)];
    let mapped = client.attach(windows[1]).unwrap();
    assert_eq!(client.write(&mapped, BYTES), Status::Ok);
    Before {
        windows,
        mapped,
        incarnation: client.status().incarnation,
    }
}

/// Waits for the end of a session, as a client notices it.
fn wait_closed(client: &mut Client) {
    let ended = || client.session.receive().is_err();
    wait_until("the session has ended", ended, String::new);
}

fn expect_inherited(client: &mut Client, before: &Before) {
    assert_ne!(client.status().incarnation, before.incarnation);
    let held: Vec<_> = client.held();
    let named = held
        .iter()
        .map(|slab| (slab.extent, slab.member, slab.window));
    let expected = [(0, 3, before.windows[0]), (1, 3, before.windows[1])];
    assert_eq!(named.collect::<Vec<_>>(), expected);
    let again = client.attach(before.windows[1]).unwrap();
    assert_eq!(client.read(&again), BYTES);
    if let Some(Ok(bytes)) = before.mapped.in_place(64, BYTES.len()) {
        // A client's mapping is what it was, and of the same memory.
        assert_eq!(
            client.write(&again, &BYTES.to_ascii_uppercase()),
            Status::Ok
        );
        // SAFETY: mapped for as long as `before` lives; nobody writes now.
        let seen = unsafe { std::slice::from_raw_parts(bytes.pointer(), BYTES.len()) };
        assert_eq!(seen, BYTES.to_ascii_uppercase());
    }
    for generation in [
        before.windows[1].generation - 1,
        before.windows[0].generation,
    ] {
        let stale = Window {
            generation,
            ..before.windows[1]
        };
        let refused = client.attach(stale);
        assert!(matches!(refused, Err(Error::StaleWindow)), "{refused:?}");
    }
    let new = client.map(2);
    assert!(
        before
            .windows
            .iter()
            .all(|old| old.generation < new.generation)
    );
}

fn host_of(folder: &Folder, address: &str) -> Command {
    let mut command = cenote();
    command
        .args(words(&format!(
            "host --name h --memory 16M --listen {address} --key"
        )))
        .arg(folder.path().join("cluster.key"))
        .stdout(Stdio::piped());
    command
}

fn key_in(folder: &Folder) -> ClusterKey {
    let path = folder.path().join("cluster.key");
    run(&["key", "new", "--out", path.to_str().unwrap()]).expect(0);
    ClusterKey::load(&path).unwrap()
}

/// Starts a host and waits for its line; the address in it.
fn start(command: &mut Command) -> (Killed, String) {
    let mut child = command.spawn().expect("the host starts");
    let mut line = String::new();
    let stdout = child.stdout.take().expect("stdout is piped");
    let host = Killed(child);
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("ready h at ").expect("its line");
    (host, address.to_owned())
}

#[test]
fn a_program_that_replaces_itself_keeps_what_clients_hold() {
    let folder = Folder::new();
    let key = key_in(&folder);
    for address in [
        format!("shm:{}/socket", folder.str()),
        "tcp:127.0.0.1:0".into(),
    ] {
        let (host, address) = start(&mut host_of(&folder, &address));
        let mut client = Client::connect(&key, &address, 1);
        let mut before = lend(&mut client);
        // More than once: the one that takes over hands over as well.
        for _ in 0..2 {
            signal(host.0.id(), "HUP");
            wait_closed(&mut client);
            client = Client::connect(&key, &address, 1);
            expect_inherited(&mut client, &before);
            let status = client.status();
            assert_eq!(status.slabs.mapped, 3);
            before.incarnation = status.incarnation;
            let new = client.held()[2].window;
            let given_back = client.ask(&Request::Unmap { window: new });
            assert_eq!(given_back, Reply::Unmapped { window: new });
            let again = client.attach(before.windows[1]).unwrap();
            assert_eq!(client.write(&again, BYTES), Status::Ok);
        }
    }
}

/// Takes the memory of slabs away but for those with [`BYTES`], as whoever has mapped them can.
fn cut_short(host: u32, slab_bytes: u64) {
    for entry in std::fs::read_dir(format!("/proc/{host}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let is_memory =
            std::fs::read_link(&path).is_ok_and(|to| to.to_string_lossy().starts_with("/memfd:"));
        let length = |path| std::fs::metadata(path).map_or(0, |file| file.len());
        if !is_memory || length(&path) != slab_bytes {
            continue;
        }
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut found = [0; BYTES.len()];
        file.read_exact_at(&mut found, 64).unwrap();
        if found != BYTES {
            file.set_len(0).unwrap();
        }
    }
}

#[test]
fn an_upgrade_loses_the_slab_whose_memory_was_cut_short_and_no_other() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let key_file = folder.path().join("cluster.key");
    let (host, address) = start(&mut host_of(
        &folder,
        &format!("shm:{}/socket", folder.str()),
    ));
    let mut client = Client::connect(&key, &address, 1);
    let before = lend(&mut client);
    cut_short(host.0.id(), before.windows[0].len_bytes);
    let upgrade = format!("host upgrade {address} --key {}", key_file.display());
    let upgraded = std::thread::scope(|scope| {
        let upgrade = scope.spawn(|| run(&words(&upgrade)));
        wait_closed(&mut client);
        client = Client::connect(&key, &address, 1);
        assert_ne!(client.status().incarnation, before.incarnation);
        upgrade.join().unwrap()
    });
    let upgraded = upgraded.expect(3);
    assert!(upgraded.stdout.contains(", 1 slabs kept"), "{upgraded:#?}");
    assert!(upgraded.stderr.contains("1 slabs of"), "{upgraded:#?}");
    let held = client.held();
    assert_eq!(held.iter().map(|slab| slab.extent).collect::<Vec<_>>(), [1]);
    let kept = client.attach(before.windows[1]).unwrap();
    assert_eq!(client.read(&kept), BYTES);
    let lost = client.attach(before.windows[0]);
    assert!(matches!(lost, Err(Error::StaleWindow)), "{lost:?}");
}

#[test]
fn an_upgrade_of_a_host_whose_stderr_nobody_reads_keeps_what_clients_hold() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let mut command = host_of(&folder, "tcp:127.0.0.1:0");
    command.args(["--metrics", "127.0.0.1:0"]);
    let (mut host, address) = start(command.stderr(Stdio::piped()));
    let mut client = Client::connect(&key, &address, 1);
    let before = lend(&mut client);
    drop(host.0.stderr.take());
    signal(host.0.id(), "HUP");
    wait_closed(&mut client);
    expect_inherited(&mut Client::connect(&key, &address, 1), &before);
}

#[test]
fn an_upgrade_on_a_changed_machine_or_file_keeps_what_clients_hold() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let mut manager = Manager::new(&folder.path().join("notify"));
    let somebody = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = somebody.local_addr().unwrap();
    let file = folder.path().join("host.toml");
    let listen = "listen = [\"tcp:127.0.0.1:0\"]";
    let write = |settings: &str| {
        let always = "name = \"h\"\nkey = \"cluster.key\"\nslab = \"16M\"";
        std::fs::write(&file, format!("{always}\n{settings}\n")).unwrap();
    };
    write(&format!("{listen}\nmemory = \"64M\""));
    let mut command = cenote();
    command.args(["host", "--config"]).arg(&file);
    command.env("NOTIFY_SOCKET", folder.path().join("notify"));
    let (host, address) = start(command.stdout(Stdio::piped()));
    manager.listen_until("READY=1");
    let mut client = Client::connect(&key, &address, 1);
    let before = lend(&mut client);
    let mut upgrade = || {
        signal(host.0.id(), "HUP");
        manager.listen_until("RELOADING=1");
        manager.listen_until("READY=1");
    };

    // The next process would not start: this one goes on.
    for wrong in [
        format!("{listen}\nmemory = \"64M\"\nmetrics = \"0.0.0.0:0\""),
        format!("{listen}\nmemory = \"64M\"\ncache_threads = 257"),
        format!("listen = [\"tcp:127.0.0.1:0\", \"tcp:{taken}\"]\nmemory = \"64M\""),
    ] {
        write(&wrong);
        upgrade();
        let status = Client::connect(&key, &address, 2).status();
        let expected = (before.incarnation, 2);
        assert_eq!(
            (status.incarnation, status.slabs.mapped),
            expected,
            "{wrong}"
        );
    }

    // It starts with less memory than it is told to lend, and without metrics, whose port the test
    // has: that it says so is no failure.
    write(&format!(
        "{listen}\nmemory = \"128G\"\nmetrics = \"{taken}\""
    ));
    upgrade();
    let mut client = Client::connect(&key, &address, 1);
    expect_inherited(&mut client, &before);
}

/// As much of systemd as there is between a service that ends and the one that starts.
struct Manager {
    socket: UnixDatagram,
    stored: Vec<(String, OwnedFd)>,
    said: Vec<String>,
}

impl Manager {
    fn new(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        Self {
            socket,
            stored: Vec::new(),
            said: Vec::new(),
        }
    }

    /// Takes messages until one is `last`.
    fn listen_until(&mut self, last: &str) {
        loop {
            let (text, fd) = self.receive();
            match (text.strip_prefix("FDSTORE=1\nFDNAME="), fd) {
                (Some(name), Some(fd)) => self.store(name, fd),
                _ => self.said.push(text.clone()),
            }
            if let Some(name) = text.strip_prefix("FDSTOREREMOVE=1\nFDNAME=") {
                self.stored.retain(|(stored, _)| stored != name);
            }
            if text == last {
                return;
            }
        }
    }

    /// What comes last is passed first; the same file is kept once.
    fn store(&mut self, name: &str, fd: OwnedFd) {
        let file = |fd: &OwnedFd| {
            let file = File::from(fd.try_clone().unwrap()).metadata().unwrap();
            (file.dev(), file.ino())
        };
        if self
            .stored
            .iter()
            .all(|(_, stored)| file(stored) != file(&fd))
        {
            self.stored.insert(0, (name.to_owned(), fd));
        }
    }

    fn receive(&self) -> (String, Option<OwnedFd>) {
        let mut text = [0_u8; 512];
        let mut part = libc::iovec {
            iov_base: text.as_mut_ptr().cast(),
            iov_len: text.len(),
        };
        let mut control = [0_u64; 8];
        // SAFETY: all-zero is a valid msghdr.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let len = loop {
            // SAFETY: the message and all that it points to live through the call.
            let len = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, 0) };
            let error = std::io::Error::last_os_error();
            if len >= 0 || error.kind() != std::io::ErrorKind::Interrupted {
                break usize::try_from(len).expect("a message in time");
            }
        };
        // SAFETY: the system filled the control buffer and says how much of it.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        let fd = (!header.is_null()).then(|| {
            // SAFETY: the only control message that is sent here carries one descriptor, ours now.
            unsafe {
                OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned())
            }
        });
        (String::from_utf8(text[..len].to_vec()).unwrap(), fd)
    }

    /// A program that gets what was stored, by the convention of sd_listen_fds(3).
    fn pass_to(&mut self, host: &Command) -> Command {
        // The shell knows its number, which the program then has.
        let mut command = Command::new("sh");
        command.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
        command.arg(host.get_program()).args(host.get_args());
        let names: Vec<&str> = self.stored.iter().map(|(name, _)| name.as_str()).collect();
        command
            .env("LISTEN_FDS", names.len().to_string())
            .env("LISTEN_FDNAMES", names.join(":"))
            .stdout(Stdio::piped());
        // What is passed stays in the store.
        let copies = self.stored.iter().map(|(_, fd)| fd.try_clone().unwrap());
        let fds: Vec<OwnedFd> = copies.collect();
        // SAFETY: fcntl and dup2 are async-signal-safe; nothing is allocated: the vector of moved
        // numbers was made with room for all.
        unsafe {
            let mut moved: Vec<RawFd> = Vec::with_capacity(fds.len());
            command.pre_exec(move || {
                // First out of the way of the numbers that they are to have.
                moved.clear();
                for fd in &fds {
                    moved.push(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 500));
                }
                for (number, fd) in (3..).zip(&moved) {
                    if libc::dup2(*fd, number) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        command
    }
}

/// Has a host lend slabs and end, so that the service manager has them; where it was, and what it lent.
fn leave_slabs(host: &mut Command, manager: &mut Manager, key: &ClusterKey) -> (String, Before) {
    let (mut host, address) = start(host);
    manager.listen_until("READY=1");
    let mut client = Client::connect(key, &address, 1);
    let before = lend(&mut client);
    signal(host.0.id(), "TERM");
    assert!(host.0.wait().unwrap().success());
    manager.listen_until("FDSTORE=1\nFDNAME=cenote-slab-1");
    assert_eq!(manager.stored.len(), 3, "{:?}", manager.stored);
    (address, before)
}

#[test]
fn a_service_that_is_restarted_gets_its_slabs_from_the_service_manager() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let mut manager = Manager::new(&folder.path().join("notify"));
    for address in [
        format!("shm:{}/socket", folder.str()),
        "tcp:127.0.0.1:0".into(),
    ] {
        let service = |command: &mut Command| {
            command.env("NOTIFY_SOCKET", folder.path().join("notify"));
            command.env("WATCHDOG_USEC", "60000000");
        };
        let mut first = host_of(&folder, &address);
        first.arg("--keep-slabs");
        service(&mut first);
        let (address, before) = leave_slabs(&mut first, &mut manager, &key);

        let mut next = host_of(&folder, &address);
        next.arg("--keep-slabs");
        let mut next = manager.pass_to(&next);
        service(&mut next);
        let (mut host, address) = start(&mut next);
        let mut client = Client::connect(&key, &address, 1);
        expect_inherited(&mut client, &before);
        manager.listen_until("READY=1");
        assert!(manager.stored.is_empty(), "{:?}", manager.stored);

        // Once more, with other slabs than the first time.
        client.ask(&Request::Unmap {
            window: before.windows[0],
        });
        let held = client.held();
        assert_eq!(held.len(), 2);
        signal(host.0.id(), "TERM");
        assert!(host.0.wait().unwrap().success());
        manager.listen_until("FDSTORE=1\nFDNAME=cenote-slab-1");
        let mut third = host_of(&folder, &address);
        third.arg("--keep-slabs");
        let mut third = manager.pass_to(&third);
        service(&mut third);
        let (mut host, address) = start(&mut third);
        let mut client = Client::connect(&key, &address, 1);
        assert_eq!(client.held(), held);
        manager.listen_until("READY=1");

        // A descriptor is missing: clients rebuild what is lost, on a host that serves.
        signal(host.0.id(), "TERM");
        assert!(host.0.wait().unwrap().success());
        manager.listen_until("FDSTORE=1\nFDNAME=cenote-slab-1");
        manager.stored.remove(0);
        let mut fourth = host_of(&folder, &address);
        fourth.arg("--keep-slabs");
        let mut fourth = manager.pass_to(&fourth);
        service(&mut fourth);
        let (host, address) = start(&mut fourth);
        let mut client = Client::connect(&key, &address, 1);
        assert_eq!(client.held(), []);
        manager.listen_until("READY=1");
        drop(host);
    }
    for said in ["READY=1", "STOPPING=1", "WATCHDOG=1"] {
        assert!(
            manager.said.iter().any(|text| text == said),
            "{:?}",
            manager.said
        );
    }
}

#[test]
fn a_start_that_fails_leaves_slabs_with_the_service_manager() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let notify = folder.path().join("notify");
    let mut manager = Manager::new(&notify);
    let mut first = host_of(&folder, "tcp:127.0.0.1:0");
    first.arg("--keep-slabs").env("NOTIFY_SOCKET", &notify);
    let (address, before) = leave_slabs(&mut first, &mut manager, &key);

    let somebody = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!("tcp:{}", somebody.local_addr().unwrap());
    let mut second = manager.pass_to(&host_of(&folder, &taken));
    let child = second.env("NOTIFY_SOCKET", &notify).spawn();
    let mut failed = Killed(child.expect("the host starts"));
    let ended = || failed.0.try_wait().unwrap().is_some();
    wait_until("the host has ended", ended, String::new);
    assert_eq!(failed.0.wait().unwrap().code(), Some(1));
    let test = UnixDatagram::unbound().unwrap();
    test.send_to(b"all is said", &notify).unwrap();
    manager.listen_until("all is said");
    assert_eq!(manager.stored.len(), 3, "{:?}", manager.said);

    let mut third = manager.pass_to(&host_of(&folder, &address));
    let (_host, address) = start(third.env("NOTIFY_SOCKET", &notify));
    let mut client = Client::connect(&key, &address, 1);
    expect_inherited(&mut client, &before);
    manager.listen_until("READY=1");
    assert!(manager.stored.is_empty(), "{:?}", manager.stored);
}

/// It is not started again by `Restart=on-failure`, to lend on a machine that goes away.
#[test]
fn a_notice_that_runs_out_ends_a_host_that_keeps_slabs_with_success() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let (mut host, address) = start(host_of(&folder, "tcp:127.0.0.1:0").arg("--keep-slabs"));
    let mut client = Client::connect(&key, &address, 1);
    lend(&mut client);
    // Whether an answer comes before the end is a matter of chance.
    let mut notice = Vec::new();
    Request::Notice { within_ms: 1 }.encode(&mut notice);
    client.session.send(&notice).unwrap();
    assert_eq!(host.0.wait().unwrap().code(), Some(0));
}

#[test]
fn without_a_service_manager_to_keep_slabs_they_are_given_up_and_that_is_said() {
    let folder = Folder::new();
    let key = key_in(&folder);
    let mut command = host_of(&folder, "tcp:127.0.0.1:0");
    command.arg("--keep-slabs").stderr(Stdio::piped());
    let (mut host, address) = start(&mut command);
    let mut client = Client::connect(&key, &address, 1);
    lend(&mut client);
    signal(host.0.id(), "TERM");
    assert_eq!(host.0.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    let stderr = host.0.stderr.take().expect("stderr is piped");
    std::io::Read::read_to_string(&mut { stderr }, &mut said).unwrap();
    assert!(said.contains("lent memory is freed"), "{said}");
}

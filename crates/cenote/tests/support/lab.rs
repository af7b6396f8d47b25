//! A served volume and a load that checks every byte of it.
//!
//! The load is `fio --verify`: it writes blocks that carry their own checksum and position,
//! reads all of them back, and fails on an I/O error or a wrong byte.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

use super::well::until;
use super::{Ended, Folder, cenote, has, signal, words};

/// Hosts and a server of one volume on them.
pub struct Lab {
    pub server: Child,
    /// Of the volume.
    name: String,
    /// On a disk: what is behind the volume, if anything is.
    disk: Option<tempfile::TempDir>,
    pub folder: Folder,
}

/// The volume that is served.
pub const VOLUME: &str = "v0";
const HOSTS: u32 = 12;

impl Lab {
    /// Twelve hosts of a local cluster.
    pub fn new(transport: &str, scheme: &str) -> Self {
        Self::with_hosts(HOSTS, transport, scheme)
    }

    /// As many hosts of a local cluster.
    pub fn with_hosts(count: u32, transport: &str, scheme: &str) -> Self {
        Self::with_cluster(count, scheme, &["--transport", transport])
    }

    /// As many hosts of a local cluster that are told `more`.
    pub fn with_cluster(count: u32, scheme: &str, more: &[&str]) -> Self {
        Self::served(Self::cluster(count, more), scheme, cenote())
    }

    fn cluster(count: u32, more: &[&str]) -> Folder {
        Self::cluster_of(Folder::new(), cenote(), count, more)
    }

    /// As many hosts in a folder, whose program this is.
    pub fn cluster_of(folder: Folder, mut program: Command, count: u32, more: &[&str]) -> Folder {
        let count = count.to_string();
        program.args(["up", "--hosts", &count, "--memory", "96M"]);
        program.args(more).args(["--dir", folder.str()]);
        let ended = program.output().expect("the binary runs");
        Ended::from(ended).expect(0);
        folder
    }

    /// As many hosts, and a volume with a disk behind it: mapped on its first writes.
    pub fn backed(count: u32, transport: &str) -> Self {
        Self::backed_with(count, &["--transport", transport])
    }

    /// The same on hosts that are told `more`.
    pub fn backed_with(count: u32, more: &[&str]) -> Self {
        let folder = Self::cluster(count, more);
        // Where builds go: a temporary folder may be memory, which does no direct I/O.
        let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let server = cenote()
            .args(["nbd", "--size", "256M", "--hot-slab", "0", "--backing"])
            .arg(disk.path().join("backing"))
            .arg("--cluster")
            .arg(folder.path().join("cluster.toml"))
            .arg("--socket")
            .arg(folder.path().join("nbd"))
            .stdout(Stdio::null())
            .stderr(log_of(&folder))
            .spawn()
            .expect("the server starts");
        let lab = Self {
            name: format!("unnamed-{}", server.id()),
            disk: Some(disk),
            server,
            folder,
        };
        lab.wait_served();
        lab
    }

    /// What is behind a volume that has a disk.
    pub fn backing(&self) -> PathBuf {
        let disk = self.disk.as_ref();
        disk.expect("a volume with a disk").path().join("backing")
    }

    /// A volume on the hosts of the folder's cluster file, served by `program`, which is the
    /// binary under test wherever it is to run.
    pub fn served(folder: Folder, scheme: &str, program: Command) -> Self {
        Self::served_as(folder, &["--scheme", scheme], program)
    }

    /// As many hosts of a local cluster, and a volume that is created with `flags`.
    pub fn with_volume(count: u32, transport: &str, flags: &[&str]) -> Self {
        let folder = Self::cluster(count, &["--transport", transport]);
        Self::served_as(folder, flags, cenote())
    }

    fn served_as(folder: Folder, flags: &[&str], program: Command) -> Self {
        let create = ["volume", "create", VOLUME, "--size", "256M"];
        folder.run(&[&create, flags].concat()).expect(0);
        let server = Self::serve(&folder, program);
        let lab = Self {
            name: VOLUME.to_owned(),
            disk: None,
            server,
            folder,
        };
        lab.wait_served();
        lab
    }

    fn end_server(&mut self) {
        signal(self.server.id(), "CONT");
        signal(self.server.id(), "TERM");
        let ended = self.server.wait().expect("a child");
        assert!(ended.success(), "the server ends well: {ended}");
    }

    /// SIGKILL to the server, then another one.
    pub fn kill_and_serve_again(&mut self) {
        self.kill_server();
        self.server = Self::serve(&self.folder, cenote());
        self.wait_answers();
    }

    /// SIGKILL; returns when its process is gone.
    pub fn kill_server(&mut self) {
        signal(self.server.id(), "KILL");
        self.server.wait().expect("a child");
    }

    /// Another server in place of one that is gone.
    pub fn serve_after_kill(&mut self) {
        self.server = Self::serve(&self.folder, cenote());
        self.wait_answers();
    }

    /// Until it says how it is, and lets clients in: its predecessor's socket lies there until it listens, a little
    /// later.
    fn wait_answers(&self) {
        let answers = || self.folder.run(&["volume", "status", VOLUME, "--json"]);
        wait_until(
            "the server answers",
            || [0, 3].contains(&answers().code) && UnixStream::connect(self.socket()).is_ok(),
            || format!("{:?}", answers()),
        );
    }

    /// A client of the server that connects again when it has to, and serves others: what comes
    /// in meanwhile waits.
    pub fn patient_client(&self) -> PatientClient {
        let socket = self.folder.path().join("patient");
        let child = Command::new("nbdkit")
            .args(["--foreground", "--unix"])
            .arg(&socket)
            .args(["--filter=retry", "nbd"])
            .arg(format!("socket={}", self.socket().display()))
            .args(["retries=60", "retry-delay=1", "retry-exponential=no"])
            .spawn()
            .expect("nbdkit is installed");
        let client = PatientClient { child, socket };
        wait_listens(&client.socket, "nbdkit");
        client
    }

    /// Ends the server and starts another.
    pub fn serve_again(&mut self, program: Command) {
        self.end_server();
        self.server = Self::serve(&self.folder, program);
        self.wait_served();
    }

    fn serve(folder: &Folder, mut program: Command) -> Child {
        program
            .args(["nbd", "--volume", VOLUME, "--cluster"])
            .arg(folder.path().join("cluster.toml"))
            .arg("--socket")
            .arg(folder.path().join("nbd"))
            .stdout(Stdio::null())
            .stderr(log_of(folder))
            .spawn()
            .expect("the server starts")
    }

    fn wait_served(&self) {
        wait_listens(&self.socket(), "the server");
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("nbd")
    }

    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket().display())
    }

    /// Writes and verifies the whole volume in 4 KiB blocks, 16 in flight.
    pub fn fio(&self) -> Load {
        self.fio_with(&words(
            "--rw=randwrite --bs=4k --iodepth=16 --size=192M --verify=crc32c --do_verify=1",
        ))
    }

    pub fn fio_with(&self, arguments: &[&str]) -> Load {
        self.fio_to(&self.uri(), arguments)
    }

    /// As [`Lab::fio_with`], over another server.
    pub fn fio_to(&self, uri: &str, arguments: &[&str]) -> Load {
        let child = Command::new("fio")
            .args(words(
                "--name=load --ioengine=nbd --verify_fatal=1 --verify_state_save=0",
            ))
            .arg(format!("--uri={uri}"))
            // Slow enough that faults land in the middle, whatever the machine.
            .args(["--rate_iops=12000"])
            .args(arguments)
            .current_dir(self.folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("fio is installed");
        Load(child)
    }

    pub fn status(&self) -> Value {
        let ask = || self.folder.run(&["volume", "status", &self.name, "--json"]);
        until("a status is told", ask, |_| true)["status"].take()
    }

    pub fn written(&self) -> u64 {
        self.status()["counters"]["pages_written"]
            .as_u64()
            .expect("a counter")
    }

    pub fn wait_written(&self, pages: u64) {
        wait_until(
            "pages are written",
            || self.written() >= pages,
            || self.status().to_string(),
        );
    }

    pub fn health(&self) -> String {
        self.status()["health"].as_str().expect("health").to_owned()
    }

    /// Waits until the volume sees a host as connected, or as not: then its slabs are not used any more. Of a
    /// host that was killed that stays so; that the volume is degraded may be over before anybody looks.
    pub fn wait_connected(&self, host: &str, connected: bool) {
        wait_until(
            &format!("{host} is connected: {connected}"),
            || self.is_connected(host) == connected,
            || self.status().to_string(),
        );
    }

    pub fn is_connected(&self, host: &str) -> bool {
        let status = self.status();
        let mut hosts = status["hosts"].as_array().expect("hosts").iter();
        let found = hosts.find(|entry| entry["name"] == host);
        found.expect("a host of the cluster")["connected"] == true
    }

    pub fn requests_failed(&self) -> u64 {
        self.status()["counters"]["requests_failed"]
            .as_u64()
            .expect("a counter")
    }

    pub fn wait_healthy(&self) {
        wait_until(
            "the volume is whole again",
            || self.health() == "healthy",
            || self.status().to_string(),
        );
    }

    /// Looks at the volume until the load has ended: it must be whole each time.
    pub fn expect_whole_until(&self, mut is_over: impl FnMut() -> bool) {
        while !is_over() {
            let status = self.status();
            assert_eq!(status["health"], "healthy", "{status}");
        }
    }

    /// Names of the hosts of the first extent.
    pub fn members(&self) -> Vec<String> {
        let status = self.status();
        let hosts = status["extents"][0]["hosts"]
            .as_array()
            .expect("an extent")
            .clone();
        hosts
            .iter()
            .filter_map(|host| host.as_str().map(str::to_owned))
            .collect()
    }

    pub fn kill(&self, host: &str) {
        signal(self.folder.pid(host), "KILL");
    }

    /// The volume's bytes, as a client copies them out.
    pub fn content(&self) -> Vec<u8> {
        let file = self.folder.path().join("content");
        let status = Command::new("nbdcopy")
            .args(["--connections=4", &self.uri()])
            .arg(&file)
            .status();
        assert!(status.expect("nbdcopy is installed").success());
        std::fs::read(file).expect("the copy")
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.path().join(LOG));
            eprintln!("what the server said:\n{}", log.unwrap_or_default());
            // It may be gone already; the reason of the first panic is what counts.
            self.server.kill().ok();
            self.server.wait().ok();
        } else {
            self.end_server();
        }
    }
}

/// Where the servers of a folder write what they have to say.
const LOG: &str = "server.log";

/// Their standard error: shown when the test fails.
fn log_of(folder: &Folder) -> File {
    let mut log = File::options();
    log.create(true).append(true);
    log.open(folder.path().join(LOG)).expect("a file")
}

/// An nbdkit between a client and the server.
pub struct PatientClient {
    child: Child,
    socket: PathBuf,
}

impl PatientClient {
    pub fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

impl Drop for PatientClient {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A running fio.
pub struct Load(Child);

impl Load {
    pub fn is_over(&mut self) -> bool {
        self.0.try_wait().expect("a child of ours").is_some()
    }

    /// Waits for its end; it must have seen no error and no wrong byte.
    pub fn expect_clean(self) {
        let Output {
            status,
            stdout,
            stderr,
        } = self.0.wait_with_output().expect("fio ends");
        let text = format!(
            "{}{}",
            String::from_utf8_lossy(&stdout),
            String::from_utf8_lossy(&stderr)
        );
        assert!(status.success(), "fio: {text}");
        assert!(text.contains("err= 0"), "fio: {text}");
    }
}

/// Waits until a socket lets clients in: it lies there a moment before it does.
pub fn wait_listens(socket: &Path, whose: &str) {
    wait_until(
        &format!("{whose} listens"),
        || UnixStream::connect(socket).is_ok(),
        String::new,
    );
}

/// Waits for a condition, and shows `state` when it does not come true.
pub fn wait_until(what: &str, condition: impl FnMut() -> bool, state: impl Fn() -> String) {
    cenote_test_kit::wait_until(condition, || format!("until {what}: {}", state()));
}

/// Whether the client tools are there; says so when the test is skipped.
pub fn has_tools() -> bool {
    has(&["fio", "nbdcopy", "nbdkit"])
}

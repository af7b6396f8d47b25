//! A folder that others may change tells them nothing and is told nothing by them: no command uses
//! one, whoever made it and whenever.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Ended, Folder, cenote, run, runs, words};

/// The user and the group `nobody`.
const NOBODY: u32 = 65_534;

/// Every command that uses the folder of a cluster, without the folder.
const COMMANDS: &[&[&str]] = &[
    &["up", "--hosts", "1", "--memory", "16M"],
    &["down", "--force"],
    &["status"],
    &["host", "drain", "h00"],
    &["volume", "list"],
    &["volume", "create", "v0", "--size", "1M"],
    &["nbd", "--size", "1M", "--listen", "127.0.0.1:0"],
    &["swap", "status"],
    &["kv", "up", "--nodes", "3", "--code", "2+1"],
    &["kv", "join", "--name", "n00"],
    &["kv", "status"],
    &["kv", "drain", "n00"],
    &["kv", "down"],
];

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own folder");
}

/// Whether this is root, who alone can be another user for a while.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can run a command as nobody");
    }
    is_root
}

fn as_nobody(mut program: Command, arguments: &[&str]) -> Ended {
    use std::os::unix::process::CommandExt;
    let output = program.args(arguments).uid(NOBODY).gid(NOBODY).output();
    Ended::from(output.expect("the program runs"))
}

/// A process of root's that somebody would like to see ended.
struct Victim(Child);

impl Victim {
    fn new() -> Self {
        let mut command = Command::new("sleep");
        let child = command.arg("600").stdin(Stdio::null()).spawn();
        Self(child.expect("sleep runs"))
    }

    /// What a host's folder says of it.
    fn describe(&self, folder: &Path) {
        let pid = self.0.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
        let mut fields = stat.rsplit(')').next().expect("a name").split_whitespace();
        let ticks = fields.nth(19).expect("a start time").to_owned();
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
        fs::write(folder.join("pid"), format!("{pid}\n")).expect("a file");
        fs::write(folder.join("started"), format!("{ticks} {boot}")).expect("a file");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().expect("a child of ours");
        self.0.wait().expect("a child of ours");
    }
}

#[track_caller]
fn expect_refused(ended: Ended, said: &str) {
    let ended = ended.expect(1);
    assert!(ended.stderr.contains(said), "{ended:#?}");
    assert!(ended.stderr.contains("\n  try: "), "{ended:#?}");
}

#[test]
fn no_command_uses_a_folder_that_others_may_write_to() {
    let place = tempfile::tempdir().expect("a folder");
    let inner = place.path().join("well");
    fs::create_dir(&inner).expect("a folder");
    for (shared, mode) in [(inner.as_path(), 0o777), (place.path(), 0o777)] {
        set_mode(place.path(), 0o755);
        set_mode(&inner, 0o755);
        set_mode(shared, mode);
        for command in COMMANDS {
            let arguments = [command, &["--dir", inner.to_str().expect("UTF-8")][..]].concat();
            expect_refused(run(&arguments), "writable by others (mode 0777)");
        }
        let left: Vec<_> = fs::read_dir(&inner).expect("a folder").collect();
        assert!(left.is_empty(), "nothing was made: {left:?}");
    }
    // A socket may stand where others can only add to what is there.
    let socket = place.path().join("socket");
    let key = inner.join("key");
    set_mode(place.path(), 0o755);
    run(&["key", "new", "--out", key.to_str().expect("UTF-8")]).expect(0);
    set_mode(place.path(), 0o777);
    let listen = format!("shm:{}", socket.display());
    let arguments = format!("host --name h00 --memory 16M --listen {listen}");
    let arguments = words(&arguments);
    let ended = run(&[&arguments[..], &["--key", key.to_str().expect("UTF-8")]].concat());
    expect_refused(ended, "writable by others (mode 0777)");
}

#[test]
fn a_folder_that_another_user_made_first_is_not_roots() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().expect("a folder");
    set_mode(place.path(), 0o1777);
    let well = place.path().join("well");
    let mut mkdir = Command::new("mkdir");
    mkdir.arg("-p").arg(well.join("hosts/h00"));
    as_nobody(mkdir, &[]).expect(0);
    let victim = Victim::new();
    victim.describe(&well.join("hosts/h00"));
    for command in COMMANDS {
        let arguments = [command, &["--dir", well.to_str().expect("UTF-8")][..]].concat();
        expect_refused(run(&arguments), "belongs to uid 65534");
    }
    assert!(runs(victim.0.id()), "the process that was named lives");

    // Nor does a link of theirs lead root to a folder of root's own.
    let ours = place.path().join("ours");
    fs::create_dir(&ours).expect("a folder");
    let link = place.path().join("link");
    symlink(&ours, &link).expect("a link");
    std::os::unix::fs::lchown(&link, Some(NOBODY), None).expect("we are root");
    let ended = run(&words(&format!("up --memory 16M --dir {}", link.display())));
    expect_refused(ended, "belongs to uid 65534");
    // In a folder of their own they are as free as anybody.
    let theirs = place.path().join("theirs");
    let theirs = theirs.to_str().expect("UTF-8");
    let up = ["up", "--hosts", "1", "--memory", "16M", "--dir", theirs];
    as_nobody(cenote(), &up).expect(0);
    expect_refused(run(&["down", "--dir", theirs]), "belongs to uid 65534");
    as_nobody(cenote(), &["down", "--dir", theirs]).expect(0);
}

#[test]
fn what_another_user_can_have_written_into_a_host_s_folder_ends_no_process() {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "2", "--memory", "16M"])
        .expect(0);
    let host = folder.host("h00");
    let victim = Victim::new();
    let kept = ["pid", "started"].map(|name| (name, fs::read(host.join(name)).expect("a file")));
    victim.describe(&host);
    let still_lives = |what: &str| {
        expect_refused(folder.run(&["down", "--force"]), what);
        assert!(runs(victim.0.id()), "the process that was named lives");
    };
    let other = folder.pid("h01");
    set_mode(&host.join("pid"), 0o666);
    still_lives("pid: writable by others (mode 0666)");
    assert!(!runs(other), "it keeps nobody else from being ended");
    set_mode(&host.join("pid"), 0o600);
    set_mode(&host, 0o777);
    still_lives("h00: writable by others (mode 0777)");
    set_mode(&host, 0o700);
    if is_root() {
        chown(host.join("pid"), Some(NOBODY), None).expect("we are root");
        still_lives("pid: belongs to uid 65534");
        chown(host.join("pid"), Some(0), None).expect("we are root");
        chown(&host, Some(NOBODY), None).expect("we are root");
        still_lives("h00: belongs to uid 65534");
        chown(&host, Some(0), None).expect("we are root");
    }
    fs::rename(host.join("pid"), host.join("other")).expect("in one folder");
    symlink(host.join("other"), host.join("pid")).expect("a link");
    still_lives("pid: is a symbolic link, not a file");
    for (name, text) in kept {
        fs::remove_file(host.join(name)).expect("a file");
        fs::write(host.join(name), text).expect("a file");
    }
    let process = folder.pid("h00");
    assert!(runs(process), "nobody ended what could not be told");
    folder.run(&["down"]).expect(0);
    assert!(!runs(process), "with what was right it is ended as ever");
}

//! What a command says that one should try is what helps: each of these had another's hint once.

mod support;

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

use support::{Ended, Folder, cenote, run, signal, wait_ended};

/// The line that says what to try.
#[track_caller]
fn hint(ended: &Ended) -> &str {
    assert_eq!(ended.code, 1, "{ended:#?}");
    let hint = ended.stderr.lines().find_map(|l| l.strip_prefix("  try: "));
    hint.unwrap_or_else(|| panic!("no hint: {ended:#?}"))
}

fn up(folder: &Folder) {
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
}

#[test]
fn a_port_that_is_taken_is_no_matter_of_who_may_connect() {
    let folder = Folder::new();
    up(&folder);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let volume = ["nbd", "--size", "4M", "--scheme", "plain"];
    let serve = |listen: &[&str]| folder.run(&[&volume[..], listen].concat());
    let in_use = serve(&["--listen", &address]);
    assert!(hint(&in_use).contains("another address"), "{in_use:#?}");
    assert!(!in_use.stderr.contains("--allow-remote"), "{in_use:#?}");
    let metrics = serve(&["--listen", "127.0.0.1:0", "--metrics", &address]);
    assert!(hint(&metrics).contains("another address"), "{metrics:#?}");
    let remote = serve(&["--listen", "0.0.0.0:0"]);
    assert!(hint(&remote).contains("--allow-remote"), "{remote:#?}");
}

#[test]
fn a_key_that_is_none_is_not_mended_by_its_mode() {
    let folder = Folder::new();
    up(&folder);
    let key = folder.path().join("cluster.key");
    let text = fs::read(&key).unwrap();
    fs::write(&key, "no key\n").unwrap();
    let malformed = folder.run(&["status"]);
    assert!(
        malformed.stderr.contains("64 hexadecimal"),
        "{malformed:#?}"
    );
    assert!(hint(&malformed).contains("copy the file"), "{malformed:#?}");
    assert!(!malformed.stderr.contains("chmod"), "{malformed:#?}");
    fs::write(&key, &text).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let shared = folder.run(&["status"]);
    assert!(hint(&shared).contains("chmod 600"), "{shared:#?}");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    folder.look(&[]).expect(0);
}

#[test]
fn a_volume_that_was_sealed_with_a_key_is_opened_by_no_new_one() {
    let folder = Folder::new();
    up(&folder);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (key, moved) = (path("v0.key"), path("moved.key"));
    let create = [
        "volume", "create", "v0", "--size", "4M", "--scheme", "plain",
    ];
    let create = || folder.run(&[&create[..], &["--seal", &key]].concat());
    let none = create();
    assert!(hint(&none).contains("cenote key seal"), "{none:#?}");
    run(&["key", "seal", "--out", &key]).expect(0);
    create().expect(0);

    let serve = ["nbd", "--volume", "v0", "--listen", "127.0.0.1:0"];
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    let shared = folder.run(&serve);
    assert_eq!(hint(&shared), format!("chmod 600 {key}"), "{shared:#?}");
    fs::rename(&key, &moved).unwrap();
    let gone = folder.run(&serve);
    assert!(hint(&gone).contains("--seal FILE"), "{gone:#?}");
    assert!(!gone.stderr.contains("key seal"), "{gone:#?}");
}

#[test]
fn a_volume_that_nobody_serves_may_have_files() {
    let folder = Folder::new();
    folder.create_volume("files", "4M", "plain");
    let status = folder.run(&["volume", "status", "files"]);
    for command in ["nbd --volume files", "mount DIR --volume files"] {
        assert!(hint(&status).contains(command), "{status:#?}");
    }
}

#[test]
fn a_cache_without_a_manager_gets_one_and_a_dead_host_is_named_once() {
    let folder = Folder::new();
    up(&folder);
    folder
        .run(&["cache", "create", "c0", "--size", "4M", "--region", "1M"])
        .expect(0);
    folder.run(&["cache", "stop", "c0"]).expect(0);
    let bench = folder.run(&["cache", "bench", "c0", "--duration", "1s"]);
    assert_eq!(hint(&bench), "cenote cache start c0", "{bench:#?}");

    let host = folder.pid("h02");
    signal(host, "KILL");
    wait_ended(host);
    let list = folder.run(&["cache", "proc", "list"]).expect(3);
    assert!(list.stderr.contains("skipped: host h02: "), "{list:#?}");
    let refused = list.stderr.matches("Connection refused").count();
    assert_eq!(refused, 1, "{list:#?}");
}

#[test]
fn a_folder_that_may_not_be_read_is_not_made_by_starting_a_cluster() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can run a command as nobody");
        return;
    }
    let folder = Folder::new();
    up(&folder);
    let nobody = |arguments: &[&str]| {
        let mut command = cenote();
        command.args(arguments).args(["--dir", folder.str()]);
        Ended::from(command.uid(65_534).gid(65_534).output().unwrap())
    };
    for command in [&["status"][..], &["down"]] {
        let refused = nobody(command);
        assert!(refused.stderr.contains("Permission denied"), "{refused:#?}");
        assert!(hint(&refused).contains("the user who owns"), "{refused:#?}");
        assert!(!refused.stderr.contains("cenote up"), "{refused:#?}");
    }
    // Swap takes a right, and no limit.
    let theirs = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(theirs.path(), Some(65_534), Some(65_534)).unwrap();
    let dir = theirs.path().to_str().unwrap();
    let theirs = |arguments: &[&str]| {
        let mut command = cenote();
        command.args(arguments).args(["--dir", dir]);
        Ended::from(command.uid(65_534).gid(65_534).output().unwrap())
    };
    theirs(&["up", "--hosts", "3", "--memory", "16M"]).expect(0);
    let swap = theirs(&["swap", "on", "--size", "8M", "--scheme", "plain"]);
    assert_eq!(hint(&swap), "run it as root", "{swap:#?}");
    theirs(&["down"]).expect(0);
}

#[test]
fn an_address_that_is_none_is_an_error_of_the_file_and_its_line() {
    let folder = Folder::new();
    up(&folder);
    let file = folder.path().join("cluster.toml");
    let text = fs::read_to_string(&file).unwrap();
    let wrong = text.replacen("shm:/", "smh:/", 1);
    let line = 1 + wrong
        .lines()
        .position(|line| line.contains("smh:"))
        .unwrap();
    fs::write(&file, &wrong).unwrap();
    for command in [
        &["status"][..],
        &["nbd", "--size", "4M", "--listen", "127.0.0.1:0"],
    ] {
        let refused = folder.run(command);
        let said = format!("line {line}: \"smh:/");
        assert!(refused.stderr.contains(&said), "{said}: {refused:#?}");
        assert!(refused.stderr.contains("cluster.toml"), "{refused:#?}");
        assert_eq!(refused.code, 1);
    }
    fs::write(&file, &text).unwrap();
    run(&["status", "--cluster", file.to_str().unwrap()]).expect(0);
}

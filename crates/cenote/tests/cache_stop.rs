//! The end of a cache's manager that does not serve yet, or that cannot be reached from here.

mod support;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;

use support::lab::wait_until;
use support::{Folder, cenote, signal, words};

/// A cache whose manager is stopped.
fn stopped() -> (Folder, PathBuf) {
    let folder = Folder::new();
    folder.run(&words("up --hosts 2 --memory 16M")).expect(0);
    folder
        .run(&words("cache create c0 --size 2M --region 1M"))
        .expect(0);
    let said = folder.run(&words("cache stop c0")).expect(0).stdout;
    assert_eq!(
        said,
        "the manager of cache c0 has stopped; hosts keep the data\n"
    );
    let said = folder.run(&words("cache stop c0")).expect(0).stdout;
    assert_eq!(said, "cache c0 had no manager\n");
    let cache = folder.path().join("caches/c0");
    (folder, cache)
}

#[test]
fn a_manager_that_cannot_be_stopped_from_here_is_not_taken_for_none() {
    let (folder, cache) = stopped();
    let lock = File::open(cache.join("lock")).expect("a lock");
    lock.lock().expect("nobody has it");
    // That of another machine: no process here has its number and began when it did.
    let note = [("pid", "1\n"), ("started", "7 another-boot\n")];
    for notes in [&[][..], &note] {
        for (name, text) in notes {
            fs::write(cache.join(name), text).expect("a note");
        }
        for command in ["cache stop c0", "down"] {
            let refused = folder.run(&words(command)).expect(1);
            let said = "cache c0 has a manager that this machine cannot stop";
            assert!(refused.stderr.contains(said), "{command}: {refused:#?}");
        }
        for (name, text) in notes {
            let left = fs::read_to_string(cache.join(name));
            assert_eq!(left.expect("it is kept"), *text);
        }
    }
    folder.look(&[]).expect(0);
    drop(lock);
    folder.run(&["down"]).expect(0);
}

#[test]
fn a_manager_that_waits_for_etcd_is_found_and_ends_when_it_is_told_to() {
    let (folder, cache) = stopped();
    // It takes connections, and says nothing.
    let etcd = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = etcd.local_addr().expect("bound");
    let spec = cache.join("cache.toml");
    let text = fs::read_to_string(&spec).expect("what the cache is");
    fs::write(&spec, format!("etcd = \"http://{address}\"\n{text}")).expect("a file");
    let start = || {
        // The one before may have come again and again.
        etcd.set_nonblocking(true).expect("a socket");
        while etcd.accept().is_ok() {}
        etcd.set_nonblocking(false).expect("a socket");
        let child = cenote()
            .args(words("cache manage c0 --dir"))
            .arg(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let (asked, _) = etcd.accept().expect("it asks etcd");
        (child, asked)
    };
    let (mut child, _asked) = start();
    let said = folder.run(&words("cache stop c0")).expect(0).stdout;
    assert_eq!(
        said,
        "the manager of cache c0 has stopped; hosts keep the data\n"
    );
    let status = child.wait().expect("a child of ours");
    assert_eq!(status.code(), Some(0), "it was not killed");

    // By itself it leaves no note of a process.
    let (mut child, _asked) = start();
    assert!(cache.join("pid").exists());
    signal(child.id(), "TERM");
    assert_eq!(child.wait().expect("a child of ours").code(), Some(0));
    assert!(!cache.join("pid").exists());
    // One that is left by itself fails, and leaves none either.
    let (mut child, _asked) = start();
    wait_until(
        "it gives up",
        || child.try_wait().expect("a child of ours").is_some(),
        String::new,
    );
    assert_eq!(child.wait().expect("a child of ours").code(), Some(1));
    assert!(!cache.join("pid").exists());

    let (mut child, _asked) = start();
    folder.run(&["down"]).expect(0);
    assert_eq!(child.wait().expect("a child of ours").code(), Some(0));
}

#[test]
fn a_cache_whose_journal_is_damaged_does_not_keep_hosts_that_are_to_end_by_force() {
    let (folder, cache) = stopped();
    fs::write(cache.join("journal"), "no journal").expect("a file");
    let refused = folder.run(&["down"]).expect(1);
    assert!(refused.stderr.contains("cache c0"), "{refused:#?}");
    assert!(
        refused.stderr.contains("cenote down --force"),
        "{refused:#?}"
    );
    folder.look(&[]).expect(0);
    let ended = folder.run(&["down", "--force"]).expect(0);
    let said = "warning: cache c0: ";
    assert!(ended.stderr.contains(said), "{ended:#?}");
    assert!(ended.stdout.contains("2 hosts ended"), "{ended:#?}");
}

#[test]
fn a_manager_that_cannot_be_stopped_from_here_does_not_keep_hosts_that_are_to_end_by_force() {
    let (folder, cache) = stopped();
    let lock = File::open(cache.join("lock")).expect("a lock");
    lock.lock().expect("nobody has it");
    let refused = folder.run(&["down"]).expect(1);
    assert!(
        refused.stderr.contains("cenote down --force"),
        "{refused:#?}"
    );
    let ended = folder.run(&["down", "--force"]).expect(0);
    let said = "warning: cache c0 has a manager";
    assert!(ended.stderr.contains(said), "{ended:#?}");
    assert!(ended.stdout.contains("2 hosts ended"), "{ended:#?}");
    let lost = "what they held is lost: cache c0\n";
    assert!(ended.stdout.ends_with(lost), "{ended:#?}");
}

#[test]
fn what_a_cache_was_reshaped_to_is_what_its_next_manager_goes_by() {
    let (folder, _cache) = stopped();
    folder.run(&words("cache start c0")).expect(0);
    let reshape = |arguments: &str| {
        let mut command = cenote();
        command.args(["cache", "reshape", "c0", "--dir", folder.str()]);
        command.args(words(arguments)).stdout(Stdio::null());
        command.spawn().expect("the binary runs")
    };
    // At the same time, again and again: none undoes the other.
    for round in 1..=8 {
        let configuration = format!("--configuration 2,1,8,{round}");
        let both = [format!("--size {}M", 2 + round % 2), configuration];
        for mut one in both.map(|arguments| reshape(&arguments)) {
            assert_eq!(one.wait().expect("a child of ours").code(), Some(0));
        }
        let spec = fs::read_to_string(folder.path().join("caches/c0/cache.toml"));
        let spec: toml::Table = spec.expect("a file").parse().expect("TOML");
        let size = format!("{}M", 2 + round % 2);
        assert_eq!(spec["size"].as_str(), Some(&*size));
        assert_eq!(spec["configuration"]["q"].as_integer(), Some(round));
    }
    folder.run(&words("cache stop c0")).expect(0);
    folder.run(&words("cache start c0")).expect(0);
    let status = folder.run(&words("cache status c0 --timeout 60s --json"));
    let status = status.expect(0);
    let configuration = &status.json()["status"]["configuration"];
    let asked = serde_json::json!({ "c": 2, "s": 1, "b": 8, "q": 8 });
    assert_eq!(configuration, &asked);
}

#[test]
fn a_cache_whose_journal_was_emptied_is_not_begun_anew_and_hides_no_other() {
    let (folder, cache) = stopped();
    let other = "cache create c1 --size 1M --region 1M";
    folder.run(&words(other)).expect(0);
    fs::write(cache.join("journal"), "").expect("written");
    for _ in 0..3 {
        let refused = folder.run(&["cache", "start", "c0"]).expect(1);
        assert!(refused.stderr.contains("the file is empty"), "{refused:#?}");
    }
    fs::write(cache.join("cache.toml"), "what?").expect("written");
    let listed = folder.run(&["cache", "status"]).expect(3);
    let whole = |line: &str| line.starts_with("c1") && line.contains("whole");
    assert!(listed.stdout.lines().any(whole), "{listed:#?}");
    assert!(listed.stdout.contains("cache.toml"), "{listed:#?}");
}

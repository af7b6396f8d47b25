//! Volumes described in a folder of their own, their owners and what is asked of these.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::bail;

use super::*;

fn volumes() -> (tempfile::TempDir, Volumes) {
    let folder = tempfile::tempdir().unwrap();
    let dir = ClusterDir::open(folder.path()).unwrap();
    (folder, Volumes::new(&dir))
}

#[test]
fn a_volume_is_created_once_listed_resized_and_deleted() {
    let (_folder, volumes) = volumes();
    assert!(volumes.names().unwrap().is_empty());
    let spec = Spec::new(Size(2 << 30), "rs:8+2").unwrap();
    volumes.create("a", &spec).unwrap();
    let again = volumes.create("a", &spec).unwrap_err();
    assert!(again.to_string().contains("already"), "{again:#}");
    assert_eq!(volumes.names().unwrap(), ["a"]);
    assert_eq!(volumes.load("a").unwrap(), spec);
    volumes.set_size("a", Size(3 << 20)).unwrap();
    let loaded = volumes.load("a").unwrap();
    assert_eq!(
        (loaded.size().unwrap(), loaded.id().unwrap()),
        (Size(3 << 20), spec.id().unwrap())
    );
    assert_eq!(spec.placement().unwrap(), None);
    let sets = Placement::CodingSets { spare: 3 };
    volumes.set_placement("a", sets).unwrap();
    assert_eq!(volumes.load("a").unwrap().placement().unwrap(), Some(sets));
    // Whoever owns it next finds the same, also once it holds nothing.
    volumes.forget_content(&volumes.own("a").unwrap()).unwrap();
    assert_eq!(volumes.load("a").unwrap().placement().unwrap(), Some(sets));
    volumes.delete("a").unwrap();
    assert!(volumes.names().unwrap().is_empty());
    assert!(volumes.delete("a").is_err());
}

#[test]
fn names_that_would_leave_the_folder_are_refused() {
    let (_folder, volumes) = volumes();
    for name in ["", ".", "..", "a/b", "../a", "-f", "a b", &"x".repeat(65)] {
        assert!(
            volumes
                .load(name)
                .unwrap_err()
                .to_string()
                .contains("not a valid"),
            "{name}"
        );
    }
}

/// An owner that was killed while it wrote its journal, and a command while it wrote a volume's file.
#[test]
fn what_was_left_half_written_of_a_volume_goes_and_what_is_another_volumes_stays() {
    let (folder, volumes) = volumes();
    let spec = Spec::new(Size(4096), "plain").unwrap();
    volumes.create("v", &spec).unwrap();
    let path = |name: &str| folder.path().join("volumes").join(name);
    let [journal, toml, other] = [
        ".v.journal.1-0.new",
        ".v.toml.1-0.new",
        ".vv.journal.1-0.new",
    ]
    .map(path);
    for path in [&journal, &toml, &other] {
        std::fs::write(path, "half").unwrap();
    }
    drop(volumes.own("v").unwrap());
    assert!(!journal.exists());
    volumes.set_size("v", Size(8192)).unwrap();
    assert!(!toml.exists());
    assert!(other.exists());
}

#[test]
fn a_volume_has_one_owner_and_the_owner_answers() {
    let (_folder, volumes) = volumes();
    volumes
        .create("v", &Spec::new(Size(4096), "plain").unwrap())
        .unwrap();
    let owner = volumes.own("v").unwrap();
    assert!(volumes.own("v").is_err());
    assert!(volumes.delete("v").is_err());
    assert_eq!(volumes.in_use().unwrap(), ["v"]);
    let answers = |question| match question {
        Question::Status => Ok(serde_json::json!({"extents": []})),
        Question::Scrub => Ok(serde_json::Value::Null),
        Question::Repair { bytes_per_s } => Ok(bytes_per_s.into()),
        Question::Resize { bytes } => bail!("cannot be {bytes}"),
        Question::Set { scheme, .. } => Ok(serde_json::json!(scheme)),
    };
    owner.answer(answers).unwrap();
    assert_eq!(
        volumes.ask("v", Question::Status).unwrap(),
        serde_json::json!({"extents": []})
    );
    let refused = volumes.ask("v", Question::Resize { bytes: 1 }).unwrap_err();
    assert_eq!(refused.to_string(), "volume v: cannot be 1");
    drop(owner);
    assert!(volumes.in_use().unwrap().is_empty());
    assert!(volumes.ask("v", Question::Status).is_err());
}

#[test]
fn who_looks_whether_a_volume_is_in_use_keeps_nobody_from_using_it() {
    let (_folder, volumes) = volumes();
    volumes
        .create("v", &Spec::new(Size(4096), "plain").unwrap())
        .unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..3 {
            threads.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    volumes.is_owned("v").unwrap();
                }
            });
        }
        let refused = (0..300).find_map(|_| {
            let owner = volumes.own("v");
            let seen = volumes.is_owned("v").unwrap();
            owner
                .err()
                .map(|error| error.to_string())
                .or((!seen).then(|| "not seen".to_owned()))
        });
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused, None);
    });
}

#[test]
fn an_owner_survives_garbage_and_answers_the_next() {
    let (_folder, volumes) = volumes();
    volumes
        .create("v", &Spec::new(Size(4096), "plain").unwrap())
        .unwrap();
    let owner = volumes.own("v").unwrap();
    owner.answer(|_| Ok(serde_json::json!(1))).unwrap();
    for garbage in [
        &b"\n"[..],
        b"{}\n",
        b"\xff\xff\n",
        b"{\"ask\":\"shrink\"}\n",
        &[b'a'; 4097],
    ] {
        let mut stream =
            UnixStream::connect(volumes.folder("v").unwrap().socket("v.sock")).unwrap();
        stream.write_all(garbage).unwrap();
        let mut text = String::new();
        // An answer or a closed connection, never an "ok".
        if stream.read_to_string(&mut text).is_ok() {
            assert!(!text.contains("\"ok\""), "{text}");
        }
    }
    assert_eq!(
        volumes.ask("v", Question::Status).unwrap(),
        serde_json::json!(1)
    );
}

/// Listens in the place of an owner and ends as `end` does once it was asked.
fn owner_that(volumes: &Volumes, end: impl FnOnce(UnixStream) + Send + 'static) {
    let folder = volumes.folder("v").unwrap();
    let listener = UnixListener::bind(folder.socket(&file("v", "sock"))).unwrap();
    std::thread::spawn(move || end(listener.accept().unwrap().0));
}

#[test]
fn an_owner_that_ends_before_its_answer_is_named_and_what_to_do_is_said() {
    let set = || Question::Set {
        scheme: "rs:4+2".into(),
        mode: "recovery".into(),
        delta: 0,
    };
    let asked = |mut stream: &UnixStream| {
        let mut line = [0; 1];
        stream.read_exact(&mut line).unwrap();
    };
    for (said, question) in [
        (&b""[..], set()),
        (b"{\"ok\":nu", set()),
        (b"", Question::Scrub),
        (b"", Question::Status),
    ] {
        let (_folder, volumes) = volumes();
        let spec = Spec::new(Size(4096), "plain").unwrap();
        volumes.create("v", &spec).unwrap();
        let changes = !matches!(question, Question::Status);
        owner_that(&volumes, move |mut stream| {
            asked(&stream);
            stream.write_all(said).unwrap();
        });
        let error = volumes.ask("v", question).unwrap_err();
        let failure = error.downcast_ref::<Failure>().expect("one with a remedy");
        let text = format!("{failure} / {}", failure.remedy());
        assert!(text.contains("volume v: its server ended"), "{text}");
        assert!(text.contains("cenote nbd --volume v"), "{text}");
        assert_eq!(text.contains("may or may not"), changes, "{text}");
        assert!(!text.contains("EOF"), "{text}");
    }
    let (_folder, volumes) = volumes();
    let spec = Spec::new(Size(4096), "plain").unwrap();
    volumes.create("v", &spec).unwrap();
    let error = volumes.ask("v", set()).unwrap_err().to_string();
    assert!(error.contains("its server has ended"), "{error}");
}

#[test]
fn a_volume_without_a_name_of_an_earlier_process_of_this_number_is_forgotten() {
    let (_folder, volumes) = volumes();
    let spec = Spec::new(Size(2 << 20), "rs:8+2").unwrap();
    let ours = format!("{UNNAMED}{}", std::process::id());
    volumes.create(&ours, &spec).unwrap();
    // In a container that shares the folder a process of the same number may run.
    let owner = volumes.own(&ours).unwrap();
    volumes.forget_unnamed(&ours).unwrap();
    assert_eq!(volumes.names().unwrap(), [&*ours]);
    drop(owner);
    // One that runs may be about to own it.
    let other = format!("{UNNAMED}{}", std::os::unix::process::parent_id());
    volumes.create(&other, &spec).unwrap();
    volumes.forget_unnamed(&ours).unwrap();
    assert_eq!(volumes.names().unwrap(), [other]);
    volumes.create(&ours, &spec).unwrap();
}

#[test]
fn a_volume_whose_file_makes_no_sense_stands_in_the_way_of_no_other() {
    let (folder, volumes) = volumes();
    let spec = Spec::new(Size(4096), "plain").unwrap();
    let ended = format!("{UNNAMED}{}", std::process::id());
    let ours = |name: &str| folder.path().join("volumes").join(name);
    volumes.create("v", &spec).unwrap();
    std::fs::write(ours("x.toml"), "id = 1").unwrap();
    std::fs::write(ours(&format!("{ended}.toml")), "").unwrap();

    volumes.forget_unnamed(&ended).unwrap();
    assert_eq!(volumes.names().unwrap(), ["v", "x"]);
    let seen = volumes.statuses(OWNER_LIMIT).unwrap();
    let [v, x] = &seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((v.spec.as_ref(), &v.error), (Some(&spec), &None));
    let error = x.error.as_deref().unwrap_or_default();
    assert!(error.contains("volumes/x.toml: "), "{error}");
    assert!(!error.contains('\n'), "{error}");
    // Once its hosts are gone: of what can be written, and of what is in use nothing.
    volumes.create("used", &spec).unwrap();
    let owner = volumes.own("used").unwrap();
    volumes.clear().unwrap();
    assert_ne!(volumes.load("v").unwrap().id, spec.id);
    assert_eq!(volumes.load("used").unwrap().id, spec.id);
    drop(owner);
    volumes.delete("x").unwrap();
    assert_eq!(volumes.names().unwrap(), ["used", "v"]);
}

/// As after a crash: another identity could not be written, on a disk that is full.
#[test]
fn a_reset_that_ends_half_way_leaves_no_volume_that_looks_empty() {
    let (folder, volumes) = volumes();
    let path = |kind: &str| folder.path().join("volumes").join(file("v", kind));
    volumes
        .create("v", &Spec::new(Size(4096), "plain").unwrap())
        .unwrap();
    for kind in BESIDE_JOURNAL.iter().chain(&JOURNAL) {
        std::fs::write(path(kind), kind).unwrap();
    }
    let text = std::fs::read(path("toml")).unwrap();
    std::fs::write(path("toml"), "none").unwrap();
    let owner = volumes.own("v").unwrap();
    volumes.forget_content(&owner).unwrap_err();
    // The marks made room, and without them the journal is refused.
    assert!(!path("pages").exists());
    assert!(path("journal").exists());
    std::fs::write(path("toml"), text).unwrap();
    volumes.forget_content(&owner).unwrap();
    assert!(!path("journal").exists());
}

/// A volume that is deleted and made again while somebody waits for its lock.
#[test]
fn the_lock_of_a_volume_that_is_gone_is_not_that_of_the_next_one_of_its_name() {
    let (folder, volumes) = volumes();
    let spec = Spec::new(Size(4096), "plain").unwrap();
    let path = |kind: &str| folder.path().join("volumes").join(file("v", kind));
    volumes.create("v", &spec).unwrap();
    // Who looks at a lock has others wait for it, with the file that they have opened.
    let looker = fs::File::create(path("lock")).unwrap();
    looker.lock_shared().unwrap();
    let late = volumes.clone();
    let late = std::thread::spawn(move || late.own("v").map(drop));
    let opened = || {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        let links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.filter(|link| *link == path("lock")).count()
    };
    cenote_test_kit::wait_until(|| opened() == 2, || "the lock is not opened".to_owned());
    for kind in ["toml", "lock"] {
        fs::remove_file(path(kind)).unwrap();
    }
    volumes.create("v", &spec).unwrap();
    let owner = volumes.own("v").unwrap();
    drop(looker);
    assert!(late.join().unwrap().is_err(), "there are two owners");
    // Nothing is left of one that is gone.
    volumes.forget(&owner).unwrap();
    assert!(volumes.own("v").is_err());
    assert!(!path("lock").exists());
}

//! Arguments, exit codes, help and everything else that needs no cluster.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use support::{Folder, cenote, run, words};

const COMMANDS: [&str; 19] = [
    "up",
    "down",
    "status",
    "top",
    "dashboard",
    "host",
    "volume",
    "mount",
    "nbd",
    "swap",
    "run",
    "key",
    "kv",
    "cache",
    "doctor",
    "support-bundle",
    "bench",
    "completions",
    "demo",
];

#[test]
fn wrong_usage_ends_with_2_and_says_what_to_do() {
    for arguments in [
        &[][..],
        &["fly"],
        &["up"],
        &["up", "--memory", "512MB", "--dir", "/nowhere"],
        &["up", "--memory", "1M", "--hosts", "0", "--dir", "/nowhere"],
        &words("up --memory 1M --transport pigeon --dir /nowhere"),
        &["status"],
        &["status", "--dir", "/a", "--cluster", "/b"],
        &words("host --name x --memory 1M --key k --listen nowhere"),
        &["completions", "tcsh"],
        &["bench", "everything"],
        // An object that is to be deleted is there.
        &words("store delete /nowhere greeting --if-absent"),
        &words("store create /nowhere/s --size 0"),
        &words("store create /nowhere/s --size 40G"),
        &words("store create /nowhere/s --size 100T --shards 64"),
        &words("store create /nowhere/s --size 64M --keys 1000000000"),
        &words("store create /nowhere/s --size 8K --keys 4096"),
        &words("store create tcp:127.0.0.1:5 --size 64M"),
        &words("store check tcp:127.0.0.1:5"),
        &words("store serve /nowhere --listen tcp:127.0.0.1:0 --key k --scheme pigeon"),
        &words("store serve /nowhere --listen tcp:127.0.0.1:0 --key k --landing 0"),
        &words("store get tcp:127.0.0.1 greeting --key k"),
        &words("cache create c0 --size 4M --listen nowhere --dir /nowhere"),
        &["kv", "join", "--name", "a b", "--dir", "/nowhere"],
        &words("kv up --max-item-size 2M --dir /nowhere"),
        &words("kv up --memory 10T --dir /nowhere"),
        &words("kv up --nodes 5 --metrics 127.0.0.1:65532 --dir /nowhere"),
        &words("up --memory 0 --dir /nowhere/up"),
        &words("up --memory 100K --dir /nowhere/up"),
        &words("swap on --size 0 --dir /nowhere"),
        &words("plan --hosts 0 --loss 1e-6 --overhead 1.3"),
        &words("plan --hosts 1000 --loss 1e-6 --overhead 0.5"),
        &[
            &words("cache proc run walk c0 --dir /nowhere")[..],
            &["7"; 129],
        ]
        .concat(),
    ] {
        let ended = run(arguments).expect(2);
        assert!(!ended.stderr.is_empty(), "{arguments:?}");
        assert_eq!(ended.stdout, "", "{arguments:?}");
    }
    // Nothing was made of what makes no sense.
    assert!(!Path::new("/nowhere").exists());
}

#[test]
fn sizes_that_cannot_be_are_answered_with_those_that_can() {
    for (arguments, said) in [
        (
            "store create /nowhere/s --size 40G",
            "at most 32G per shard",
        ),
        ("store create /nowhere/s --size 40G", "use --shards 2"),
        ("store create /nowhere/s --size 100T", "--size 2T"),
        (
            "up --memory 100K --dir /nowhere",
            "less than one slab, of 1M",
        ),
        ("kv up --memory 10T --dir /nowhere", "at most 1T"),
    ] {
        let ended = run(&words(arguments)).expect(2);
        assert!(ended.stderr.contains(said), "{said}: {ended:#?}");
    }
}

#[test]
fn a_full_disk_under_standard_output_is_an_error_that_names_it() {
    let folder = Folder::new();
    folder.create_volume("v0", "4M", "plain");
    let volumes = ["volume", "list", "--dir", folder.str()];
    let status = ["volume", "status", "--dir", folder.str()];
    for arguments in [
        // Of these a writer of its own, println and a page that is shown again and again.
        &["completions", "bash"][..],
        &["key", "new", "--out", &format!("{}/new.key", folder.str())],
        &volumes,
        &status,
        &words("plan --hosts 1000 --loss 1e-6 --overhead 1.3 --json"),
        &["doctor"],
        &["fabric", "list"],
    ] {
        let full = std::fs::File::create("/dev/full").expect("a device of any Linux");
        let output = cenote().args(arguments).stdout(full).output();
        let output = output.expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        let error = "error: write to standard output: No space left on device";
        assert!(said.contains(error), "{arguments:?}: {said}");
        assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    }
}

#[test]
fn variables_that_say_nothing_are_told() {
    for (name, value) in [
        ("CENOTE_LOG", "garbage"),
        ("CENOTE_LOG", "info,cenote_host=much"),
        ("CENOTE_IO_URING", "maybe"),
    ] {
        let output = cenote().env(name, value).args(["fabric", "list"]).output();
        let output = output.expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let warning = format!("warning: {name}={value}: ignored; use ");
        assert!(said.contains(&warning), "{warning}: {said}");
    }
    // Of all commands that take it.
    for command in [&["status"][..], &["up", "--memory", "1M"], &["doctor"]] {
        let output = cenote().env("CENOTE_DIR", "").args(command).output();
        let output = output.expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned()
            + &String::from_utf8_lossy(&output.stdout);
        let is_doctor = command == ["doctor"];
        assert_eq!(output.status.code(), Some(if is_doctor { 1 } else { 2 }));
        assert!(
            said.contains("CENOTE_DIR") || said.contains("--dir"),
            "{said}"
        );
    }
}

#[test]
fn a_volume_that_is_to_be_served_has_a_name_or_a_size() {
    for command in [
        "nbd --socket s --dir /nowhere",
        "mount /nowhere --dir /nowhere",
        "run --local 16M --dir /nowhere -- true",
    ] {
        let ended = run(&words(command)).expect(2);
        for flag in ["--volume <NAME>", "--size <SIZE>"] {
            assert!(ended.stderr.contains(flag), "{flag}: {ended:#?}");
        }
    }
    // Either is enough: what is missing then is the cluster.
    for which in ["--volume v0", "--size 1M"] {
        run(&words(&format!("nbd --socket s --dir /nowhere {which}"))).expect(1);
    }
}

#[test]
fn too_little_memory_for_a_key_value_node_is_answered_with_the_least() {
    let folder = Folder::new();
    let up = |memory: &str| {
        let more = [
            "--memory",
            memory,
            "--etcd",
            "http://127.0.0.1:1",
            "--plan-only",
        ];
        folder.run(&[&["kv", "up"], &more[..]].concat())
    };
    let refused = up("4M").expect(2);
    let (_, rest) = refused.stderr.split_once("use --memory ").expect("a hint");
    let (least, _) = rest.split_once(' ').expect("more words");
    let mib: u64 = least.trim_end_matches('M').parse().expect("whole MiB");
    let less = up(&format!("{}M", mib - 1)).expect(2);
    assert!(
        less.stderr.contains(&format!("--memory {least} ")),
        "{less:#?}"
    );
    // It is enough: what is wrong then is the key.
    std::fs::write(folder.path().join("cluster.key"), "no key\n").unwrap();
    up(least).expect(1);
}

#[test]
fn what_help_shows_under_etcd_is_about_etcd() {
    for command in [
        "kv up",
        "kv node",
        "kv join",
        "kv status",
        "kv down",
        "cache create",
        "dashboard",
    ] {
        let help = run(&words(&format!("{command} --help"))).expect(0).stdout;
        let (_, rest) = help.split_once("\netcd:\n").expect("etcd's flags");
        let lines = rest
            .lines()
            .take_while(|line| line.is_empty() || line.starts_with(' '));
        let flags: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("      --")?.split(' ').next())
            .collect();
        let all = [
            "etcd-user",
            "etcd-password-file",
            "etcd-ca",
            "etcd-cert",
            "etcd-key",
        ];
        assert_eq!(flags, all, "{command}");
    }
}

#[test]
fn failure_ends_with_1_and_names_the_way_out() {
    let ended = run(&["status", "--dir", "/nowhere"]).expect(1);
    assert!(
        ended.stderr.contains("error: cluster folder /nowhere"),
        "{ended:#?}"
    );
    assert!(
        ended
            .stderr
            .contains("try: cenote up --dir /nowhere --hosts 12 --memory 512M"),
        "{ended:#?}"
    );
    let folder = Folder::new();
    let spaced = folder.path().join("a b");
    std::fs::create_dir(&spaced).unwrap();
    std::fs::set_permissions(&spaced, std::fs::Permissions::from_mode(0o700)).unwrap();
    let spaced = spaced.to_str().unwrap();
    let ended = run(&["status", "--dir", spaced]).expect(1);
    let quoted = format!("try: cenote up --dir '{spaced}' --hosts 12 --memory 512M");
    assert!(ended.stderr.contains(&quoted), "{ended:#?}");
    run(&["down", "--dir", "/nowhere"]).expect(1);
    run(&["status", "--cluster", "/nowhere/cluster.toml"]).expect(1);
}

#[test]
fn every_command_has_help_with_an_example() {
    let top = run(&["--help"]).expect(0);
    for command in COMMANDS {
        assert!(
            top.stdout.contains(&format!("\n  {command} ")),
            "{command} is not listed"
        );
        let help = run(&[command, "--help"]).expect(0);
        assert!(
            help.stdout.contains(&format!("  cenote {command} ")),
            "{command}: {}",
            help.stdout
        );
    }
    assert!(top.stdout.contains("Exit codes:"));
}

#[test]
fn without_the_other_program_its_commands_say_what_is_missing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("cenote");
    std::fs::hard_link(env!("CARGO_BIN_EXE_cenote"), &alone).unwrap();
    let output = std::process::Command::new(alone)
        .args(["bench", "codec"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cenote-lab: no such program"), "{said}");
    assert!(said.contains("try: make build"), "{said}");
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ended = run(&["completions", shell]).expect(0);
        for command in COMMANDS {
            assert!(ended.stdout.contains(command), "{shell} lacks {command}");
        }
    }
}

#[test]
fn a_key_is_private_random_and_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.key");
    let path = path.to_str().unwrap();
    run(&["key", "new", "--out", path]).expect(0);
    let mode = std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let first = std::fs::read(path).unwrap();

    let again = run(&["key", "new", "--out", path]).expect(1);
    assert!(again.stderr.contains("already exists"), "{again:#?}");
    assert_eq!(std::fs::read(path).unwrap(), first);

    let other = folder.path().join("b.key");
    run(&["key", "new", "--out", other.to_str().unwrap()]).expect(0);
    assert_ne!(std::fs::read(other).unwrap(), first);
}

#[test]
fn a_host_refuses_a_key_that_others_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("a.key");
    let listen = format!("shm:{}", folder.path().join("socket").display());
    run(&["key", "new", "--out", key.to_str().unwrap()]).expect(0);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    let key = key.to_str().unwrap();
    let ended = run(&words(&format!(
        "host --name x --memory 1M --key {key} --listen {listen}"
    )))
    .expect(1);
    assert!(
        ended.stderr.contains(key) && ended.stderr.contains("chmod 600"),
        "{ended:#?}"
    );
    assert_eq!(ended.stdout, "");
}

#[test]
fn doctor_says_the_same_to_people_and_to_scripts() {
    let json = run(&["doctor", "--json"]);
    let people = run(&["doctor"]);
    assert_eq!(json.code, people.code);
    let report = json.json();
    let findings = report["findings"].as_array().expect("a list");
    let errors = findings
        .iter()
        .filter(|finding| finding["state"] == "error")
        .count();
    assert_eq!(json.code, i32::from(errors > 0));
    assert!(
        people
            .stdout
            .ends_with(&format!(" warnings, {errors} errors\n")),
        "{people:#?}"
    );
    for finding in findings {
        let subject = finding["subject"].as_str().expect("a subject");
        assert!(people.stdout.contains(subject), "{subject}");
        assert_eq!(
            finding["state"] == "ok",
            finding["mend"].is_null(),
            "{finding}"
        );
    }
}

#[test]
fn doctor_checks_one_subject_or_says_which_there_are() {
    let subjects = |word: &str| -> Vec<String> {
        let report = run(&["doctor", "--json", "--only", word]).json();
        let findings = report["findings"].as_array().expect("a list").iter();
        let subject = |finding: &serde_json::Value| finding["subject"].as_str().map(str::to_owned);
        findings
            .map(|finding| subject(finding).expect("text"))
            .collect()
    };
    for word in ["FUSE over io_uring", "fuse", "FUSE over"] {
        assert_eq!(subjects(word), ["FUSE over io_uring"], "{word}");
    }
    // One that is a name is not the beginning of others.
    assert_eq!(subjects("ublk"), ["ublk"]);
    for (word, said) in [
        ("fuze", "there is no such subject"),
        ("memory", "several subjects begin so"),
        ("", "several subjects begin so"),
    ] {
        let refused = run(&["doctor", "--only", word]).expect(2);
        assert!(refused.stderr.contains(said), "{refused:#?}");
        for subject in ["FUSE over io_uring", "volumes", "store"] {
            assert!(refused.stderr.contains(subject), "{refused:#?}");
        }
        assert_eq!(refused.stdout, "");
    }
    // It would find nothing wrong with what is not there.
    for (word, remedy) in [("hosts", "--dir DIR"), ("store", "--store DIR")] {
        let refused = run(&["doctor", "--only", word]).expect(2);
        assert!(refused.stderr.contains(remedy), "{refused:#?}");
    }
    let nowhere = ["doctor", "--only", "hosts", "--dir", "/nowhere"];
    let refused = run(&nowhere).expect(1);
    assert!(refused.stdout.contains("cluster folder"), "{refused:#?}");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    for no_color in [Some("1"), None] {
        let mut command = cenote();
        match no_color {
            Some(value) => command.env("NO_COLOR", value),
            None => command.env_remove("NO_COLOR"),
        };
        let output = command
            .args(["status", "--dir", "/nowhere"])
            .output()
            .unwrap();
        assert!(!output.stderr.contains(&0x1b), "stderr is no terminal here");
    }
}

#[test]
fn volumes_are_described_before_anybody_serves_them() {
    let folder = Folder::new();
    folder.create_volume("v0", "2G", "rs:8+2");
    folder
        .run(&["volume", "create", "v0", "--size", "1G"])
        .expect(1);
    folder
        .run(&words("volume create v1 --size 1G --scheme rs:3+2"))
        .expect(2);
    folder
        .run(&["volume", "create", "v1", "--size", "100"])
        .expect(2);
    folder
        .run(&["volume", "create", "../v1", "--size", "1G"])
        .expect(2);
    let list = folder.run(&["volume", "list", "--json"]).expect(0).json();
    assert_eq!(
        list,
        serde_json::json!([{
            "name": "v0", "size": "2G", "size_bytes": 2_u64 << 30, "scheme": "rs:8+2",
            "mode": "failure-recovery", "delta": 1, "in_use": false, "change": null
        }])
    );
    folder
        .run(&["volume", "resize", "v0", "--size", "3G"])
        .expect(0);
    assert!(
        folder
            .run(&["volume", "list"])
            .expect(0)
            .stdout
            .contains("3G")
    );
    folder.run(&["volume", "status", "v0"]).expect(1);
    folder.run(&["volume", "delete", "v0"]).expect(0);
    folder.run(&["volume", "delete", "v0"]).expect(1);
    assert_eq!(
        folder.run(&["volume", "list", "--json"]).expect(0).json(),
        serde_json::json!([])
    );
}

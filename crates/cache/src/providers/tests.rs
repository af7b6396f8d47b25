//! Commands that do what they should, and others. Hosts as processes are in the program's own tests.

use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

fn wish() -> Wish {
    Wish {
        order: "o1".to_owned(),
        machine_type: "small".to_owned(),
        memory_bytes: 64 << 20,
        slab_bytes: 1 << 20,
        cores: 2,
        is_spot: true,
    }
}

fn shell(acquire: &str, release: &str, limit: Duration) -> Program {
    let command = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
    Program {
        acquire: command(acquire),
        release: command(release),
        limit,
    }
}

/// Longer than any of them takes, on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_command_is_told_what_is_wished_for_and_its_machine_is_released_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("released");
    let acquire = r#"echo "{\"id\":\"vm-$CENOTE_MACHINE_TYPE-$CENOTE_CORES-$CENOTE_SPOT\",
        \"address\":\"tcp:10.0.0.7:7000\",\"domain\":\"m$CENOTE_MEMORY_BYTES-$CENOTE_SLAB_BYTES\"}""#;
    let release = format!(
        "echo \"$CENOTE_MACHINE_ID $CENOTE_ORDER\" > {}",
        file.display()
    );
    let mut program = shell(acquire, &release, LONG);
    let machine = program.acquire(&wish()).unwrap();
    assert_eq!(machine.id, "vm-small-2-1");
    assert_eq!(machine.host.address.to_string(), "tcp:10.0.0.7:7000");
    assert_eq!(machine.host.domain, "m67108864-1048576");
    program.release(&machine).unwrap();
    let said = || std::fs::read_to_string(&file).unwrap();
    assert_eq!(said(), "vm-small-2-1 o1\n");
    program.cancel("o2").unwrap();
    assert_eq!(said(), " o2\n", "what the order got, under whatever name");
}

#[test]
fn a_command_that_fails_is_told_with_its_words() {
    let mut program = shell("echo no quota >&2; exit 3", "", LONG);
    let error = program.acquire(&wish()).unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
    let said = error.to_string();
    assert!(said.contains("no quota") && said.contains('3'), "{said}");
    let mut missing = Program {
        acquire: vec!["/nowhere/at/all".to_owned()],
        ..program
    };
    let error = missing.acquire(&wish()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("/nowhere/at/all"), "{said}");
}

fn is_there(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat"));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn a_command_that_hangs_is_ended_with_what_it_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("sleep 1000 & echo $! > {}; wait", file.display());
    // It has its file by then on a busy machine.
    let mut program = shell(&script, &script, Duration::from_secs(5));
    let error = program.acquire(&wish()).unwrap_err();
    assert!(matches!(error, Error::Late { .. }), "{error}");
    await_end(&std::fs::read_to_string(file).unwrap());
}

fn await_end(pid: &str) {
    let deadline = std::time::Instant::now() + LONG;
    while is_there(pid.trim()) {
        assert!(std::time::Instant::now() < deadline, "{pid} runs on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_a_command_leaves_running_goes_on_and_keeps_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let said = r#"echo "{\"id\":\"a\",\"address\":\"tcp:10.0.0.7:7000\"}""#;
    let script = format!("sleep 1000 & echo $! > {}; {said}", file.display());
    let machine = shell(&script, "", LONG).acquire(&wish()).unwrap();
    assert_eq!(machine.id, "a");
    let pid = std::fs::read_to_string(file).unwrap();
    assert!(is_there(pid.trim()), "it was left on purpose");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// Names the file into which [`a_manager_that_is_killed`] has its command write.
const KILLED: &str = "CENOTE_TEST_KILLED";

/// Not a test by itself: what [`a_command_ends_within_its_limit_also_when_its_manager_is_killed`] kills.
#[test]
#[ignore = "run by another test"]
fn a_manager_that_is_killed() {
    let file = std::env::var(KILLED).unwrap();
    let script = format!("echo $$ > {file}.new; mv {file}.new {file}; sleep 1000");
    drop(shell(&script, "", Duration::from_secs(5)).acquire(&wish()));
}

#[test]
fn a_command_ends_within_its_limit_also_when_its_manager_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let mut manager = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "providers::tests::a_manager_that_is_killed",
        ])
        .env(KILLED, &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let deadline = std::time::Instant::now() + LONG;
    while !file.exists() {
        assert!(
            std::time::Instant::now() < deadline,
            "the command does not run"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    manager.kill().unwrap();
    manager.wait().unwrap();
    await_end(&std::fs::read_to_string(file).unwrap());
}

#[test]
fn a_command_that_says_nonsense_gives_no_machine() {
    for said in [
        "true",
        "echo hello",
        "echo '{}'",
        r#"echo '{"id":"a","address":"pigeon:7"}'"#,
        r#"echo '{"id":"","address":"tcp:10.0.0.7:7000"}'"#,
        r#"echo '{"id":"a b","address":"tcp:10.0.0.7:7000"}'"#,
        r#"echo '{"id":"a","address":"tcp:10.0.0.7:7000","more":1}'"#,
        r#"echo '{"id":"a","address":"tcp:10.0.0.7:7000"} trailing'"#,
        // An address, and too long to be kept.
        r#"n=$(printf %060d 0)h; echo "{\"id\":\"a\",\"address\":\"tcp:$n.$n.$n.$n:7000\"}""#,
        "head -c 65537 /dev/zero",
    ] {
        let error = shell(said, "", LONG).acquire(&wish()).unwrap_err();
        assert!(matches!(error, Error::Nonsense { .. }), "{said}: {error}");
    }
}

#[test]
fn a_command_that_never_stops_talking_is_bounded() {
    let mut program = shell("exec yes", "", LONG);
    let error = program.acquire(&wish()).unwrap_err();
    // Its pipe is closed once it said more than it may.
    let is_told = matches!(error, Error::Failed { .. } | Error::Nonsense { .. });
    assert!(is_told, "{error}");
}

#[test]
fn a_command_may_log_as_much_as_it_likes_and_is_told_with_its_last_words() {
    // By the shell itself, which ends where nobody reads it.
    let log =
        "line=$(head -c 1000 /dev/zero | tr '\\0' x); for _ in $(seq 200); do echo $line >&2; done";
    let said = r#"echo "{\"id\":\"a\",\"address\":\"tcp:10.0.0.7:7000\"}""#;
    let machine = shell(&format!("{log}; {said}"), log, LONG)
        .acquire(&wish())
        .unwrap();
    assert_eq!(machine.id, "a");
    shell("", log, LONG).release(&machine).unwrap();
    let fails = format!("{log}; echo no quota >&2; exit 3");
    let error = shell(&fails, "", LONG).acquire(&wish()).unwrap_err();
    let said = error.to_string();
    assert!(said.contains("no quota") && said.contains('3'), "{said}");
}

proptest! {
    #[test]
    fn whatever_a_command_says_is_a_machine_or_an_error(
        at in 0..60_usize, with in "[ -~\n]{0,6}", cut in 0..6_usize,
        random in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let text = r#"{"id":"vm-1","address":"tcp:10.0.0.7:7000","domain":"rack-2"}"#;
        let end = (at + cut).min(text.len());
        let text = format!("{}{with}{}", &text[..at], &text[end..]);
        for said in [text.as_bytes(), &random] {
            if let Ok(machine) = program::machine("o1", said) {
                prop_assert!(is_name(&machine.id) && is_name(&machine.host.domain));
                prop_assert!(is_name(&machine.host.name));
            }
        }
    }
}

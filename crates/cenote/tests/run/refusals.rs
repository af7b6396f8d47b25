//! What `cenote run` does not begin with, and what a program under it may not do to its memory or
//! inherit.

use std::fs::{File, OpenOptions};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;

use super::*;

/// The program of the pager's tests, if it can be compiled here.
fn hostile(folder: &Folder) -> Option<String> {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../pager/tests/served");
    let (program, source) = (
        format!("{}/hostile", folder.str()),
        format!("{sources}/hostile.c"),
    );
    if Command::new("cc").arg("--version").output().is_err() {
        println!("skipped: what programs are refused: needs a C compiler");
        return None;
    }
    let mut command = Command::new("cc");
    command.args(["-O1", "-pthread", "-o", &program, &source]);
    assert!(command.status().expect("it runs").success());
    Some(program)
}

#[test]
fn direct_transfers_are_refused() {
    if is_skipped("direct transfers", &[]) {
        return;
    }
    let folder = cluster("16M");
    let Some(program) = hostile(&folder) else {
        return;
    };
    let program = Program::start(&folder, "8M", "64M", &[&program, "direct"]);
    assert_eq!(program.end().0, 0);
}

const PR_SET_MEMORY_MERGE: i32 = 67;

#[test]
fn pages_are_not_merged_whatever_the_command_inherits() {
    if is_skipped("merged pages", &[]) {
        return;
    }
    let folder = cluster("16M");
    let Some(program) = hostile(&folder) else {
        return;
    };
    let line = format!("run --dir {} --local 8M --size 64M --", folder.str());
    let mut command = cenote();
    command.args(words(&line)).args([&program, "merge"]);
    let merge = || {
        // A kernel that does not merge refuses it.
        // SAFETY: it takes numbers alone.
        unsafe { libc::prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) };
        Ok(())
    };
    // SAFETY: it makes a system call alone.
    let output = unsafe { command.pre_exec(merge) }.output();
    let output = output.expect("the binary runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
}

/// Runs a program with this as its standard input. There is no cluster: what is wrong with that is
/// found out before.
fn with_input(input: impl Into<Stdio>) -> String {
    let folder = Folder::new();
    let line = format!("run --dir {} --local 8M --size 64M -- true", folder.str());
    let mut command = cenote();
    command.args(words(&line)).stdin(input);
    let output = command.output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_file_that_was_opened_for_direct_transfers_is_not_inherited() {
    if is_skipped("an inherited descriptor", &[]) {
        return;
    }
    let folder = Folder::new();
    let path = folder.path().join("input");
    File::create(&path).expect("made");
    let open = |flags| {
        let mut how = OpenOptions::new();
        how.read(true).custom_flags(flags).open(&path)
    };
    let Ok(direct) = open(libc::O_DIRECT) else {
        println!("skipped: an inherited descriptor: needs files that can be opened with O_DIRECT");
        return;
    };
    let said = with_input(direct);
    let what = format!(
        "file descriptor 0, {}, was opened with O_DIRECT",
        path.display()
    );
    assert!(said.contains(&what), "{said}");
    assert!(said.contains("open it without O_DIRECT"), "{said}");
    assert!(!with_input(open(0).expect("opened")).contains("O_DIRECT"));

    // To pipes it means packets.
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_DIRECT | libc::O_CLOEXEC) };
    assert_eq!(made, 0);
    // SAFETY: the kernel just gave them to this call alone.
    let [reader, _writer] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    assert!(!with_input(reader).contains("O_DIRECT"));
}

#[test]
fn a_volume_that_holds_data_is_not_given_to_a_program() {
    if is_skipped("a named volume", &[]) {
        return;
    }
    let folder = cluster("16M");
    folder.create_volume("v0", "8M", "rs:8+2");
    let serve = || {
        let mut server = Server::start(&folder, &["--volume", "v0"]);
        assert!(server.ready().starts_with("ready v0"));
        let client = Client::connect(&folder.path().join("nbd"), "v0");
        (server, client)
    };
    let run = || {
        let line = format!("run --dir {} --volume v0 --local 16M -- true", folder.str());
        support::run(&words(&line))
    };
    let (mut server, mut client) = serve();
    assert_eq!(client.write(4096, &[7; 4096]), Ok(()));
    drop(client);
    assert_eq!(server.end(), Some(0));

    let refused = run().expect(1);
    assert!(refused.stderr.contains("v0 holds data"), "{refused:#?}");
    let hint = "cenote volume reset v0";
    assert!(refused.stderr.contains(hint), "{refused:#?}");
    let (mut server, mut client) = serve();
    assert_eq!(client.read(4096, 4096), Ok(vec![7; 4096]));
    drop(client);
    assert_eq!(server.end(), Some(0));

    folder.run(&["volume", "reset", "v0"]).expect(0);
    // One that was given back holds nothing.
    for _ in 0..2 {
        run().expect(0);
    }
}

#[test]
fn a_folder_that_the_library_cannot_be_loaded_from_is_refused() {
    if is_skipped("a folder with a space", &[]) {
        return;
    }
    // There is no cluster: this is found out before.
    let folder = Folder::new();
    for name in ["a b", "a:b"] {
        let temporary = folder.path().join(name);
        std::fs::create_dir(&temporary).expect("made");
        let line = format!("run --dir {} --local 8M --size 64M -- true", folder.str());
        let mut command = cenote();
        command.args(words(&line)).env("TMPDIR", &temporary);
        let output = command.output().expect("the binary runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("set TMPDIR to a folder"), "{said}");
        let left = std::fs::read_dir(&temporary).expect("a folder");
        assert_eq!(left.count(), 0);
    }
}

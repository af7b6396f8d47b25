//! `mappings.c`: mappings that take the place of others, and calls around libc's usual ones.

use super::*;

fn are_right(pattern: &str) -> Option<Served> {
    runs_well(2, |folder| program(folder, pattern))
}

fn program(folder: &Path, pattern: &str) -> Command {
    let mut command = Command::new(compile_one(folder, "mappings"));
    command.arg(pattern);
    command
}

#[test]
fn buffers_change_places() {
    is_bounded(are_right("swap"));
}

#[test]
fn what_was_unmapped_is_mapped_again() {
    is_bounded(are_right("again"));
}

#[test]
fn a_file_in_place_of_memory_moves_as_files_do() {
    is_bounded(are_right("foreign"));
}

#[test]
fn shared_memory_takes_no_memorys_place() {
    are_right("segment");
}

#[test]
fn a_program_advises_its_own_memory_as_if_it_were_anothers() {
    are_right("advised");
}

#[test]
fn that_files_took_all_addresses_is_said_once() {
    let Some(cluster) = cluster() else {
        return;
    };
    let (output, served) = serve(&cluster, 2, |folder| program(folder, "used up"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let why = "files or shared memory were mapped over what it had";
    let line = format!("cenote run: memory of a program stays here: {why}\n");
    assert_eq!(said, line, "{served:?}");
}

#[test]
fn a_program_that_may_have_no_thread_has_ordinary_memory() {
    let Some(cluster) = cluster() else {
        return;
    };
    let (output, served) = serve(&cluster, 2, |folder| program(folder, "no thread"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let why = "cenote run: a thread for memory of the program cannot start: error 11\n";
    let stays = "cenote run: memory of a program stays here: it cannot be served\n";
    assert_eq!(said, format!("{why}{stays}"));
    assert_eq!(served.spaces, 0);
}

#[test]
fn a_library_that_wants_its_own_names_first_has_the_programs_malloc() {
    runs_well(2, |folder| {
        let source = folder.join("deep.c");
        let text = "#include <stdlib.h>
            char *take(size_t len) { return malloc(len); }
            void give_up(char *at) { free(at); }";
        std::fs::write(&source, text).expect("written");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]);
        command.args([&folder.join("deep.so"), &source]);
        assert!(command.status().expect("cc runs").success());
        program(folder, "deep")
    });
}

//! Programs whose memory is served: real processes, real faults, real forks, real hosts.
//!
//! `served/hostile.c` is the program, and `served/processes.c` one of threads, forks and
//! credentials: each of their patterns checks every byte that it relies on.

#[path = "served/mappings.rs"]
mod mappings;
#[path = "served/packets.rs"]
mod packets;

use std::ffi::OsStr;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use cenote_pager::{Handlers, Keeper, RegionError, Served};
use cenote_test_kit::cluster::{Cluster, Transport};

const MIB: u64 = 1 << 20;
const MAGIC: u64 = cenote_preload::wire::MAGIC;

/// What this machine lacks for it.
fn lacks() -> Option<String> {
    if cenote_preload::LIBRARY.is_empty() {
        return Some("x86-64 with glibc".to_owned());
    }
    if let Err(error) = cenote_pager::works() {
        return Some(error.to_string());
    }
    let compiles = Command::new("cc").arg("--version").output();
    compiles.is_err().then(|| "a C compiler".to_owned())
}

/// Hosts, where programs can be served here.
fn cluster() -> Option<Cluster> {
    if let Some(lacks) = lacks() {
        println!("skipped: memory of programs: needs {lacks}");
        return None;
    }
    Some(Cluster::start(3, Transport::Shm, 160 * MIB, MIB))
}

fn compile(folder: &Path) -> PathBuf {
    compile_one(folder, "hostile")
}

fn compile_one(folder: &Path, name: &str) -> PathBuf {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/served");
    let source = Path::new(sources).join(name).with_extension("c");
    let program = folder.join(name);
    // With names that a library of its own finds, and such libraries beside it.
    let mut command = Command::new("cc");
    command.args(["-O1", "-pthread", "-rdynamic", "-Wl,-rpath,$ORIGIN", "-o"]);
    command.args([&program, &source]).arg("-ldl");
    assert!(command.status().expect("cc runs").success());
    program
}

/// Runs a program with 8 MiB resident of 160.
fn serve(
    cluster: &Cluster,
    handlers: usize,
    command: impl FnOnce(&Path) -> Command,
) -> (Output, Served) {
    let folder = tempfile::tempdir().expect("a folder");
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let (library, socket) = (
        folder.path().join("preload.so"),
        folder.path().join("socket"),
    );
    std::fs::write(&library, cenote_preload::LIBRARY).expect("written");
    let handlers = Handlers::new(handlers).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &socket, 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    let settings = keeper.settings(160 * MIB, 32 * MIB);
    let output = command(folder.path())
        .env("LD_PRELOAD", &library)
        .env("CENOTE_RUN", settings)
        .output()
        .expect("the program runs");
    (output, keeper.finish())
}

/// Served by one handler, and by two. What happened with two.
fn is_right(pattern: &str) -> Option<Served> {
    is_right_with(pattern, 1);
    is_right_with(pattern, 2)
}

fn is_right_with(pattern: &str, handlers: usize) -> Option<Served> {
    runs_well(handlers, |folder| {
        let mut command = Command::new(compile(folder));
        command.arg(pattern);
        command
    })
}

/// A pattern of the other program, served by two handlers.
fn processes_are_right(pattern: &str) -> Option<Served> {
    runs_well(2, |folder| {
        let mut command = Command::new(compile_one(folder, "processes"));
        command.arg(pattern);
        command
    })
}

fn runs_well(handlers: usize, command: impl FnOnce(&Path) -> Command) -> Option<Served> {
    let cluster = cluster()?;
    let (output, served) = serve(&cluster, handlers, command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{}: {said}: {served:?}",
        output.status
    );
    assert_eq!(said, "", "{served:?}");
    assert!(served.spaces > 0, "{served:?}");
    assert_eq!(served.counters.lost, 0);
    Some(served)
}

/// Pages went and came back, and no more were there than may be.
fn is_bounded(served: Option<Served>) {
    let Some(served) = served else { return };
    assert!(served.counters.drops > 1_000, "{served:?}");
    assert!(served.counters.reads > 0, "{served:?}");
    assert!(served.resident_max_bytes <= 8 * MIB, "{served:?}");
}

#[test]
fn what_is_written_is_read() {
    is_bounded(is_right("walk"));
}

#[test]
fn mappings_grow_shrink_and_move() {
    is_bounded(is_right("remap"));
}

#[test]
fn parts_of_mappings_go() {
    is_bounded(is_right("unmap"));
}

#[test]
fn what_is_given_up_is_zeros() {
    is_bounded(is_right("advise"));
}

#[test]
fn protection_is_the_programs() {
    is_bounded(is_right("protect"));
}

#[test]
fn other_mappings_take_the_place_of_parts() {
    is_bounded(is_right("fixed"));
}

#[test]
fn children_see_what_their_parents_had() {
    let served = is_right("fork");
    assert!(served.is_none_or(|served| served.spaces == 9), "{served:?}");
}

#[test]
fn children_that_libc_did_not_make_do_too() {
    let served = is_right("clone");
    assert!(served.is_none_or(|served| served.spaces == 5), "{served:?}");
}

#[test]
fn threads_fork_and_children_begin_again() {
    is_right("exec");
}

#[test]
fn threads_that_touch_everything_see_their_own_bytes() {
    is_bounded(is_right("crowd"));
}

#[test]
fn malloc_gives_many_blocks_of_all_sizes() {
    is_bounded(is_right("many"));
}

#[test]
fn the_heap_keeps_its_end() {
    is_right("trim");
}

#[test]
fn what_does_not_fit_is_ordinary_memory() {
    is_bounded(is_right("huge"));
}

#[test]
fn a_program_that_closes_everything_and_passes_libc_by_loses_nothing() {
    is_bounded(is_right("rude"));
}

#[test]
fn a_mapping_that_is_refused_takes_nothings_place() {
    processes_are_right("refused");
}

#[test]
fn what_is_done_to_memory_does_not_stay_for_its_next_owner() {
    processes_are_right("owners");
}

#[test]
fn mutexes_that_the_kernel_takes_are_refused() {
    processes_are_right("mutexes");
}

#[test]
fn a_thread_maps_memory_under_a_lock_that_forks_take() {
    processes_are_right("handlers");
}

#[test]
fn a_library_allocates_while_it_is_loaded_and_the_first_memory_is_mapped() {
    runs_well(2, |folder| {
        let program = compile_one(folder, "processes");
        let source = folder.join("library.c");
        let text = "void being_loaded(void);
            __attribute__((constructor)) static void load(void) { being_loaded(); }";
        std::fs::write(&source, text).expect("written");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-o"]);
        command.args([&program.with_extension("so"), &source]);
        assert!(command.status().expect("cc runs").success());
        let mut command = Command::new(program);
        command.arg("loader");
        command
    });
}

#[test]
fn memory_that_is_locked_when_it_is_touched_is_bounded_all_the_same() {
    is_bounded(processes_are_right("locked"));
}

#[test]
fn a_program_that_drops_root_has_no_thread_that_is_root() {
    processes_are_right("no root");
}

#[test]
fn a_child_is_served_whatever_became_of_the_environment() {
    let served = processes_are_right("environment");
    assert!(served.is_none_or(|served| served.spaces == 2), "{served:?}");
}

#[test]
fn a_child_that_has_no_room_for_its_agent_is_ended() {
    processes_are_right("no agent");
}

#[test]
fn a_child_without_room_for_its_agent_is_ended_as_the_first_process_of_a_container_too() {
    let may = Command::new("unshare").args(["--pid", "true"]).output();
    if !may.is_ok_and(|may| may.status.success()) {
        println!("skipped: the first process of a container: needs the right to make one");
        return;
    }
    processes_are_right("no agent first");
}

#[test]
fn a_program_forks_while_a_thread_of_it_is_being_let_in() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("preload.so"), cenote_preload::LIBRARY).expect("written");
    let handlers = Handlers::new(2).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &at("socket"), 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    // The second handler is somebody else at first, who keeps the program waiting.
    symlink(at("socket.0"), at("slow.0")).expect("a link");
    let listener = packets::listen(&at("slow.1"));
    let settings = format!("{}:{}:2:{}", 160 * MIB, 32 * MIB, at("slow").display());
    let program = Command::new(compile_one(folder.path(), "processes"))
        .arg("early fork")
        .env("LD_PRELOAD", at("preload.so"))
        .env("CENOTE_RUN", settings)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let stranger = packets::accept(&listener);
    // The fork waits, or is over and the child is waited for.
    let calls = [libc::SYS_futex, libc::SYS_clock_nanosleep];
    let call = format!("/proc/{}/syscall", program.id());
    until("the program does not fork", || {
        let call = std::fs::read_to_string(&call).expect("it runs");
        let number = call.split(' ').next()?.parse().ok()?;
        calls.contains(&number).then_some(())
    });
    std::fs::remove_file(at("slow.1")).expect("removed");
    symlink(at("socket.1"), at("slow.1")).expect("a link");
    packets::send(&stranger, [MAGIC, libc::ETIMEDOUT as u64, 0]);
    drop(stranger);
    let output = program.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "");
    assert_eq!(keeper.finish().spaces, 2);
}

#[test]
fn a_program_that_a_later_handler_refuses_is_told_why_and_leaves_what_others_had() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let start = |name, handlers| {
        let handlers = Handlers::new(handlers).expect("a number of handlers");
        Keeper::start(&volume, &at(name), 8 * MIB, handlers).unwrap_or_else(|e| panic!("{e}"))
    };
    // Who has one handler refuses all that is for one of two.
    let (keeper, stranger) = (start("two", 2), start("one", 1));
    for (link, to) in [
        ("later.0", "two.0"),
        ("later.1", "one.0"),
        ("first.0", "one.0"),
        ("first.1", "two.1"),
    ] {
        symlink(at(to), at(link)).expect("a link");
    }
    let library = at("preload.so");
    std::fs::write(&library, cenote_preload::LIBRARY).expect("written");
    let program = compile(folder.path());
    let run = |settings: &OsStr| {
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", &library).arg("walk");
        let output = command.env("CENOTE_RUN", settings).output();
        let output = output.expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status, said)
    };
    let mixed = |name: &str| {
        let socket = at(name);
        let bytes = [160 * MIB, 32 * MIB];
        format!("{}:{}:2:{}", bytes[0], bytes[1], socket.display())
    };
    let refused = "cenote run: memory of the program is refused: error 71\n";

    let (status, said) = run(mixed("later").as_ref());
    assert_eq!(status.signal(), Some(9), "{status}: {said}");
    let ended = "cenote run: the program is ended: a part of its memory is served already\n";
    assert_eq!(said, format!("{refused}{ended}"));

    // Where the first one refuses nothing is served yet, and the program goes on.
    let (status, said) = run(mixed("first").as_ref());
    assert!(status.success(), "{status}: {said}");
    let stays = "cenote run: memory of a program stays here: it cannot be served\n";
    assert_eq!(said, format!("{refused}{stays}"));

    let (status, said) = run(&keeper.settings(160 * MIB, 32 * MIB));
    assert!(status.success(), "{status}: {said}");
    assert_eq!(said, "");
    assert_eq!(stranger.finish().spaces, 0);
    // It ends once nobody's memory is left.
    let served = keeper.finish();
    assert_eq!(served.spaces, 2, "{served:?}");
    is_bounded(Some(served));
}

#[test]
fn silent_connections_go_in_time_and_keep_no_program_out() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let handlers = Handlers::new(1).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &at("socket"), 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    // More than the handler and the kernel keep. The kernel has a queue for who comes faster.
    let silent: Vec<_> = (0..300)
        .map(|_| {
            let what = "the handler lets nobody in";
            until(what, || packets::connect(&at("socket.0")).ok())
        })
        .collect();
    std::fs::write(at("preload.so"), cenote_preload::LIBRARY).expect("written");
    let output = Command::new(compile(folder.path()))
        .arg("walk")
        .env("LD_PRELOAD", at("preload.so"))
        .env("CENOTE_RUN", keeper.settings(160 * MIB, 32 * MIB))
        .output()
        .expect("the program runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "");
    // Those that are left hear why they go.
    for stranger in silent {
        let answer = packets::receive(&stranger);
        assert_eq!(answer, Some([MAGIC, libc::ETIMEDOUT as u64, 0]));
    }
    assert_eq!(keeper.finish().spaces, 1);
}

#[test]
fn a_program_whose_connection_was_closed_before_it_spoke_connects_again() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let library = at("preload.so");
    std::fs::write(&library, cenote_preload::LIBRARY).expect("written");
    let program = compile(folder.path());
    let handlers = Handlers::new(2).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &at("socket"), 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    // The second handler is somebody else at first, who takes the connection for late.
    symlink(at("socket.0"), at("late.0")).expect("a link");
    let listener = packets::listen(&at("late.1"));
    let (link, to) = (at("late.1"), at("socket.1"));
    let impatient = std::thread::spawn(move || {
        let stranger = packets::accept(&listener);
        std::fs::remove_file(&link).expect("removed");
        symlink(to, link).expect("a link");
        packets::send(&stranger, [MAGIC, libc::ETIMEDOUT as u64, 0]);
    });
    let settings = format!("{}:{}:2:{}", 160 * MIB, 32 * MIB, at("late").display());
    let output = Command::new(program)
        .arg("walk")
        .env("LD_PRELOAD", &library)
        .env("CENOTE_RUN", settings)
        .output()
        .expect("the program runs");
    impatient.join().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "");
    let served = keeper.finish();
    assert_eq!(served.spaces, 1, "{served:?}");
    is_bounded(Some(served));
}

#[test]
fn a_program_that_comes_while_the_command_ends_is_let_in_by_all_or_by_none() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 160 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("preload.so"), cenote_preload::LIBRARY).expect("written");
    let handlers = Handlers::new(2).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &at("socket"), 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    // The first handler has let it in, and the second one is slow.
    symlink(at("socket.0"), at("slow.0")).expect("a link");
    let listener = packets::listen(&at("slow.1"));
    let settings = format!("{}:{}:2:{}", 160 * MIB, 32 * MIB, at("slow").display());
    let program = Command::new(compile(folder.path()))
        .arg("walk")
        .env("LD_PRELOAD", at("preload.so"))
        .env("CENOTE_RUN", settings)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let slow = packets::accept(&listener);
    assert!(packets::receive(&slow).is_some(), "it has no hello");
    let (tell, told) = std::sync::mpsc::channel();
    let ending = std::thread::spawn(move || {
        tell.send(()).expect("somebody hears");
        keeper.finish()
    });
    told.recv().expect("the keeper ends");
    // The second handler has turns in which it could end: it has nobody's memory.
    for _ in 0..200 {
        let stranger = packets::connect(&at("socket.1")).expect("the second handler is there");
        packets::send_with(&stranger, &[MAGIC, 0, 0, 0, 0, 0, 0, 0, 0], &[]);
        let refused = Some([MAGIC, libc::EPROTO as u64, 0]);
        assert_eq!(packets::receive(&stranger), refused);
    }
    std::fs::remove_file(at("slow.1")).expect("removed");
    symlink(at("socket.1"), at("slow.1")).expect("a link");
    packets::send(&slow, [MAGIC, libc::ETIMEDOUT as u64, 0]);
    drop(slow);
    let output = program.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    assert_eq!(said, "");
    assert_eq!(ending.join().expect("it ends").spaces, 1);
}

#[test]
fn descriptors_that_are_something_else_are_refused() {
    let Some(cluster) = cluster() else {
        return;
    };
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let handlers = Handlers::new(1).expect("a number of handlers");
    let keeper = Keeper::start(&volume, &socket, 8 * MIB, handlers);
    let keeper = keeper.unwrap_or_else(|e| panic!("{e}"));
    let stranger = packets::connect(&folder.path().join("socket.0")).expect("connected");
    let null = std::fs::File::open("/dev/null").expect("it is there");
    let kind = cenote_preload::wire::HELLO_NEW;
    let base = 1 << 32;
    let hello = [MAGIC, kind, base - 4096, base, 100, 0, 0, 0, 1];
    packets::send_with(&stranger, &hello, &[&null, &null]);
    let refused = Some([MAGIC, libc::EPROTO as u64, 0]);
    assert_eq!(packets::receive(&stranger), refused);
    assert_eq!(keeper.finish().spaces, 0);
}

/// Waits for something that may take a while on a slow machine.
fn until<T>(what: &str, mut get: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(got) = get() {
            return got;
        }
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn too_little_is_refused() {
    let cluster = Cluster::start(3, Transport::Shm, 32 * MIB, MIB);
    let volume = cluster.volume("rs:2+1", 8 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let refused = Keeper::start(&volume, &socket, MIB, Handlers::default());
    assert!(matches!(refused.err(), Some(RegionError::Resident(MIB))));
}

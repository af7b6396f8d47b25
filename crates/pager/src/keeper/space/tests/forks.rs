//! Children, and what happens to pages while programs fork.

use super::*;

/// Forks this process, and has the child ask at its doorbell who it is: its exit code.
pub(super) fn fork_and_ask(doorbell: usize) -> thread::JoinHandle<i32> {
    fork_and_access(doorbell, None)
}

/// Forks this process, and has the child read a word, which it may write before: its exit code.
pub(super) fn fork_and_access(at: usize, write: Option<u64>) -> thread::JoinHandle<i32> {
    thread::spawn(move || {
        let flags = libc::c_long::from(libc::SIGCHLD);
        // SAFETY: the child accesses a word and ends. Not by libc's own call, which holds the locks of
        // `malloc` meanwhile: whoever is to read of the fork allocates.
        let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) } as libc::pid_t;
        assert!(child >= 0);
        if child == 0 {
            let read = access(at, write);
            // SAFETY: it takes a number alone.
            unsafe { libc::_exit(read as i32) };
        }
        let mut status = 0;
        // SAFETY: the status is valid for the call.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        libc::WEXITSTATUS(status)
    })
}

#[test]
fn a_child_beyond_the_bound_is_told_its_number_and_not_served() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    program.touch(1, Some(5));
    for _ in 1..SPACES_MAX {
        program.store.ids.take();
    }
    let doorbell = program.space.layout.doorbell() as usize;
    let mut children = Vec::new();
    for is_served in [true, false] {
        let forked = fork_and_ask(doorbell);
        while !forked.is_finished() {
            program.turn();
            children.append(&mut program.space.children);
            for child in &mut children {
                child.turn(&mut program.store);
            }
        }
        let child = children.pop().expect("a child was forked");
        let code = forked.join().expect("the thread ends");
        assert_eq!(code, child.id as i32);
        assert_eq!(child.is_given_up(), !is_served);
    }
    assert!(!program.space.is_given_up());
    assert_eq!(program.touch(1, None), 5);
}

#[test]
fn children_of_a_program_that_is_given_up_are_as_well() {
    let Some(mut program) = Program::begin() else {
        return;
    };
    // The kernel refuses the first of several changes, and a fork is not settled.
    let forked = program.cut_off();
    let forked = Kernel::of_child(forked.into());
    program.space.kernel.forked.push(forked);
    program.fault(&[2, 3]);
    assert!(program.space.is_given_up());
    assert!(program.space.turn(&mut program.store));
    assert_eq!(program.space.children.len(), 1);
    assert!(program.space.children[0].is_given_up());
    assert!(!program.space.is_told());
}

#[test]
fn a_child_has_nothing_forgotten_that_its_parent_asked_for() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    program.touch(1, Some(5));
    // The parent has asked for that page, and was answered. It has the page again.
    let request = [wire::REQUEST_FORGET, 1, 1, 9];
    let mailbox = program.space.layout.mailbox() as *mut [u64; wire::MAILBOX_WORDS];
    // SAFETY: the page is of the test's mapping, and nobody else has it.
    unsafe { mailbox.write_volatile(request) };
    program.space.answered = 9;
    let doorbell = program.space.layout.doorbell();
    let forked = fork_and_ask(program.word(1));
    let mut children = Vec::new();
    while !forked.is_finished() {
        program.turn();
        for mut child in std::mem::take(&mut program.space.children) {
            let memory = File::open("/proc/self/mem").expect("its parent's, with the same mailbox");
            child.introduce(memory);
            // Its doorbell is heard twice.
            let address = doorbell;
            let cause = Cause::Missing { to_write: false };
            child.fault(Fault { address, cause }, &mut program.store);
            assert_eq!(child.request, None);
            children.push(child);
        }
        for child in &mut children {
            child.turn(&mut program.store);
        }
    }
    assert_eq!(forked.join().expect("the thread ends"), 5);
    assert_eq!(children.len(), 1);
}

/// Forks, and holds a change of page 1 up until the child is there: its exit code will be what it
/// reads there.
fn fork_beside_a_change(program: &mut Program) -> thread::JoinHandle<i32> {
    for page in 1..=12 {
        program.touch(page, Some(u64::from(page) + 40));
    }
    program.space.set_room(8, &mut program.store);
    while program.space.pages.is_resident(1) || !program.space.leaving.is_empty() {
        program.go_on();
    }
    let forks = Arc::clone(&program.space.kernel.forks);
    forks.store(true, Ordering::SeqCst);
    program.fault(&[1]);
    program.until(|space| space.put_off.is_some());
    let forked = fork_and_ask(program.word(1));
    program.until(|space| !space.kernel.forked.is_empty());
    forks.store(false, Ordering::SeqCst);
    forked
}

#[test]
fn a_child_that_forks_before_its_books_are_made_has_its_parents_pages() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    let forked = fork_beside_a_change(&mut program);
    // The kernel refuses the child's changes, and not its parent's.
    let forks = Arc::clone(&program.space.kernel.forked[0].forks);
    forks.store(true, Ordering::SeqCst);
    for _ in 0..10 {
        program.go_on();
    }
    forks.store(false, Ordering::SeqCst);
    let mut children = Vec::new();
    while !forked.is_finished() {
        program.go_on();
        children.append(&mut program.space.children);
        for child in &mut children {
            child.turn(&mut program.store);
        }
    }
    assert_eq!(forked.join().expect("the thread ends"), 41);
    assert_eq!(program.touch(1, None), 41);
    assert!(!program.space.is_given_up() && !children[0].is_given_up());
}

#[test]
fn a_child_that_missed_a_change_is_ended_and_its_parent_is_not() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    let forked = fork_beside_a_change(&mut program);
    // The kernel refuses whatever is asked for the child. Its own descriptor stays open: it waits.
    let null = File::open("/dev/null").expect("it is there");
    let kernel = std::mem::replace(
        &mut program.space.kernel.forked[0],
        Kernel::of_child(null.into()),
    );
    program.until(|space| !space.children.is_empty());
    assert!(program.space.children[0].is_given_up());
    assert!(!program.space.is_given_up());
    assert_eq!(program.touch(1, None), 41);
    // Without its descriptor it goes on, with zeros.
    drop(kernel);
    assert_eq!(forked.join().expect("the thread ends"), 0);
}

/// Gives this thread a table of descriptors of its own, which has those of `kept` and is full.
fn use_up_descriptors(mut kept: [RawFd; 2]) {
    kept.sort_unstable();
    let [low, high] = kept.map(|fd| fd as libc::c_uint);
    let flags = libc::CLOSE_RANGE_UNSHARE;
    for (first, last) in [(0, low - 1), (low + 1, high - 1), (high + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: it takes numbers alone, and closes what is in this thread's own table.
            let closed = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
            assert_eq!(closed, 0);
        }
    }
    // SAFETY: it takes numbers alone; what it makes ends with the thread.
    while unsafe { libc::dup(kept[0]) } >= 0 {}
}

#[test]
fn a_fork_waits_while_there_are_no_descriptors() {
    let Some(mut program) = Program::of_pages(PAGES, Turn::alone()) else {
        return;
    };
    program.touch(1, Some(5));
    let forked = fork_and_ask(program.word(1));
    let (space, store) = (&mut program.space, &mut program.store);
    thread::scope(|scope| {
        scope.spawn(|| {
            let agent = space.agent.as_ref().expect("an agent");
            use_up_descriptors([space.uffd(), agent.as_raw_fd()]);
            let deadline = Instant::now() + Duration::from_secs(60);
            while !space.is_short() {
                assert!(Instant::now() < deadline, "the fork is not seen");
                space.turn(store);
                assert!(!space.is_given_up(), "the parent is ended");
            }
            assert_eq!(space.deadline(store.now()), Some(AGAIN_AFTER));
        });
    });
    assert!(program.space.children.is_empty() && program.space.kernel.forked.is_empty());
    let mut children = Vec::new();
    while !forked.is_finished() {
        program.turn();
        children.append(&mut program.space.children);
        for child in &mut children {
            child.turn(&mut program.store);
        }
    }
    assert_eq!(forked.join().expect("the thread ends"), 5);
    assert!(!program.space.is_short());
    assert_eq!(children.len(), 1);
}

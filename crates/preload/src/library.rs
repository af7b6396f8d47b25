//! The shared object that is loaded before a program's own libraries: big private anonymous memory,
//! and the heap, become ranges whose faults another process answers.
//!
//! Everything begins with the first big allocation: small programs notice nothing, but that
//! `mutexes` refuses one kind of them and `loader` changes how libraries are loaded. Only what
//! libc's names are called for is taken; libc's own inner calls, and those of other address spaces,
//! go to the kernel as ever. `maps`, `remaps` and `advice` have the calls on ranges, `heap` those of
//! `malloc`, `mutexes` one on mutexes, `next` finds libc's own functions; `arena` the ranges,
//! `settings` where the serving process is, `agent` the thread that drops pages, `forks` what libc
//! calls around `fork`.
#![no_std]

#[path = "bits.rs"]
mod bits;
#[path = "stripes.rs"]
mod stripes;
#[path = "wire.rs"]
mod wire;

#[path = "library/advice.rs"]
mod advice;
#[path = "library/agent.rs"]
mod agent;
#[path = "library/arena.rs"]
mod arena;
#[path = "library/forks.rs"]
mod forks;
#[path = "library/heap.rs"]
mod heap;
#[path = "library/loader.rs"]
mod loader;
#[path = "library/lock.rs"]
mod lock;
#[path = "library/maps.rs"]
mod maps;
#[path = "library/mutexes.rs"]
mod mutexes;
#[path = "library/next.rs"]
mod next;
#[path = "library/remaps.rs"]
mod remaps;
#[path = "library/settings.rs"]
mod settings;
#[path = "library/sys.rs"]
mod sys;

#[link(name = "c")]
unsafe extern "C" {}

/// Run by the loader, before the program has threads. An earlier allocation does the same.
extern "C" fn at_load() {
    forks::register();
    heap::resolve();
}

// SAFETY: the section is a list of functions of this type.
#[unsafe(link_section = ".init_array")]
#[used]
static AT_LOAD: extern "C" fn() = at_load;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::write(2, b"cenote run: the library of this program panicked\n");
    sys::die()
}

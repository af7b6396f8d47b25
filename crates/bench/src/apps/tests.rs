//! Real programs, small, over a swap file; and what is read of the kernel.

use super::*;
use crate::swap_rig::turn;

/// Small, but not so small that a cgroup at its limit is killed and not waited for.
fn small(name: &str) -> Options {
    Options {
        dir: fresh(Path::new(ON_DISK), name),
        // A sort as small as this is killed by its limit now and then.
        apps: vec![App::Etc],
        slots: vec![Slot::File],
        limits: vec![50],
        rounds: 1,
        program_mib: 96,
        seconds: 0.3,
        seed: 1,
    }
}

#[test]
fn programs_work_in_half_of_their_memory_over_a_swap_file() {
    let _turn = turn();
    let options = small("file");
    if let Err(error) = check(&options) {
        println!("skipped: {error}");
        return;
    }
    if let Err(error) = MemoryCgroup::create("cenote-bench-probe", 1 << 24) {
        println!("skipped: memory cgroups: {error}");
        return;
    }
    let interrupt = Interrupt::catch().unwrap();
    let folder = Folder::make(options.dir.clone()).unwrap();
    let slots = Slots::prepare(&options.slots, &folder.0, 192 << 20, 1).unwrap();
    for app in &options.apps {
        let mut bench = Bench {
            app: *app,
            options: &options,
            slots: &slots,
            interrupt: &interrupt,
            figures: Figures::default(),
        };
        bench.run().unwrap();
        let half = FigureSource {
            slot: Some(Slot::File),
            limit: 50,
        };
        for place in [MEMORY, half] {
            let figure = bench.figures.of(place, 0, "throughput");
            assert!(figure.is_some_and(|value| value > 0.0), "{app:?} {place:?}");
        }
        let swapped = bench.figures.of(half, 0, "pages_swapped");
        assert!(
            swapped.is_some_and(|rate| rate > 0.0),
            "{app:?} {swapped:?}"
        );
    }
    drop(slots);
    area::refuse_others().expect("swap is off again");
}

#[test]
fn swapped_pages_are_those_in_and_out() {
    let stat = "pgpgin 9\npswpin 12\npswpout 30\npswpin_zero 5\n";
    assert_eq!(swapped_in(stat), Some(42));
    assert_eq!(swapped_in("pswpin 12\n"), None);
}

#[test]
fn limits_that_do_not_fall_are_refused() {
    let options = Options {
        limits: vec![50, 75],
        ..small("limits")
    };
    if !is_root() {
        println!("skipped: not root");
        return;
    }
    let error = run(&options).unwrap_err().to_string();
    assert!(error.contains("the largest first"), "{error}");
}

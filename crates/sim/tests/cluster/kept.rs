//! A simulation in which every promise is kept, or the test fails with what it takes to repeat it.

use cenote_sim::cluster::{self, Options, Report};

/// Runs a simulation.
pub fn simulate(options: &Options) -> Report {
    cluster::run(options, |_| {}).expect("the options fit together")
}

/// Runs one that breaks no promise.
pub fn assert_kept(options: &Options) -> Report {
    let report = simulate(options);
    if let Some(violation) = report.violations.first() {
        let log = violation.log.join("\n");
        panic!(
            "{log}\nseed {}: {}\nto repeat it: {}, or with {options:?}",
            options.seed,
            violation.what,
            options.command()
        );
    }
    report
}

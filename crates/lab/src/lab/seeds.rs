//! Simulations of one seed after the other, up to the first that breaks a promise.

use std::io::Write as _;

use anyhow::{Result, bail, ensure};
use cenote_cli::failure::{DONE, FAILED};
use cenote_sim::report::Report;
use serde::Serialize;

/// Which seeds, and how their reports are told.
pub struct Seeds {
    pub first: u64,
    pub count: u64,
    /// A line of JSON for each report, in place of a sentence for all.
    pub json: bool,
}

impl Seeds {
    /// Simulates them; how the command ends. `simulate` also gives the command that repeats a
    /// simulation, `summary` what was done in all.
    pub fn run<T: Serialize>(
        &self,
        simulate: impl Fn(u64) -> Result<(Report<T>, String)>,
        summary: impl FnOnce(&[T]) -> String,
    ) -> Result<u8> {
        let mut tallies = Vec::new();
        for seed in (self.first..).take(usize::try_from(self.count)?) {
            let (report, command) = simulate(seed)?;
            if self.json {
                let mut out = std::io::stdout().lock();
                serde_json::to_writer(&mut out, &report)?;
                writeln!(out)?;
            }
            if let Some(violation) = &report.violation {
                eprintln!("Last events:");
                report.log.iter().for_each(|line| eprintln!("  {line}"));
                eprintln!("Seed {seed}: {violation}");
                eprintln!("Reproduce with: {command}");
                return Ok(FAILED);
            }
            tallies.push(report.tally);
        }
        if !self.json {
            println!(
                "{} simulations from seed {}: {}: all guarantees hold",
                self.count,
                self.first,
                summary(&tallies)
            );
        }
        Ok(DONE)
    }
}

/// The mistake of this name, if this program can make it.
pub fn planted<F: Copy>(name: &str, known: &[(&str, F)]) -> Result<F> {
    let Some((_, fault)) = known.iter().find(|(one, _)| *one == name) else {
        let known: Vec<&str> = known.iter().map(|(one, _)| *one).collect();
        bail!(
            "there is no injected bug {name}; there are {}",
            known.join(", ")
        );
    };
    ensure!(
        cfg!(feature = "injected-faults"),
        "this program was built without the feature injected-faults"
    );
    Ok(*fault)
}

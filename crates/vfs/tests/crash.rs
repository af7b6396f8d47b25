//! A crash before any step of the medium leaves a file system that opens, as it was after some
//! request that is no older than what was last synced; and mistakes that are injected are found.

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_vfs::Files;
use cenote_vfs::injected_faults::{MISTAKES, inject};
use cenote_vfs::label::Label;
use cenote_vfs::medium::model::{ModelMedium, Survival, mix};
use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use support::{Model, Op, Pair, caller, compare, ops};

const SIZE_BYTES: u64 = 6 << 20;

/// What a checker knows of the run that crashes.
#[derive(Default)]
struct History {
    /// The model after each request.
    states: Vec<Model>,
    /// Requests whose effects are durable.
    synced: usize,
    /// Whatever a crash is not to leave, with the step.
    wrong: Option<String>,
    crashes: u64,
}

impl History {
    /// Checks what a crash now leaves.
    fn check(&self, image: ModelMedium) -> Result<(), String> {
        let medium = Arc::new(image);
        let files = Files::open(medium.clone(), caller()).map_err(|error| error.to_string())?;
        let mut why = String::from("no request was made");
        for at in (self.synced..self.states.len()).rev() {
            let later = &self.states[at..];
            match compare(&files, &self.states[at], &mut |node, _, found| {
                may_hold(later, node, found)
            }) {
                Ok(()) => return self.goes_on(&medium, files, &self.states[at]),
                Err(differs) if at + 1 == self.states.len() => why = differs,
                Err(differs) => why = format!("{why}; or {differs}"),
            }
        }
        Err(why)
    }

    /// What came back can be used: nothing leaks, and a change of it survives.
    fn goes_on(
        &self,
        medium: &Arc<ModelMedium>,
        files: Files,
        model: &Model,
    ) -> Result<(), String> {
        let usage = files.usage();
        let blocks = support::blocks_of_names(&files).map_err(|error| error.to_string())?;
        if usage.total_blocks - usage.free_blocks != blocks {
            return Err(format!(
                "{} of {} blocks are free and files have {blocks}",
                usage.free_blocks, usage.total_blocks
            ));
        }
        let mut pair = Pair::new(files);
        pair.model = model.clone();
        pair.model.forget_held();
        let failed = |error: cenote_vfs::FsError| format!("after the crash: {error}");
        let made = support::new_file(&pair.files, b"after", &[7; 5000]).map_err(failed)?;
        pair.files.fsync(made).map_err(failed)?;
        let again = Arc::new(medium.crash(Survival::None));
        let files = Files::open(again, caller()).map_err(|error| error.to_string())?;
        let found = support::content(&files, made).map_err(failed)?;
        match found == [7; 5000] {
            true => Ok(()),
            false => Err("what was written after the crash is not there".to_owned()),
        }
    }
}

/// Bytes of a file are what they were when its metadata was committed, or were written since.
fn may_hold(later: &[Model], node: u32, found: &[u8]) -> Result<(), String> {
    let versions: Vec<&[u8]> = later
        .iter()
        .filter_map(|model| model.content(node))
        .collect();
    for (at, byte) in found.iter().enumerate() {
        let is_known = |version: &&[u8]| version.get(at) == Some(byte);
        if !versions.iter().any(is_known) {
            return Err(format!(
                "node {node}: byte {at} is {byte}, which it never was"
            ));
        }
    }
    Ok(())
}

/// Runs the requests and crashes before steps of the medium, one in `sparsity`; what a crash left
/// that it may not leave.
fn crash_everywhere(list: &[Op], seed: u64, sparsity: u64) -> Result<u64, String> {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    let mut pair = Pair::new(files);
    let history = Arc::new(Mutex::new(History::default()));
    history.lock().unwrap().states.push(pair.model.clone());
    let data = Label::of_size(SIZE_BYTES).data_offset();
    let watched = Arc::clone(&history);
    medium.watch(Box::new(move |step, crash| {
        let drawn = mix(seed ^ mix(step));
        if !drawn.is_multiple_of(sparsity) {
            return;
        }
        let mut history = watched.lock().unwrap();
        if history.wrong.is_some() {
            return;
        }
        let ways = [
            Survival::All,
            Survival::None,
            Survival::Below(data),
            Survival::From(data),
            Survival::Random(drawn),
        ];
        let way = ways[(drawn / sparsity % ways.len() as u64) as usize];
        history.crashes += 1;
        if let Err(why) = history.check(crash(way)) {
            history.wrong = Some(format!("{way:?} before step {step}: {why}"));
        }
    }));
    for op in list {
        // What the request will have done, if a crash comes while it runs.
        let after = pair.foresee(op);
        history.lock().unwrap().states.push(after);
        assert!(pair.run(op), "the medium does not fail");
        let mut history = history.lock().unwrap();
        *history.states.last_mut().unwrap() = pair.model.clone();
        if matches!(op, Op::Commit) || matches!(op, Op::Sync(_) if !pair.model.files().is_empty()) {
            history.synced = history.states.len() - 1;
        }
        if let Some(wrong) = &history.wrong {
            return Err(format!("{wrong}, in {op:?}"));
        }
    }
    Ok(history.lock().unwrap().crashes)
}

fn list_of(seed: u64, count: usize) -> Vec<Op> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let lists = ops(count).prop_filter("long", move |list| list.len() > count / 2);
    lists.new_tree(&mut runner).expect("a list").current()
}

fn no_crash_leaves_what_it_may_not(seeds: std::ops::Range<u64>, sparsity: u64) {
    for seed in seeds {
        let list = list_of(seed, 60);
        let crashes = crash_everywhere(&list, seed, sparsity);
        assert!(crashes.is_ok(), "seed {seed}: {crashes:?}");
    }
}

#[test]
fn a_crash_before_any_step_leaves_what_was_synced() {
    no_crash_leaves_what_it_may_not(0..20, 3);
}

#[test]
fn a_file_system_that_was_being_made_is_made_by_the_next_mount() {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let failed = Arc::new(Mutex::new(BTreeMap::new()));
    let noted = Arc::clone(&failed);
    medium.watch(Box::new(move |step, crash| {
        for way in [Survival::All, Survival::None, Survival::Random(step)] {
            if let Err(error) = Files::open(Arc::new(crash(way)), caller()) {
                noted.lock().unwrap().insert(step, (way, error));
            }
        }
    }));
    drop(Files::open(medium, caller()).expect("a file system"));
    assert!(failed.lock().unwrap().is_empty(), "{failed:?}");
}

#[test]
fn every_fault_that_is_injected_is_found() {
    let mut missed = Vec::new();
    for (name, mistake) in MISTAKES {
        inject(Some(mistake));
        let found = (100..160).find(|seed| {
            let list = list_of(*seed, 60);
            let run = || crash_everywhere(&list, *seed, 3);
            // Some are met by the comparison with the model, before any crash.
            !matches!(std::panic::catch_unwind(run), Ok(Ok(_)))
        });
        inject(None);
        match found {
            Some(seed) => {
                println!("{name}: seed {seed}");
                let sound = crash_everywhere(&list_of(seed, 60), seed, 3);
                assert!(sound.is_ok(), "seed {seed} without {name}: {sound:?}");
            }
            None => missed.push(name),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

mod long {
    use super::*;

    #[test]
    fn a_crash_before_any_step_leaves_what_was_synced() {
        no_crash_leaves_what_it_may_not(1000..1025, 1);
    }
}

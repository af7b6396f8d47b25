use super::*;
use crate::core::tests::restriping;
use crate::worker::Worker;
use std::sync::Arc;

/// A worker in the middle of operations that hold one page each.
fn worker_with(states: &[State]) -> (Arc<crate::core::Core>, Worker) {
    let core = Arc::new(restriping());
    let (id, epoch) = core.directory.register().unwrap();
    let (commands, _) = std::sync::mpsc::channel();
    let mut worker = Worker::new(Arc::clone(&core), id, epoch, 1, commands).unwrap();
    for (page, &state) in states.iter().enumerate() {
        let op = u16::try_from(page).unwrap();
        let page = page as u64;
        worker.free_ops.retain(|&free| free != op);
        assert!(core.claims.try_claim(page));
        let state = PageOp {
            state,
            page,
            claimed: true,
            ..PageOp::on_block(op)
        };
        worker.ops[usize::from(op)] = state;
    }
    (core, worker)
}

#[test]
fn a_dropped_worker_gives_every_page_back() {
    let states = [
        State::Merging,
        State::Writing,
        State::Holding,
        State::Settling,
    ];
    let (core, worker) = worker_with(&states);
    drop(worker);
    for (page, state) in states.iter().enumerate() {
        let page = page as u64;
        assert!(core.claims.try_claim(page), "{state:?}");
    }
}

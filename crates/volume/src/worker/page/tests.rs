use super::*;
use crate::core::tests::restriping;
use crate::worker::Worker;
use crate::{Op, PAGE_BYTES, Request};
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
        worker.ops.free.retain(|&free| free != op);
        assert!(core.pages.claims.try_claim(page));
        let state = PageOp {
            state,
            chunk: Chunk {
                page,
                ..Chunk::default()
            },
            claim: Claim {
                held: true,
                ..Claim::default()
            },
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
        assert!(core.pages.claims.try_claim(page), "{state:?}");
    }
}

#[test]
fn a_long_write_leaves_no_claim_of_a_page_that_waits() {
    let (core, mut worker) = worker_with(&[State::Writing]);
    let spare = worker.ops.free.split_off(2);
    // Page 0 is another's, pages 1 to 4 are in no slab yet, and there are operations for two of them.
    let request = Request {
        tag: 7,
        offset: 0,
        op: Op::Write(vec![1; 5 * PAGE_BYTES]),
    };
    assert!(worker.submit(request).is_ok());
    assert!(worker.ops.free.is_empty(), "pages 0 and 1 wait in theirs");
    assert!(!core.pages.claims.try_claim(0), "the other still has it");
    for page in 1..5 {
        assert!(core.pages.claims.try_claim(page), "{page}");
        core.pages.claims.release(page);
    }
    worker.ops.free.extend(spare);
}

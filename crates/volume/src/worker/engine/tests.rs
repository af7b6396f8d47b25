use std::sync::Arc;

use crate::core::tests::restriping;
use crate::worker::Worker;
use crate::{Op, PAGE_BYTES, Request};

fn worker() -> (Arc<crate::core::Core>, Worker) {
    let core = Arc::new(restriping());
    let (id, epoch) = core.directory.register().unwrap();
    let (commands, _) = std::sync::mpsc::channel();
    let worker = Worker::new(Arc::clone(&core), id, epoch, 1, commands).unwrap();
    (core, worker)
}

#[test]
fn a_long_write_leaves_no_claim_of_a_page_that_waits() {
    let (core, mut worker) = worker();
    assert!(core.pages.claims.try_claim(0));
    let spare = worker.engine.ops.free.split_off(2);
    // Page 0 is another's, pages 1 to 4 are in no slab yet, and there are operations for two of them.
    let request = Request {
        tag: 7,
        offset: 0,
        op: Op::Write(vec![1; 5 * PAGE_BYTES]),
    };
    assert!(worker.submit(request).is_ok());
    assert!(
        worker.engine.ops.free.is_empty(),
        "pages 0 and 1 wait in theirs"
    );
    assert!(!core.pages.claims.try_claim(0), "the other still has it");
    for page in 1..5 {
        assert!(core.pages.claims.try_claim(page), "{page}");
        core.pages.claims.release(page);
    }
    worker.engine.ops.free.extend(spare);
}

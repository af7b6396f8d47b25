//! One verb at a time.

use std::time::{Duration, Instant};

use cenote_fabric::{CompletionQueue, Endpoint, Status, Time, wait};

/// Hands over what was posted on an endpoint, and waits for the next end of a verb. For the endpoint
/// no time passes meanwhile: a host that gets no processor for a while is not taken for dead.
///
/// # Panics
/// If none comes within half a minute.
pub fn finish(endpoint: &mut dyn Endpoint, queue: &mut CompletionQueue) -> Status {
    endpoint.flush(queue);
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(completion) = queue.pop() {
            return completion.status;
        }
        assert!(Instant::now() < deadline, "a verb does not complete");
        if let Some(fd) = endpoint.fd() {
            wait(&[fd], Some(Duration::from_millis(50))).unwrap();
        }
        endpoint.poll(Time(1), queue);
    }
}

const PATIENCE: Duration = Duration::from_secs(30);

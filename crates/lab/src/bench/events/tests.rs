//! Rows of made-up timelines, and one real event.

use super::*;

#[test]
fn what_cannot_be_measured_is_refused() {
    let nothing = Options {
        volumes: Vec::new(),
        ..Options::default()
    };
    assert!(run(&nothing).unwrap_err().to_string().contains("volumes"));
    let limit = Options {
        limit: 100,
        ..Options::default()
    };
    assert!(run(&limit).unwrap_err().to_string().contains("10 to 99"));
}

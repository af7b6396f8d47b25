//! What is refused before anything is started.

use super::*;

#[test]
fn what_cannot_be_measured_is_refused() {
    let nothing = Options {
        volumes: Vec::new(),
        ..Options::default()
    };
    assert!(run(&nothing).unwrap_err().to_string().contains("volumes"));
    let unnoticed = Options {
        volumes: vec![Kind::Backed],
        troubles: vec![Trouble::Corruption],
        ..Options::default()
    };
    let refused = run(&unnoticed).unwrap_err().to_string();
    assert!(refused.starts_with("corruption injected"), "{refused}");
    let limit = Options {
        limit: 100,
        ..Options::default()
    };
    assert!(run(&limit).unwrap_err().to_string().contains("10 to 99"));
}

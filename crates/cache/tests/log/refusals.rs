//! What a store does when tiers refuse pages: who is asked again, and what its users hear.

use std::io::ErrorKind;
use std::sync::Arc;

use cenote_cache::log::Error;
use cenote_cache::log::tiers::memory::Fault;

use crate::tiers::{Switch, check, fill, open, tier, write};

#[test]
fn a_full_disk_is_named_reads_go_on_and_writes_when_there_is_room() {
    let (is_full, reads) = (Switch::default(), Arc::default());
    let fault = Fault::Fail(ErrorKind::StorageFull);
    let mut session = open(vec![tier("disk", &is_full, fault, &reads)], 0);
    write(&mut session, 0..100);
    is_full.set(true);
    let (written, error) = fill(&mut session, 100);
    assert!(
        matches!(&error, Error::Storage { tier, source }
        if tier == "disk" && source.kind() == ErrorKind::StorageFull),
        "{error}"
    );
    assert!(error.is_retryable());
    check(&mut session, 0..written);
    is_full.set(false);
    for _ in 0..50 {
        session.poll(&mut Vec::new());
    }
    write(&mut session, written..written + 100);
    check(&mut session, 0..written + 100);
}

#[test]
fn a_cache_that_is_left_alone_is_asked_again_when_it_fails_a_write() {
    let (fails, up, reads) = (Switch::default(), Switch::default(), Arc::default());
    let fault = Fault::Fail(ErrorKind::TimedOut);
    let cache = tier("cache", &fails, fault, &reads);
    let mut session = open(vec![cache, tier("disk", &up, Fault::None, &reads)], 0);
    write(&mut session, 0..100);
    session.store().drop_tier(1);
    fails.set(true);
    let (written, error) = fill(&mut session, 100);
    assert!(
        matches!(&error, Error::Storage { tier, .. } if tier == "cache"),
        "{error}"
    );
    check(&mut session, 0..written);
    fails.set(false);
    for _ in 0..50 {
        session.poll(&mut Vec::new());
    }
    write(&mut session, written..written + 100);
    check(&mut session, 0..written + 100);
    // Nobody refuses any more.
    session.store().drop_tier(0);
    let (_, error) = fill(&mut session, written + 100);
    assert!(matches!(error, Error::NoTier), "{error}");
}

#[test]
fn a_page_that_a_cache_failed_to_write_before_the_disk_was_lost_ends_writes_and_no_reads() {
    let (fails, is_down, reads) = (Switch::default(), Switch::default(), Arc::default());
    let fault = Fault::Fail(ErrorKind::TimedOut);
    let cache = tier("cache", &fails, fault, &reads);
    let mut session = open(vec![cache, tier("disk", &is_down, Fault::Busy, &reads)], 0);
    write(&mut session, 0..100);
    fails.set(true);
    is_down.set(true);
    let (written, error) = fill(&mut session, 100);
    assert!(matches!(error, Error::Busy), "{error}");
    session.store().drop_tier(1);
    fails.set(false);
    let (all, error) = fill(&mut session, written);
    assert!(matches!(error, Error::NoTier), "{error}");
    check(&mut session, 100..all);
}

#[test]
fn a_page_that_a_tier_in_the_place_of_a_lost_one_does_not_hold_is_asked_for_again() {
    let (fails, up, reads) = (Switch::default(), Switch::default(), Arc::default());
    let fault = Fault::Fail(ErrorKind::TimedOut);
    let near = tier("near", &fails, fault, &reads);
    let far = || tier("far", &up, Fault::None, &reads);
    let disk = tier("disk", &up, Fault::None, &reads);
    let mut session = open(vec![near, far(), disk], 0);
    write(&mut session, 0..100);
    session.store().drop_tier(1);
    session.store().drop_tier(2);
    fails.set(true);
    let (written, _) = fill(&mut session, 100);
    session.store().restore_tier(1, far()).unwrap();
    let (written, error) = fill(&mut session, written);
    assert!(
        matches!(&error, Error::Storage { tier, .. } if tier == "near"),
        "{error}"
    );
    fails.set(false);
    for _ in 0..50 {
        session.poll(&mut Vec::new());
    }
    write(&mut session, written..written + 100);
    check(&mut session, 100..written + 100);
}

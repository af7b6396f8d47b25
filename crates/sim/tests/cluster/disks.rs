//! Volumes with a disk behind them: their hosts are replaced and drained, and the disk refuses things.

use std::time::Duration;

use cenote_sim::cluster::Options;
use cenote_sim::weights;

use super::kept::assert_kept;
use super::{assert_kept_in_work, options};

/// Every host may go at any time, be drained, or be out of reach, and the disk refuses things, or is full, or late.
#[test]
fn volumes_with_a_disk_behind_them_keep_every_promise() {
    assert_kept_on_disk(1, 45);
}

/// What may be in front of a disk, and hosts for it.
const BACKED: [(&str, usize); 4] = [("rs:4+2", 9), ("plain", 6), ("mirror:2", 6), ("rs:2+1", 6)];

fn assert_kept_on_disk(seed: u64, simulated_seconds: u64) {
    let (scheme, hosts) = BACKED[(seed % 4) as usize];
    println!("{scheme}, seed {seed}");
    let scheme = scheme.parse().expect("a valid scheme");
    let mut options = options(seed, simulated_seconds).backed_as(scheme);
    options.hosts = hosts;
    options.epoch = Duration::from_secs(15);
    assert_kept_in_work(&options);
}

/// Disks refuse things while hosts are replaced and drained, and no slab is lost but by those that are late: no page
/// that slabs have is an error because the disk refused it.
#[test]
fn what_disks_refuse_while_hosts_are_replaced_is_not_lost() {
    let [returned, refused, promoted] = assert_kept_while_refused(1);
    assert!(returned > 10, "{returned}");
    assert!(refused > 50 && promoted > 20, "{refused}, {promoted}");
}

/// How many slabs were taken back, transfers refused, and pages promoted.
fn assert_kept_while_refused(seed: u64) -> [u64; 3] {
    let (scheme, hosts) = BACKED[(seed % 4) as usize];
    println!("{scheme}, seed {seed}");
    let scheme = scheme.parse().expect("a valid scheme");
    let options = Options {
        hosts,
        clients: 2,
        volume_bytes: 512 << 10,
        epoch: Duration::from_secs(20),
        fault_pause: Duration::from_millis(500),
        weights: weights! { upgrade: 30, disk: 30, drain: 10, delay: 4 },
        ..options(seed, 80).backed_as(scheme)
    };
    let report = assert_kept(&options);
    assert!(report.page_ops > 1000 && report.faults > 20, "{report:?}");
    let [returned, refused] = [report.slabs_returned, report.disk_refusals];
    let counts = [returned, refused, report.pages_promoted];
    println!("slabs returned, transfers refused, pages promoted: {counts:?}");
    counts
}

const LOST_UNDER_WAY: [u64; 2] = [6, 3_881_704_496];
const LEFT_WHILE_REPLACED: [u64; 2] = [1_847_349_875, 1_724_441_273];

/// A write of several pages, of which the disk has refused one, is under way: that page is an error before the
/// write is, and what fails by it before the write ends counted as lost.
#[test]
fn a_page_that_a_write_under_way_lost_to_its_disk_is_not_one_that_slabs_have() {
    assert_kept_while_refused(LOST_UNDER_WAY[0]);
}

/// Extents are on their way to the disk while their hosts are replaced, and clients connect to hosts that are
/// about to be.
#[test]
fn slabs_that_leave_while_their_hosts_are_replaced_are_not_lost() {
    assert_kept_while_refused(LEFT_WHILE_REPLACED[0]);
}

/// Hosts are replaced all the time, and some have not what they left, or come too late: stripes wait for the
/// others, and with a disk behind them no request does.
#[test]
fn volumes_whose_hosts_are_replaced_keep_every_promise() {
    assert_kept_while_replaced(1, true, 45);
}

fn assert_kept_while_replaced(seed: u64, is_backed: bool, simulated_seconds: u64) {
    let mut options = options(seed, simulated_seconds);
    if is_backed {
        options = options.backed();
    }
    options.hosts = if is_backed { 4 } else { 9 };
    options.epoch = Duration::from_secs(15);
    options.weights = weights! { upgrade: 40, lose: 4, delay: 4, pause_client: 2, drain: 4 };
    let report = assert_kept(&options);
    assert!(report.page_ops > 1000 && report.faults > 10, "{report:?}");
    assert!(report.slabs_returned > 10, "{report:?}");
}

mod long {
    use super::super::fresh_seed;
    use super::*;

    #[test]
    fn seeds_that_found_something_find_nothing_more() {
        for seed in [LOST_UNDER_WAY, LEFT_WHILE_REPLACED].concat() {
            assert_kept_while_refused(seed);
        }
    }

    #[test]
    fn volumes_whose_hosts_are_replaced_keep_every_promise() {
        assert_kept_while_replaced(1, false, 75);
        for is_backed in [true, false] {
            assert_kept_while_replaced(2, is_backed, 75);
            assert_kept_while_replaced(fresh_seed(), is_backed, 75);
        }
    }

    #[test]
    fn volumes_with_a_disk_behind_them_keep_every_promise() {
        for scheme in 0..4 {
            assert_kept_on_disk(scheme + 1, 75);
            assert_kept_on_disk(fresh_seed() / 4 * 4 + scheme, 75);
        }
    }

    #[test]
    fn what_disks_refuse_while_hosts_are_replaced_is_not_lost() {
        let mut sums = [0; 3]; // One seed may draw little of something.
        for seed in [2, 3, 4, 5, 10, 7, fresh_seed()] {
            let counts = assert_kept_while_refused(seed);
            sums.iter_mut()
                .zip(counts)
                .for_each(|(sum, count)| *sum += count);
        }
        let [returned, refused, promoted] = sums;
        assert!(returned > 40 && refused > 200 && promoted > 80, "{sums:?}");
    }
}

//! Regions of a cache that move from real hosts which are taken back, and what their clients see.

mod support;

use serde_json::Value;
use support::{Ended, run, words};

fn migrate(more: &[&str]) -> Ended {
    let small = words("lab redy migrate --region-bytes 2M --rate 2000 --json");
    run(&[&small[..], more].concat())
}

fn lines(ended: &Ended) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {ended:#?}"));
    ended.stdout.lines().map(parse).collect()
}

#[test]
fn three_hosts_that_are_taken_back_in_one_notice_lose_nothing_under_load() {
    // Long before it is over; a busy machine may need more than a real notice.
    let ended = migrate(&["--regions", "9", "--reclaimed", "3", "--notice", "600s"]).expect(0);
    let [report, last] = &lines(&ended)[..] else {
        panic!("{ended:#?}");
    };
    assert_eq!(report["lost_regions"], serde_json::json!([]), "{report}");
    assert!(report["requests"].as_u64() > Some(0), "{report}");
    let keys: Vec<&String> = last.as_object().expect("an object").keys().collect();
    let expected = [
        "errors",
        "longest_write_stop_ms",
        "migrated_ms",
        "wrong_bytes",
    ];
    assert_eq!(keys, expected, "{last}");
    assert_eq!(
        (&last["errors"], &last["wrong_bytes"]),
        (&0.into(), &0.into())
    );
    assert!(last["migrated_ms"].is_number(), "{last}");
}

#[test]
fn with_two_copies_one_of_each_region_moves_and_nothing_is_lost() {
    let ended = migrate(&["--regions", "2", "--copies", "2"]).expect(0);
    let [report, last] = &lines(&ended)[..] else {
        panic!("{ended:#?}");
    };
    assert_eq!(report["copies"], 2, "{report}");
    assert!(report["moving_ms"].as_f64() > Some(0.0), "{report}");
    assert_eq!(
        (&last["errors"], &last["wrong_bytes"]),
        (&0.into(), &0.into())
    );
}

#[test]
fn what_a_notice_that_is_too_short_takes_is_told_by_region() {
    let ended = migrate(&["--regions", "4", "--notice", "1us"]).expect(1);
    let [report, last] = &lines(&ended)[..] else {
        panic!("{ended:#?}");
    };
    assert_eq!(
        report["lost_regions"],
        serde_json::json!([0, 1, 2, 3]),
        "{report}"
    );
    assert!(report["lost_told_ms"].is_number(), "{report}");
    assert_eq!(last["wrong_bytes"], 0, "{last}");
}

#[test]
fn the_naive_way_is_drawn_beside_ours_over_tcp() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (svg, csv) = (folder.path().join("m.svg"), folder.path().join("m.csv"));
    let p99 = folder.path().join("p.svg");
    let p99 = p99.to_str().expect("UTF-8");
    let (svg, csv) = (svg.to_str().expect("UTF-8"), csv.to_str().expect("UTF-8"));
    let more =
        format!("--regions 2 --transport tcp --naive --plot {svg} --csv {csv} --plot-p99 {p99}");
    let more = words(&more);
    let ended = migrate(&more).expect(0);
    let reports = lines(&ended);
    assert_eq!(reports[0]["variant"], "region-by-region");
    assert_eq!(reports[1]["variant"], "naive");
    let picture = std::fs::read_to_string(svg).expect("a picture");
    assert!(picture.contains("naive writes") && picture.contains("region-by-region reads"));
    let picture = std::fs::read_to_string(p99).expect("another picture");
    assert!(picture.contains("p99 of the latency"), "{picture}");
    let table = std::fs::read_to_string(csv).expect("a table");
    const HEADER: &str =
        "variant,ms_since_notice,reads_per_second,writes_per_second,read_p99_us,write_p99_us\n";
    assert!(table.starts_with(HEADER), "{table}");
    assert!(table.lines().count() > 50, "{table}");
}

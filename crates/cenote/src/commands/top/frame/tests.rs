//! Frames of samples that are written down here, and what keys do to them.

use std::time::{Duration, Instant};

use cenote_pool::control::{HostStatus, PressureStatus, SlabCounts};
use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::super::view::After;
use super::*;
use crate::sample::{Host, Volume, Volumes};

const GIB: u64 = 1 << 30;

fn up(name: &str, lent: u32, pressure: PressureStatus) -> Host {
    let status = HostStatus {
        name: name.to_owned(),
        domain: format!("rack-{name}"),
        slab_bytes: GIB,
        memory_bytes: 8 * GIB,
        lent_bytes: u64::from(lent) * GIB,
        slabs: SlabCounts {
            free: 8 - lent,
            mapped: lent,
            ..SlabCounts::default()
        },
        clients_total: 2,
        pressure,
        ..HostStatus::default()
    };
    Host {
        name: name.to_owned(),
        address: format!("tcp:{name}:7000"),
        domain: format!("rack-{name}"),
        found: Found::Up(Box::new(status)),
    }
}

fn squeezed() -> PressureStatus {
    PressureStatus {
        watched: true,
        total_bytes: 64 * GIB,
        used_bytes: 48 * GIB,
        free_bytes: 5 * GIB,
        headroom_bytes: 8 * GIB,
        floor_bytes: 2 * GIB,
        slabs_max: 8,
        asked_back: 3,
        evictions_asked: 9,
        evictions_done: 4,
        ..PressureStatus::default()
    }
}

fn hosts() -> Vec<Host> {
    vec![
        up("h00", 3, PressureStatus::default()),
        up("h01", 7, squeezed()),
        Host {
            name: "h02".to_owned(),
            address: "tcp:h02:7000".to_owned(),
            domain: "rack-h02".to_owned(),
            found: Found::Ended("connection refused".to_owned()),
        },
    ]
}

fn volumes(at: Instant, pages_read: u64) -> Volumes {
    let status = json!({
        "size_bytes": 4 * GIB,
        "health": "regenerating",
        "mapped_bytes": 2 * GIB,
        "stored_bytes": GIB,
        "lent_bytes": 3 * GIB,
        "hosts": [{"name": "h00", "connected": true}, {"name": "h02", "connected": false}],
        "extents": [
            {"health": "healthy", "activity": 20.5},
            {"health": "regenerating", "activity": 1.5, "regenerated": 0.25},
        ],
        "slab_bytes": 8000,
        // Of 200 more 197 come within 1 us, and three within 2.
        "latency": {
            "read": {"buckets": [[1023, pages_read * 197], [2047, pages_read * 3], [4095, 3]]},
            "write": {"buckets": [[1023, 5]]},
        },
        "counters": {
            "pages_read": pages_read, "pages_written": 7, "slabs_rebuilt": 5,
            "rebuilt_bytes": pages_read,
        },
    });
    let volume = |name: &str, status| Volume {
        name: name.to_owned(),
        size: "4G".to_owned(),
        scheme: "rs:2+1".to_owned(),
        status,
    };
    Volumes {
        at,
        volumes: vec![volume("idle", None), volume("v0", Some(Ok(status)))],
    }
}

fn both() -> Vec<Focus> {
    vec![Focus::Hosts, Focus::Volumes]
}

fn view() -> View {
    let mut view = View::new("/well/cluster.toml".to_owned(), both());
    let now = Instant::now();
    view.handle_hosts(hosts());
    view.handle_volumes(volumes(now, 100));
    view.handle_volumes(volumes(now + Duration::from_secs(2), 1100));
    view
}

fn text(lines: &[Line]) -> String {
    let lines = lines.iter().map(|line| line.text().trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

fn press(view: &mut View, code: KeyCode) -> After {
    view.handle_key(&KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_frame_shows_every_host_and_volume_in_columns() {
    let expected = "\
cenote top  /well/cluster.toml: 2 of 3 hosts up, 10.0 GiB lent of 16.0 GiB, 6.00 GiB free
HOST^  STATE   LENT      OF        FREE      PRESSURE   LEFT      HEADROOM   EVICTED   CLIENTS
h00    up      3.00 GiB  8.00 GiB  5.00 GiB  -          -         -          0         2
h01    up      7.00 GiB  8.00 GiB  1.00 GiB  75 %       5.00 GiB  8.00 GiB   4, 3 asked  2
h02    ended   -         -         -         -          -         -          -         -

VOLUME^  HEALTH  SCHEME  SIZE  MAPPED  STORED  ACTIVITY  READS/S  WRITES/S  READ P99  WRITE P99  REPAIRS
idle     not in use    rs:2+1   4.00 GiB  -         -         -          -         -   -  -  -
v0       regenerating  rs:2+1   4.00 GiB  2.00 GiB  1.00 GiB  22  500  0  2.0 us  -  5, 1 now, 12s left

h02: tcp:h02:7000: connection refused";
    let words = |text: &str| {
        let lines = text.lines();
        let lines = lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
        lines.collect::<Vec<_>>()
    };
    let frame = text(&whole(&view()));
    assert_eq!(words(&frame), words(expected));
    // Columns line up: each begins where its header does.
    let lines: Vec<&str> = frame.lines().collect();
    for (header, row, names) in [
        (1, 3, ["STATE", "PRESSURE", "CLIENTS"]),
        (6, 8, ["HEALTH", "ACTIVITY", "REPAIRS"]),
    ] {
        for name in names {
            let at = lines[header].find(name).expect("a column");
            assert_eq!(&lines[row][at - 2..at], "  ", "{name}: {frame}");
            assert_ne!(&lines[row][at..=at], " ", "{name}: {frame}");
        }
    }
}

#[test]
fn what_wants_to_be_looked_at_looks_so() {
    let looks = |text: &str| {
        let frame = whole(&view());
        let pieces = frame.iter().flat_map(|line| line.pieces().to_vec());
        let found = pieces.into_iter().find(|(piece, _)| piece.trim() == text);
        found.unwrap_or_else(|| panic!("{text}")).1
    };
    assert_eq!(looks("ended"), Look::Bad);
    assert_eq!(looks("4, 3 asked"), Look::Warning);
    assert_eq!(looks("regenerating"), Look::Warning);
    assert_eq!(looks("5.00 GiB"), Look::Plain, "h00's free memory");
    assert_eq!(looks(": 2 of 3 hosts up"), Look::Bad);
}

#[test]
fn a_view_that_knows_nothing_says_that_it_asks() {
    let view = View::new("/well/cluster.toml".to_owned(), both());
    let frame = text(&whole(&view));
    assert!(frame.starts_with("cenote top  /well/cluster.toml: asking\n"));
    assert_eq!(frame.matches("asking").count(), 3, "{frame}");
    let mut none = View::new(String::new(), both());
    none.handle_hosts(Vec::new());
    assert!(text(&whole(&none)).contains("none"));
}

#[test]
fn a_frame_fits_whatever_the_terminal() {
    let mut view = view();
    let many = (0..200).map(|index| up(&format!("h{index:03}"), 1, PressureStatus::default()));
    view.handle_hosts(many.collect());
    for columns in [0, 1, 20, 80, 300] {
        for height in 0..60 {
            let frame = fitted(&view, (columns, height));
            assert_eq!(frame.len(), usize::from(height), "{columns} x {height}");
            let widest = frame.iter().map(|line| line.text().chars().count()).max();
            assert!(
                widest.unwrap_or(0) <= usize::from(columns),
                "{columns} x {height}"
            );
        }
    }
    // Of 24 lines 18 are for rows, of which two volumes take two.
    let frame = text(&fitted(&view, (400, 24)));
    assert!(frame.contains("1-16 of 200"), "{frame}");
    assert!(frame.contains("\nv0 "), "{frame}");
    assert!(frame.ends_with(HELP), "{frame}");
    // Narrower than a row of volumes: it goes on below, and nothing of it is cut.
    let frame = text(&fitted(&view, (100, 24)));
    let last = frame
        .lines()
        .find(|line| line.ends_with("5, 1 now, 12s left"));
    assert!(last.is_some_and(|line| line.starts_with("  ")), "{frame}");
}

#[test]
fn a_line_that_is_too_long_goes_on_below() {
    let mut line = Line::of("one two ", Look::Bad);
    line.push("three four", Look::Plain);
    let lines = line.clone().wrapped(9);
    let said: Vec<String> = lines.iter().map(Line::text).collect();
    assert_eq!(said, ["one two", "  three", "  four"]);
    assert_eq!(lines[0].pieces(), [("one two".to_owned(), Look::Bad)]);
    assert_eq!(line.clone().wrapped(100).len(), 1);
    assert_eq!(
        Line::of("abcdef", Look::Plain).wrapped(3).len(),
        2,
        "in the middle of a word"
    );
}

#[test]
fn the_chosen_line_is_shown_and_told_in_full() {
    let mut view = view();
    let many = (0..200).map(|index| up(&format!("h{index:03}"), 1, PressureStatus::default()));
    view.handle_hosts(many.collect());
    let told = |view: &View| {
        let frame = fitted(view, (400, 24));
        let chosen: Vec<String> = frame
            .iter()
            .filter(|line| line.pieces().iter().any(|(_, look)| *look == Look::Chosen))
            .map(Line::text)
            .collect();
        assert_eq!(chosen.len(), 1, "one line is chosen: {}", text(&frame));
        let details = frame[22].text();
        let name = chosen[0]
            .split_whitespace()
            .next()
            .expect("a name")
            .to_owned();
        assert!(details.starts_with(&format!("{name}: ")), "{details}");
        name
    };
    assert_eq!(told(&view), "h000");
    for _ in 0..40 {
        press(&mut view, KeyCode::Down);
    }
    assert_eq!(told(&view), "h040");
    press(&mut view, KeyCode::Up);
    press(&mut view, KeyCode::Char('r'));
    assert_eq!(told(&view), "h039", "it stays chosen in another order");
    press(&mut view, KeyCode::Home);
    assert_eq!(told(&view), "h199", "the first in reverse");
    press(&mut view, KeyCode::End);
    assert_eq!(told(&view), "h000");
    // A host that is gone from the file leaves its place to the first.
    view.handle_hosts(hosts()[..2].to_vec());
    press(&mut view, KeyCode::Char('r'));
    assert_eq!(told(&view), "h00");
    press(&mut view, KeyCode::Tab);
    assert_eq!(told(&view), "idle");
    press(&mut view, KeyCode::Down);
    press(&mut view, KeyCode::Down);
    assert_eq!(told(&view), "v0", "there is no line below");
}

#[test]
fn tables_are_sorted_by_the_column_that_is_chosen() {
    let mut view = view();
    let names = |view: &View, table| -> Vec<String> {
        view.rows(table).into_iter().map(|row| row.name).collect()
    };
    press(&mut view, KeyCode::Right);
    press(&mut view, KeyCode::Right);
    assert_eq!(names(&view, Focus::Hosts), ["h02", "h00", "h01"], "by LENT");
    press(&mut view, KeyCode::Char('r'));
    assert_eq!(names(&view, Focus::Hosts), ["h01", "h00", "h02"]);
    assert!(text(&whole(&view)).contains("LENTv "));
    assert_eq!(names(&view, Focus::Volumes), ["idle", "v0"], "untouched");
    for _ in 0..50 {
        press(&mut view, KeyCode::Left);
    }
    assert_eq!(view.order(Focus::Hosts).column, 0);
    for _ in 0..50 {
        press(&mut view, KeyCode::Right);
    }
    assert_eq!(view.order(Focus::Hosts).column, 9);
}

#[test]
fn q_escape_and_control_c_end_it_and_nothing_else() {
    let mut view = view();
    for code in [KeyCode::Char('q'), KeyCode::Esc] {
        assert_eq!(press(&mut view, code), After::End);
    }
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(view.handle_key(&control_c), After::End);
    for code in [
        KeyCode::Char('c'),
        KeyCode::Enter,
        KeyCode::F(1),
        KeyCode::Tab,
    ] {
        assert_eq!(press(&mut view, code), After::Go);
    }
    let mut empty = View::new(String::new(), both());
    for code in [KeyCode::Up, KeyCode::Down, KeyCode::Home, KeyCode::End] {
        assert_eq!(press(&mut empty, code), After::Go);
    }
}

#[test]
fn a_volume_without_extents_has_no_activity_and_one_that_does_not_tell_an_unknown_one() {
    let mut view = view();
    let activity = |view: &mut View, extents: serde_json::Value| {
        let mut sample = volumes(Instant::now(), 0);
        if let Some(Ok(status)) = &mut sample.volumes[1].status {
            status["extents"] = extents;
        }
        view.handle_volumes(sample);
        view.rows(Focus::Volumes)[1].cells[6].text.clone()
    };
    assert_eq!(activity(&mut view, json!([])), "0");
    let silent = json!([{"health": "healthy"}]);
    assert_eq!(activity(&mut view, silent), "-");
}

#[test]
fn a_rate_is_of_one_owner() {
    let mut view = view();
    let rate = |view: &View| view.rows(Focus::Volumes)[1].cells[7].text.clone();
    assert_eq!(rate(&view), "500");
    // Its server was started again: counters begin at zero.
    view.handle_volumes(volumes(Instant::now() + Duration::from_secs(4), 3));
    assert_eq!(rate(&view), "-");
}

#[test]
fn what_was_known_is_shown_with_its_age_while_nobody_answers() {
    let mut view = view();
    let before = text(&fitted(&view, (200, 40)));
    view.handle_trouble(Focus::Volumes, "etcd does not answer".to_owned());
    let shown = text(&fitted(&view, (200, 40)));
    assert!(shown.contains(" s old: etcd does not answer"), "{shown}");
    assert_eq!(shown.lines().count(), before.lines().count());
    for line in before.lines().filter(|line| !line.contains("VOLUME")) {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    view.handle_volumes(volumes(Instant::now() + Duration::from_secs(4), 2100));
    let again = text(&fitted(&view, (200, 40)));
    assert!(!again.contains("etcd"), "{again}");
}

/// Names are checked where they are written down; what a host says of itself is not.
#[test]
fn nothing_that_a_host_says_steers_the_terminal() {
    let line = Line::of("rack\u{1b}]0;mine\u{7}\n\u{9b}2J", Look::Plain);
    assert_eq!(line.text(), "rack?]0;mine???2J");
}

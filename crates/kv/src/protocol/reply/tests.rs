use super::*;
use crate::protocol::{Dialect, Limits, Parser, Request, Step};

/// The one request of a line.
fn request(text: &str, dialect: Dialect) -> Request<'_> {
    let limits = Limits {
        dialect,
        ..Limits::default()
    };
    match Parser::new(limits).parse(text.as_bytes()) {
        Step::Request { request, .. } => request,
        step => panic!("{text:?} is {step:?}"),
    }
}

fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = b"before\r\n".to_vec();
    write(&mut out);
    let text = String::from_utf8(out).unwrap();
    text.strip_prefix("before\r\n")
        .expect("is appended")
        .to_owned()
}

#[test]
fn items_and_statistics_are_lines_with_an_end() {
    let text = written(|out| {
        value_line(out, b"k", 7, 4, None);
        value_line(out, b"k", u32::MAX, 0, Some(u64::MAX));
        end(out);
        stat(out, "pid", "5");
        number(out, 0);
        version(out, "1");
        error(out, Error::TooLarge);
        answer(out, Answer::NotStored);
    });
    let expected = "VALUE k 7 4\r\nVALUE k 4294967295 0 18446744073709551615\r\nEND\r\n\
        STAT pid 5\r\n0\r\nVERSION 1\r\nSERVER_ERROR object too large for cache\r\nNOT_STORED\r\n";
    assert_eq!(text, expected);
}

#[test]
fn facts_come_in_the_order_in_which_they_were_asked_for() {
    let shown = Shown {
        key: b"foo",
        is_key_base64: true,
        value_bytes: 2,
        client_flags: 9,
        cas: 12,
        seconds_left: Some(30),
        now: 1000,
        is_new: false,
        seconds_idle: 4,
        was_hit: true,
        has_won: true,
        is_stale: true,
        was_won: true,
    };
    for (text, expected) in [
        (
            "mg Zm9v b t T90 c Oab k f l h s\n",
            "HD t30 c12 Oab kZm9v b f9 l4 h1 s2 Z X W\r\n",
        ),
        ("mg foo T90 t v\n", "VA 2 t90 Z X W\r\n"),
        ("mg foo T0 q t\n", "HD t-1 Z X W\r\n"),
    ] {
        let Request::MetaGet(get) = request(text, Dialect::V1_6_18) else {
            panic!("{text:?}");
        };
        assert_eq!(
            written(|out| meta_get(out, &get, &shown)),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn quiet_requests_hide_what_they_may() {
    use Dialect::{Later, V1_6_18};
    use MetaStatus::{Done, Exists, NotFound};
    for (dialect, status, expected) in [
        (V1_6_18, Done, ""),
        (V1_6_18, NotFound, "NF Oa kk\r\n"),
        (V1_6_18, Exists, "EX Oa kk\r\n"),
        (Later, Done, ""),
        (Later, NotFound, ""),
        (Later, Exists, "EX Oa kk\r\n"),
    ] {
        let Request::MetaDelete(delete) = request("md k q Oa k\n", dialect) else {
            panic!("no delete");
        };
        let text = written(|out| meta_delete(out, &delete, b"k", status, dialect));
        assert_eq!(text, expected, "{dialect:?} {status:?}");
        let Request::MetaArithmetic(count) = request("ma k q Oa k\n", dialect) else {
            panic!("no count");
        };
        if status != Done {
            let text = written(|out| meta_arithmetic_miss(out, &count, b"k", status, dialect));
            assert_eq!(text, expected, "{dialect:?} {status:?}");
        }
    }
    let Request::MetaGet(get) = request("mg k q k\n", V1_6_18) else {
        panic!("no get");
    };
    assert_eq!(written(|out| meta_get_miss(out, &get, b"k")), "");
    let Request::MetaSet(set) = request("ms k 2 q s\nhi\r\n", Later) else {
        panic!("no set");
    };
    let status = |status| written(|out| meta_set(out, &set, b"k", status, 0, Later));
    assert_eq!(status(Done), "");
    assert_eq!(status(MetaStatus::NotStored), "NS s2\r\n");
}

#[test]
fn a_number_that_was_made_is_told_even_if_quiet() {
    let Request::MetaArithmetic(request) = request("ma k q v N90 t c\n", Dialect::V1_6_18) else {
        panic!("no count");
    };
    let counted = Counted {
        number: 13,
        cas: 5,
        seconds_left: None,
        now: 1000,
        is_new: true,
        key: b"k",
    };
    let text = written(|out| meta_arithmetic(out, &request, &counted));
    assert_eq!(text, "VA 2 t90 c5\r\n13\r\n");
    let counted = Counted {
        is_new: false,
        ..counted
    };
    assert_eq!(written(|out| meta_arithmetic(out, &request, &counted)), "");
}

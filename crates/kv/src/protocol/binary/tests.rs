use proptest::prelude::*;

use super::*;
use crate::protocol::Limits;

const LIMITS: Limits = Limits {
    item_bytes_max: 2048,
    line_bytes_max: 2 << 10,
    multiget_bytes_max: 1 << 20,
    dialect: crate::protocol::Dialect::V1_6_18,
    has_cas: true,
};
/// Nothing is waited for beyond the largest item, and what a header announces beside its value.
const WAITED_MAX: usize = HEADER_BYTES + 20 + 250 + 2048;

fn message(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x80, opcode];
    bytes.extend_from_slice(&u16::try_from(key.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[u8::try_from(extras.len()).unwrap(), 0, 0, 0]);
    let body = u32::try_from(extras.len() + key.len() + value.len()).unwrap();
    bytes.extend_from_slice(&body.to_be_bytes());
    bytes.extend_from_slice(&[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 9]);
    [&bytes, extras, key, value].concat()
}

fn only(bytes: &[u8]) -> Step<'_> {
    Parser::new(LIMITS).parse(bytes, true)
}

fn refused(bytes: &[u8]) -> (Status, bool) {
    match only(bytes) {
        Step::Refused { refusal, .. } => (refusal.status, refusal.is_end),
        step => panic!("{step:?}"),
    }
}

#[test]
fn a_set_is_read_where_it_lies() {
    let bytes = message(0x11, &[0, 0, 0, 7, 0, 0, 1, 0], b"a b", b"value");
    let Step::Message { message, taken } = only(&bytes) else {
        panic!("is whole");
    };
    assert_eq!(taken, bytes.len());
    assert_eq!(message.head.opaque, 0x0102_0304);
    assert_eq!((message.cas, message.key), (9, &b"a b"[..]));
    assert!(message.is_quiet && message.is_for_item() && !message.only_reads());
    assert_eq!(
        message.command,
        Command::Store {
            mode: StoreMode::Set,
            client_flags: 7,
            exptime: Seconds(256),
            value: b"value",
        }
    );
    for length in 1..bytes.len() {
        assert!(matches!(only(&bytes[..length]), Step::More { needed } if needed > length));
    }
}

#[test]
fn counting_may_make_its_number_or_not() {
    let mut extras = [[0; 7].as_slice(), &[3], &[0; 7], &[4], &[0, 0, 0, 5]].concat();
    let count = |extras: &[u8]| match only(&message(0x06, extras, b"n", b"")) {
        Step::Message { message, .. } => format!("{:?}", message.command),
        step => panic!("{step:?}"),
    };
    let expected =
        "Count { direction: Down, delta: 3, initial: 4, vivify: Some(Seconds(5)) }".to_owned();
    assert_eq!(count(&extras), expected);
    extras[16..].fill(0xff);
    assert!(count(&extras).ends_with("vivify: None }"));
}

#[test]
fn times_have_no_sign() {
    const NOW: u64 = 1_700_000_000;
    assert_eq!(Seconds(0).expiry(NOW), Expiry::Never);
    assert_eq!(Seconds(9).expiry(NOW), Expiry::At(NOW + 9));
    assert_eq!(Seconds(1_600_000_000).expiry(NOW), Expiry::Passed);
    assert_eq!(Seconds(u32::MAX).expiry(NOW), Expiry::At(4_294_967_295));
    assert_eq!(Seconds(0).flush_at(NOW), 0);
    assert_eq!(Seconds(60).flush_at(NOW), NOW + 60);
}

#[test]
fn lengths_that_do_not_go_with_the_opcode_end_the_connection() {
    for bytes in [
        message(0x00, b"", b"", b""),
        message(0x00, b"", b"k", b"v"),
        message(0x00, &[0; 4], b"k", b""),
        message(0x01, b"", b"k", b"v"),
        message(0x01, &[0; 8], b"", b"v"),
        message(0x05, &[0; 8], b"k", b""),
        message(0x0a, b"", b"k", b""),
        message(0x0e, &[0; 8], b"k", b"v"),
        message(0x1c, b"", b"k", b""),
        message(0x08, &[0; 5], b"", b""),
        message(0x00, b"", &[b'k'; 251], b""),
        // A long key is refused before it has come.
        message(0x00, b"", &[b'k'; 60000], b"")[..24].to_vec(),
    ] {
        assert_eq!(refused(&bytes), (Status::Invalid, true));
    }
    let mut bytes = message(0x00, b"", b"key", b"");
    bytes[11] = 2;
    assert_eq!(refused(&bytes), (Status::Unknown, true));
    bytes[0] = b'g';
    assert_eq!(only(&bytes), Step::Close);
}

#[test]
fn a_body_that_nobody_wants_is_passed_over() {
    for (bytes, status, forget) in [
        (
            message(0x01, &[0; 8], b"k", &[b'v'; 3000]),
            Status::TooLarge,
            Some(&b"k"[..]),
        ),
        (
            message(0x02, &[0; 8], b"k", &[b'v'; 3000]),
            Status::TooLarge,
            None,
        ),
        (
            message(0x77, b"x", b"k", &[b'v'; 3000]),
            Status::Unknown,
            None,
        ),
    ] {
        let mut parser = Parser::new(LIMITS);
        let Step::Refused { refusal, taken } = parser.parse(&bytes, true) else {
            panic!("is refused");
        };
        assert_eq!((refusal.status, refusal.forget), (status, forget));
        assert!(!refusal.is_end);
        let rest = bytes.len() - taken;
        let half = &bytes[taken..taken + rest / 2];
        assert_eq!(
            parser.parse(half, true),
            Step::Skipped { taken: half.len() }
        );
        let next = [&bytes[taken + half.len()..], &message(0x0a, b"", b"", b"")].concat();
        let left = rest - half.len();
        assert_eq!(parser.parse(&next, true), Step::Skipped { taken: left });
        assert!(matches!(
            parser.parse(&next[left..], true),
            Step::Message { .. }
        ));
    }
}

#[test]
fn who_is_not_known_may_only_say_who_it_is() {
    for (bytes, is_let_through) in [
        (message(0x00, b"", b"k", b""), false),
        (
            message(0x01, &[0; 8], b"k", &[b'v'; 1000])[..24].to_vec(),
            false,
        ),
        (message(0x77, b"", b"", b""), false),
        (message(0x0b, b"", b"", b""), true),
        (message(0x20, b"", b"", b""), true),
        (message(0x21, b"", b"PLAIN", b"\0a\0b"), true),
    ] {
        match Parser::new(LIMITS).parse(&bytes, false) {
            Step::Message { .. } => assert!(is_let_through),
            Step::Refused { refusal, .. } => {
                assert!(!is_let_through && refusal.is_end);
                assert_eq!(refusal.status, Status::AuthenticationError);
            }
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn replies_repeat_the_request_and_quiet_ones_hide_success() {
    let bytes = message(0x0d, b"", b"key", b"");
    let Step::Message { message: asked, .. } = only(&bytes) else {
        panic!("is whole");
    };
    let mut out = Vec::new();
    reply::miss(&mut out, &asked, true);
    reply::done(&mut out, &asked, 5);
    reply::number(&mut out, &asked, 5, 6);
    assert!(out.is_empty());
    reply::item(&mut out, &asked, true, 7, 8, 2);
    out.extend_from_slice(b"hi");
    let expected =
        b"\x81\x0d\0\x03\x04\0\0\0\0\0\0\x09\x01\x02\x03\x04\0\0\0\0\0\0\0\x08\0\0\0\x07keyhi";
    assert_eq!(out, expected);
    out.clear();
    reply::error(&mut out, asked.head, Status::NotStored);
    assert!(out.ends_with(b"Not stored.") && out[7] == 5 && out[11] == 11);
}

#[test]
fn a_delete_of_our_own_is_one_message() {
    let text = delete(b"a key");
    let message = whole(&text, LIMITS).expect("is whole");
    assert_eq!(
        (message.command, message.key),
        (Command::Delete, &b"a key"[..])
    );
    assert!(message.is_quiet);
}

/// What a stream comes to, told so that two ways through it can be compared.
fn steps(pieces: &[&[u8]]) -> Vec<String> {
    let mut parser = Parser::new(LIMITS);
    let (mut buffer, mut told, mut skipped) = (Vec::new(), Vec::new(), 0);
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = parser.parse(&buffer, true);
            let taken = match step {
                Step::More { needed } => {
                    assert!(needed > buffer.len() && needed <= WAITED_MAX);
                    break;
                }
                Step::Close => {
                    told.push("closed".to_owned());
                    return told;
                }
                Step::Skipped { taken } => {
                    skipped += taken;
                    taken
                }
                Step::Message { taken, .. } => {
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    taken
                }
                Step::Refused { refusal, taken } => {
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    if refusal.is_end {
                        return told;
                    }
                    taken
                }
            };
            assert!(taken > 0 && taken <= buffer.len());
            buffer.drain(..taken);
        }
    }
    told.push(format!("skipped {skipped}, left {}", buffer.len()));
    told
}

fn any_message() -> impl Strategy<Value = Vec<u8>> {
    let extras = prop_oneof![Just(0_usize), Just(4), Just(8), Just(20), 0_usize..30];
    let value = prop_oneof![3 => 0_usize..20, 1 => 0_usize..4000];
    (0_u8..0x28, extras, 0_usize..260, value, any::<u8>()).prop_map(
        |(opcode, extras, key, value, fill)| {
            message(
                opcode,
                &vec![fill; extras],
                &vec![b'k'; key],
                &vec![b'v'; value],
            )
        },
    )
}

proptest! {
    #[test]
    fn pieces_change_nothing(
        messages in proptest::collection::vec(any_message(), 1..6),
        cuts in proptest::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let stream = messages.concat();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut from = 0;
        for cut in cuts {
            pieces.push(&stream[from..cut]);
            from = cut;
        }
        pieces.push(&stream[from..]);
        prop_assert_eq!(steps(&pieces), steps(&[&stream]));
    }

    #[test]
    fn no_bytes_do_harm(stream in proptest::collection::vec(any::<u8>(), 0..3000), is_request: bool) {
        let mut stream = stream;
        if let Some(first) = stream.first_mut().filter(|_| is_request) {
            *first = REQUEST_MAGIC;
        }
        steps(&[&stream]);
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(steps(&bytes), steps(&[&stream]));
    }
}

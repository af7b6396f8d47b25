use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::ram::RamDisk;

fn exports() -> Vec<Export> {
    [("first", 1 << 20), ("second", 3 << 20)]
        .map(|(name, size_bytes)| Export {
            name: name.to_owned(),
            disk: Arc::new(RamDisk::new(size_bytes)),
        })
        .to_vec()
}

fn message(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text);
    bytes
}

fn context(export: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend(string(query));
    }
    data
}

fn go(export: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = string(export);
    data.extend((kinds.len() as u16).to_be_bytes());
    for kind in kinds {
        data.extend(kind.to_be_bytes());
    }
    data
}

/// Feeds all of `input` and returns the replies as (option, type, body), and the last step.
fn talk(input: &[u8]) -> (Vec<(u32, u32, Vec<u8>)>, Step) {
    talk_with(Security::None, input)
}

fn talk_with(security: Security, input: &[u8]) -> (Vec<(u32, u32, Vec<u8>)>, Step) {
    let exports = exports();
    let mut out = Vec::new();
    let mut handshake = Handshake::start(security, &mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
    out.clear();
    let mut all = 3u32.to_be_bytes().to_vec();
    all.extend(input);
    let mut at = 0;
    let step = loop {
        let (used, step) = handshake.advance(&all[at..], &exports, &mut out);
        at += used;
        if step != Step::Replied {
            break step;
        }
    };
    let mut replies = Vec::new();
    let mut rest = Input::new(&out);
    while !rest.is_empty() {
        assert_eq!(rest.u64(), Some(0x0003_e889_0455_65a9));
        let (option, kind) = (rest.u32().unwrap(), rest.u32().unwrap());
        replies.push((option, kind, rest.string().unwrap().to_vec()));
    }
    (replies, step)
}

fn kinds(input: &[u8]) -> Vec<u32> {
    talk(input).0.into_iter().map(|reply| reply.1).collect()
}

const INVALID: u32 = 0x8000_0003;
const TLS_REQUIRED: u32 = 0x8000_0005;
const TOO_BIG: u32 = 0x8000_0009;

#[test]
fn nothing_is_said_before_tls_where_it_is_required() {
    for (input, expected) in [
        (message(3, b""), vec![TLS_REQUIRED]),
        (message(7, &go(b"first", &[])), vec![TLS_REQUIRED]),
        (message(8, b""), vec![TLS_REQUIRED]),
        (message(5, b"x"), vec![INVALID]),
        (message(2, b""), vec![1]),
    ] {
        let (replies, step) = talk_with(Security::Required, &input);
        let kinds: Vec<_> = replies.iter().map(|reply| reply.1).collect();
        assert_eq!(kinds, expected);
        assert!(
            !matches!(step, Step::Transmit(_) | Step::StartTls),
            "{step:?}"
        );
    }
    let (replies, step) = talk_with(Security::Required, &message(1, b"first"));
    assert_eq!((replies.len(), step), (0, Step::Close));
    assert_eq!(kinds(&message(5, b"")), [0x8000_0001], "there is no TLS");
}

#[test]
fn what_was_agreed_on_before_tls_is_forgotten_with_it() {
    let mut out = Vec::new();
    let mut handshake = Handshake::start(Security::Offered, &mut out);
    let exports = exports();
    let mut feed = |input: &[u8]| handshake.advance(input, &exports, &mut out).1;
    assert_eq!(feed(&3u32.to_be_bytes()), Step::Replied);
    assert_eq!(feed(&message(8, b"")), Step::Replied);
    let choice = context(b"first", &[b"base:allocation"]);
    assert_eq!(feed(&message(10, &choice)), Step::Replied);
    assert_eq!(feed(&message(5, b"")), Step::StartTls);
    assert_eq!(feed(&message(5, b"")), Step::Replied, "once is enough");
    let Step::Transmit(agreed) = feed(&message(7, &go(b"first", &[]))) else {
        panic!("GO ends the handshake");
    };
    assert_eq!(agreed.framing, Framing::Simple);
    assert!(!agreed.block_status);
}

#[test]
fn go_names_size_flags_and_what_was_asked_for() {
    let (replies, step) = talk(&message(7, &go(b"second", &[3, 1])));
    let bodies: Vec<_> = replies
        .iter()
        .map(|(_, kind, body)| (*kind, &body[..]))
        .collect();
    let flags = 0b1101_0110_1101u16.to_be_bytes();
    let export = [&[0, 0, 0, 0, 0, 0, 0, 0x30, 0, 0], &flags[..]].concat();
    assert_eq!(bodies[0], (3, &export[..]));
    assert_eq!(bodies[1], (3, &b"\0\x01second"[..]));
    let sizes: &[u8] = &[0, 3, 0, 0, 0, 1, 0, 0, 0x10, 0, 4, 0, 0, 0];
    assert_eq!(bodies[2], (3, sizes));
    assert_eq!(bodies[3], (1, &b""[..]));
    let Step::Transmit(agreed) = step else {
        panic!("GO ends the handshake, not {step:?}");
    };
    assert_eq!((agreed.export, agreed.size_bytes), (1, 3 << 20));
    assert!(agreed.framing == Framing::Simple && !agreed.block_status);
}

#[test]
fn the_empty_name_means_the_first_export() {
    let (_, step) = talk(&message(7, &go(b"", &[])));
    assert!(matches!(step, Step::Transmit(agreed) if agreed.export == 0));
}

#[test]
fn export_name_has_no_reply_header_and_closes_on_an_unknown_name() {
    assert_eq!(talk(&message(1, b"third")).1, Step::Close);
    let exports = exports();
    let mut out = Vec::new();
    let mut handshake = Handshake::start(Security::Offered, &mut out);
    out.clear();
    // Fixed newstyle, without the flag that saves the zeros.
    handshake.advance(&1u32.to_be_bytes(), &exports, &mut out);
    let (_, step) = handshake.advance(&message(1, b"first"), &exports, &mut out);
    assert!(matches!(step, Step::Transmit(_)));
    assert_eq!(out.len(), 8 + 2 + 124);
    assert_eq!(out[..8], (1u64 << 20).to_be_bytes());
}

#[test]
fn list_names_every_export_and_refuses_data() {
    let (replies, _) = talk(&message(3, b""));
    assert_eq!(replies.len(), 3);
    assert!(replies[0].2.starts_with(b"\0\0\0\x05first"));
    assert!(replies[1].2.starts_with(b"\0\0\0\x06second"));
    assert_eq!(kinds(&message(3, b"x")), [INVALID]);
}

#[test]
fn unknown_and_malformed_options_are_answered_and_the_talk_goes_on() {
    let mut input = message(99, b"whatever");
    input.extend(message(5, b""));
    input.extend(message(7, b"\0\0\0\x63short"));
    input.extend(message(7, &go(b"third", &[])));
    input.extend(message(8, b"x"));
    input.extend(message(6, &go(b"first", &[])));
    input.extend(message(2, b""));
    let (replies, step) = talk(&input);
    let kinds: Vec<u32> = replies.iter().map(|reply| reply.1).collect();
    let unsupported = 0x8000_0001;
    assert_eq!(
        kinds,
        [
            unsupported,
            unsupported,
            INVALID,
            0x8000_0006,
            INVALID,
            3,
            1,
            1
        ]
    );
    assert_eq!(step, Step::Close);
}

#[test]
fn an_oversized_option_is_skipped_and_answered_as_too_big() {
    let mut input = message(7, &vec![0; 100_000]);
    input.extend(message(3, b""));
    assert_eq!(kinds(&input), [TOO_BIG, 2, 2, 1]);
    assert_eq!(talk(&message(1, &vec![b'a'; 100_000])).1, Step::Close);
}

#[test]
fn an_oversized_option_is_refused_for_tls_and_style_first() {
    let long = [b'a'; 100_000];
    for (number, expected) in [(3, TLS_REQUIRED), (7, TLS_REQUIRED), (5, TOO_BIG)] {
        let (replies, step) = talk_with(Security::Required, &message(number, &long));
        let kinds: Vec<_> = replies.iter().map(|reply| reply.1).collect();
        assert_eq!((kinds, step), (vec![expected], Step::More));
    }
    let (replies, step) = talk_with(Security::Required, &message(1, &long));
    assert_eq!((replies.len(), step), (0, Step::Close));
    // Without the fixed style nothing can be answered.
    for data in [&long[..], b""] {
        let mut out = Vec::new();
        let mut handshake = Handshake::start(Security::None, &mut out);
        out.clear();
        let exports = exports();
        handshake.advance(&2u32.to_be_bytes(), &exports, &mut out);
        let (input, mut at) = (message(3, data), 0);
        let step = loop {
            let (used, step) = handshake.advance(&input[at..], &exports, &mut out);
            at += used;
            if step != Step::Replied {
                break step;
            }
        };
        assert_eq!((out.len(), step), (0, Step::Close));
    }
}

#[test]
fn a_meta_context_needs_structured_replies_and_holds_for_its_export_only() {
    let set = message(10, &context(b"first", &[b"base:allocation"]));
    assert_eq!(kinds(&set), [INVALID]);

    let structured = message(8, b"");
    let agreed = |parts: &[Vec<u8>]| match talk(&parts.concat()).1 {
        Step::Transmit(agreed) => agreed,
        step => panic!("no agreement but {step:?}"),
    };
    let first = message(7, &go(b"first", &[]));
    let second = message(7, &go(b"second", &[]));
    assert!(agreed(&[structured.clone(), set.clone(), first.clone()]).block_status);
    assert!(!agreed(&[structured.clone(), set.clone(), second]).block_status);
    let unset = message(10, &context(b"first", &[]));
    assert!(!agreed(&[structured.clone(), set.clone(), unset, first.clone()]).block_status);
    let failed = message(10, &context(b"third", &[b"base:allocation"]));
    assert!(!agreed(&[structured, set, failed, first]).block_status);
}

#[test]
fn meta_context_queries_match_as_the_protocol_says() {
    let ask = |number, queries: &[&[u8]]| {
        let mut input = message(8, b"");
        input.extend(message(number, &context(b"first", queries)));
        kinds(&input)[1..].to_vec()
    };
    assert_eq!(ask(9, &[]), [4, 1]);
    assert_eq!(ask(9, &[b"base:"]), [4, 1]);
    assert_eq!(ask(9, &[b"qemu:"]), [1]);
    assert_eq!(ask(10, &[]), [1]);
    assert_eq!(ask(10, &[b"base:"]), [1]);
    assert_eq!(ask(10, &[b"x:y", b"base:allocation"]), [4, 1]);
    assert_eq!(ask(10, &[&[b'a'; 5000]]), [TOO_BIG]);
}

#[test]
fn wrong_magic_unknown_client_flags_and_endless_options_close() {
    let mut wrong = message(3, b"");
    wrong[0] = b'X';
    assert_eq!(talk(&wrong).1, Step::Close);
    let mut handshake = Handshake::start(Security::None, &mut Vec::new());
    let (_, step) = handshake.advance(&8u32.to_be_bytes(), &exports(), &mut Vec::new());
    assert_eq!(step, Step::Close);
    let (replies, step) = talk(&message(99, b"").repeat(2000));
    assert_eq!((replies.len(), step), (1024, Step::Close));
}

proptest! {
    /// Any mutation of a sensible talk, in any pieces, ends in a step, uses no
    /// more than it was given, and says the same as in one piece.
    #[test]
    fn mutated_talks_never_panic_and_do_not_depend_on_packets(
        edits in prop::collection::vec((0usize..400, any::<u8>()), 0..12),
        cut in 1usize..64,
    ) {
        let mut input = 3u32.to_be_bytes().to_vec();
        input.extend(message(8, b""));
        input.extend(message(9, &context(b"first", &[b"base:"])));
        input.extend(message(10, &context(b"first", &[b"base:allocation", b"a:b"])));
        input.extend(message(3, b""));
        input.extend(message(6, &go(b"second", &[0, 1, 2, 3, 77])));
        input.extend(message(7, &go(b"first", &[3])));
        for (at, byte) in edits {
            let len = input.len();
            input[at % len] = byte;
        }
        let exports = exports();
        let feed = |piece_bytes: usize| {
            let mut out = Vec::new();
            let mut handshake = Handshake::start(Security::Offered, &mut out);
            let (mut at, mut given) = (0, 0);
            loop {
                let (used, step) = handshake.advance(&input[at..given], &exports, &mut out);
                assert!(used <= given - at);
                at += used;
                match step {
                    Step::More if given == input.len() => return (out, None),
                    Step::More => given = input.len().min(given + piece_bytes),
                    Step::Replied => {}
                    step => return (out, Some(step)),
                }
            }
        };
        prop_assert_eq!(feed(cut), feed(usize::MAX >> 1));
    }
}

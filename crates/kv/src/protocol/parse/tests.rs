use proptest::prelude::*;

use super::*;
use crate::protocol::{Direction, Exptime, Retrieval, Store, StoreMode};

/// What a stream comes to, told so that two ways through it can be compared.
fn steps(pieces: &[&[u8]], limits: Limits) -> Vec<String> {
    let mut parser = Parser::new(limits);
    let mut buffer = Vec::new();
    let mut told = Vec::new();
    let mut skipped = 0;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            let step = parser.parse(&buffer);
            let taken = match step {
                Step::More { needed } => {
                    assert!(needed > buffer.len(), "waits for what is there");
                    break;
                }
                Step::Close(reason) => {
                    told.push(format!("{reason:?}"));
                    return told;
                }
                Step::Skipped { taken } => {
                    skipped += taken;
                    taken
                }
                Step::Request { taken, .. } | Step::Refused { taken, .. } => {
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    taken
                }
            };
            assert!(taken > 0 && taken <= buffer.len(), "{taken}");
            buffer.drain(..taken);
        }
    }
    told.push(format!("skipped {skipped}, left {}", buffer.len()));
    told
}

fn only(text: &[u8]) -> Step<'_> {
    Parser::new(Limits::default()).parse(text)
}

fn error(text: &str) -> (String, bool) {
    match only(text.as_bytes()) {
        Step::Refused { refusal, .. } => (refusal.error.to_string(), refusal.is_silent),
        step => panic!("{text:?} is {step:?}"),
    }
}

#[test]
fn a_set_needs_its_value() {
    let text = b"set k 5 60 3 noreply\r\nabc\r\nget k\r\n";
    for length in 0..27 {
        assert!(matches!(only(&text[..length]), Step::More { needed } if needed > length));
    }
    assert_eq!(only(&text[..22]), Step::More { needed: 27 });
    let store = Store {
        mode: StoreMode::Set,
        key: b"k",
        client_flags: 5,
        exptime: Exptime(60),
        cas: 0,
        value: b"abc",
        noreply: true,
    };
    let request = Request::Store(store);
    assert_eq!(only(text), Step::Request { request, taken: 27 });
}

#[test]
fn a_get_has_as_many_keys_as_it_likes() {
    let text = format!("gats -1{}\n", " key".repeat(1000));
    let Step::Request { request, taken } = only(text.as_bytes()) else {
        panic!("no request");
    };
    assert_eq!(taken, text.len());
    let Request::Get(Retrieval {
        keys,
        with_cas,
        touch,
    }) = request
    else {
        panic!("{request:?}");
    };
    assert_eq!((keys.count(), with_cas), (1000, true));
    assert_eq!(touch, Some(Exptime(-1)));
}

#[test]
fn faults_have_memcacheds_words_and_noreply_hides_them() {
    let long = "k".repeat(251);
    let format = "CLIENT_ERROR bad command line format";
    let usage = "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]";
    let exptime = "CLIENT_ERROR invalid exptime argument";
    for (line, expected) in [
        ("", ("ERROR", false)),
        ("\r", ("ERROR", false)),
        ("get", ("ERROR", false)),
        ("gat x a", (exptime, false)),
        (&format!("get a {long}"), (format, false)),
        (&format!("set {long} 0 0 1"), (format, false)),
        ("set k 0 0", ("ERROR", false)),
        ("set k 0 0 1 2 3", ("ERROR", false)),
        ("set k 0 0 -1", (format, false)),
        ("set k 0 0 2147483646", (format, false)),
        ("set k 0 0 noreply", (format, true)),
        ("set k x 0 1 noreply", (format, true)),
        ("cas k 0 0 1", ("ERROR", false)),
        ("cas k 0 0 1 noreply", (format, true)),
        ("delete k x", (usage, false)),
        ("delete k x noreply", (usage, true)),
        ("delete k 0 0", (usage, false)),
        ("delete k 0 0 noreply", ("ERROR", false)),
        ("incr k", ("ERROR", false)),
        (
            "incr k x",
            ("CLIENT_ERROR invalid numeric delta argument", false),
        ),
        ("touch k x", (exptime, false)),
        ("touch k noreply", (exptime, true)),
        ("flush_all x", (exptime, false)),
        ("flush_all 1 2 3", ("ERROR", false)),
        ("verbosity", ("ERROR", false)),
        ("verbosity noreply", (format, true)),
        ("shutdown", ("ERROR: shutdown not enabled", false)),
        ("mg", ("ERROR", false)),
        ("mg k v v", ("CLIENT_ERROR duplicate flag", false)),
        ("mg k \u{e9}", ("CLIENT_ERROR duplicate flag", false)),
        ("mg k Tx Z", ("CLIENT_ERROR invalid flag", false)),
        (
            "mg k Cx Fx",
            ("CLIENT_ERROR bad token in command line format", false),
        ),
        ("mg k Fx", (format, false)),
        ("mg ! b", ("CLIENT_ERROR error decoding key", false)),
        ("ms k", (format, false)),
        ("ms k S1", (format, false)),
        ("md k Z", ("CLIENT_ERROR invalid or duplicate flag", false)),
        (
            "ma k MZ",
            ("CLIENT_ERROR invalid mode for ma M token", false),
        ),
        ("me", (format, false)),
        ("mx k", ("ERROR", false)),
        ("nonsense", ("ERROR", false)),
    ] {
        let expected = (expected.0.to_owned(), expected.1);
        assert_eq!(error(&format!("{line}\r\n")), expected, "{line:?}");
        if line != "\r" && !line.is_empty() {
            assert_eq!(error(&format!("{line}\n")), expected, "{line:?}");
        }
    }
}

#[test]
fn what_follows_a_refused_value_is_read_again_or_passed_over() {
    let limits = Limits {
        item_bytes_max: 100,
        ..Limits::default()
    };
    let told = |text: &str| steps(&[text.as_bytes()], limits).join("\n");
    // 41 bytes of key and value are too many beside the overhead.
    let large = format!("set k 0 0 41\r\n{}\r\nmn\r\n", "x".repeat(41));
    let large = told(&large);
    assert!(
        large.contains("TooLarge") && large.contains("forget: Some"),
        "{large}"
    );
    assert!(
        large.contains("skipped 43, then Request { request: MetaNoop"),
        "{large}"
    );
    let large = told(&format!("add k 0 0 41\r\n{}\r\n", "x".repeat(41)));
    assert!(large.contains("forget: None"), "{large}");
    let short = told("set k 0 0 1\r\nabc\r\nmn\r\n");
    assert!(
        short.contains("BadChunk") && short.contains("skipped 0, left 0"),
        "{short}"
    );
    // The line end behind the value's three bytes is a line of its own.
    assert_eq!(short.matches("error: Unknown").count(), 1, "{short}");
    let flag = told("ms k 2 Z\r\nab\r\nmn\r\n");
    assert!(
        flag.contains("skipped 4, then Request { request: MetaNoop"),
        "{flag}"
    );
}

#[test]
fn a_line_without_end_closes_unless_it_is_a_get() {
    let close = Step::Close(CloseReason::LineTooLong);
    assert_eq!(only(&[b'x'; 2049]), close);
    assert!(matches!(only(&[b'x'; 2048]), Step::More { .. }));
    let mut ended = vec![b'x'; 2049];
    ended.push(b'\n');
    assert_eq!(only(&ended), close);
    let get = [b"get ".to_vec(), vec![b'x'; 1_000_000]].concat();
    assert!(matches!(only(&get), Step::More { .. }));
    let get = [b"get ".to_vec(), vec![b'x'; 1 << 20]].concat();
    assert_eq!(only(&get), close);
}

#[test]
fn what_looks_like_http_closes() {
    let close = Step::Close(CloseReason::Http);
    for line in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"POST /a HTTP/1.0\r\nset k 0 0 1\r\n",
        b"PRI * HTTP/2.0\r\n",
    ] {
        assert_eq!(only(line), close);
    }
    for line in [
        &b"GET / HTTP\r\n"[..],
        b"GET HTTP/1.1 /\r\n",
        b"delete a b c d HTTP/1.1\r\n",
    ] {
        assert!(matches!(only(line), Step::Refused { .. }));
    }
    // These are keys.
    assert!(matches!(only(b"get / HTTP/1.1\r\n"), Step::Request { .. }));
}

#[test]
fn the_flags_of_meta_commands_are_read() {
    let Step::Request { request, .. } = only(b"ms Zm9v 2 b k MA C7 T-1 F9 I q Oxy\r\nhi\r\n")
    else {
        panic!("no request");
    };
    let Request::MetaSet(set) = request else {
        panic!("{request:?}");
    };
    assert_eq!(set.key.bytes(&mut [0; 250]), b"foo");
    assert_eq!((set.mode, set.cas), (StoreMode::Append, 7));
    assert_eq!((set.exptime, set.client_flags), (Exptime(-1), 9));
    assert!(set.is_quiet && !set.invalidates);
    assert_eq!(set.value, b"hi");
    let letters: Vec<u8> = set.flags.map(|flag| flag.letter).collect();
    assert_eq!(letters, b"bkMCTFIqO");
    let Step::Request { request, .. } = only(b"ma k N5 J13 D3 MD T9\r\n") else {
        panic!("no request");
    };
    let Request::MetaArithmetic(arithmetic) = request else {
        panic!("{request:?}");
    };
    assert_eq!(arithmetic.direction, Direction::Down);
    assert_eq!((arithmetic.delta, arithmetic.initial), (3, 13));
    assert_eq!(arithmetic.vivify, Some(Exptime(5)));
    assert_eq!(arithmetic.touch, Some(Exptime(9)));
}

#[test]
fn later_flags_need_the_later_dialect() {
    let later = Limits {
        dialect: crate::protocol::Dialect::Later,
        ..Limits::default()
    };
    assert_eq!(
        error("md k x\r\n").0,
        "CLIENT_ERROR invalid or duplicate flag"
    );
    let step = Parser::new(later).parse(b"md k x\r\n");
    let Step::Request { request, .. } = step else {
        panic!("{step:?}");
    };
    let Request::MetaDelete(delete) = request else {
        panic!("{request:?}");
    };
    assert!(delete.removes_value);
}

/// Pieces of requests, so that random streams come upon commands.
fn fragment() -> impl Strategy<Value = Vec<u8>> {
    let known = prop::sample::select(vec![
        "get ",
        "gets ",
        "gat ",
        "set ",
        "cas ",
        "append ",
        "delete ",
        "incr ",
        "touch ",
        "flush_all ",
        "verbosity ",
        "stats ",
        "mg ",
        "ms ",
        "md ",
        "ma ",
        "me ",
        "mn",
        "noreply",
        "0 ",
        "1 ",
        "3 ",
        "-1 ",
        "99999999999 ",
        "50 ",
        "key ",
        "Zm9v ",
        "b ",
        "v ",
        "k ",
        "T0 ",
        "Ofoo ",
        "q ",
        "MA ",
        "C1 ",
        "Z ",
        "\r\n",
        "\n",
        "\r\n",
        "abc\r\n",
        " ",
        "\0",
        "\t",
    ])
    .prop_map(|text| text.as_bytes().to_vec());
    prop_oneof![9 => known, 1 => prop::collection::vec(any::<u8>(), 0..60)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn how_a_stream_is_cut_changes_nothing(
        fragments in prop::collection::vec(fragment(), 0..60),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let limits = Limits {
            item_bytes_max: 100,
            line_bytes_max: 110,
            multiget_bytes_max: 150,
            ..Limits::default()
        };
        let stream = fragments.concat();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        at.extend([0, stream.len()]);
        at.sort_unstable();
        let pieces: Vec<&[u8]> = at.windows(2).map(|ends| &stream[ends[0]..ends[1]]).collect();
        let whole = steps(&[&stream], limits);
        prop_assert_eq!(&whole, &steps(&pieces, limits));
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        prop_assert_eq!(&whole, &steps(&bytes, limits));
    }

    #[test]
    fn any_bytes_are_taken_to_their_end(
        bytes in prop::collection::vec(prop_oneof![3 => any::<u8>(), 1 => Just(b'\n'), 1 => Just(b' ')], 0..2000),
    ) {
        // Refuses a panic, a step that takes nothing and one that takes more than there is.
        let limits = Limits { line_bytes_max: 4000, ..Limits::default() };
        let told = steps(&[&bytes, b"\r\nmn\r\n"], limits);
        prop_assert!(told.last().unwrap().ends_with("left 0"), "{told:?}");
        prop_assert!(told[told.len() - 2].contains("MetaNoop"), "{told:?}");
    }
}

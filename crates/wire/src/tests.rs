use super::*;

messages! {
    /// A place.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    struct Place {
        x: u16,
        y: u64,
    }

    /// A range that is not empty.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    struct Range checked by Range::check {
        from: u32,
        to: u32,
    }

    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    enum Colour | "an unknown colour" {
        1 => Red,
        4 => Blue,
    }

    #[derive(Clone, Debug, Eq, PartialEq)]
    enum Message<'a> | "an unknown message" {
        1 => Nothing,
        2 => Paint(Colour),
        3 => Named {
            id: Id,
            name: String as Text<u8, 4>,
            is_new: bool,
        },
        4 => Places {
            places: Vec<Place> as List<u16, 1, 3> | "no places, or too many",
            bytes: &'a [u8] as Bytes<u32, 5>,
        },
        5 => Many(Vec<(u8, u16, Range)> as ListToEnd<1, 2> | "many"),
        6 => Copied {
            place: Box<Place>,
            key: [u8; 3],
            rest: Vec<u8> as Rest<4>,
        },
        7 => Borrowed(&'a [u8] as Rest<4>),
        8 => Grown {
            old: u8,
            new: u128 as Since<2>,
            newest: String as Since<3, Text<u8, 4>>,
        },
        9 => Vector(Vec<u8> as Bytes<u8, 4>),
    }

    for Id { 0 }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Id(u32);

impl Range {
    fn check(&self) -> Result<(), Malformed> {
        if self.from < self.to {
            Ok(())
        } else {
            Err(Malformed("an empty range"))
        }
    }
}

/// Each message with the bytes that it has.
fn samples() -> Vec<(Message<'static>, Vec<u8>)> {
    let place = Place { x: 0x0102, y: 3 };
    let place_bytes = [2, 1, 3, 0, 0, 0, 0, 0, 0, 0];
    vec![
        (Message::Nothing, vec![1]),
        (Message::Paint(Colour::Blue), vec![2, 4]),
        (
            Message::Named {
                id: Id(5),
                name: "ä".to_owned(),
                is_new: true,
            },
            vec![3, 5, 0, 0, 0, 2, 0xc3, 0xa4, 1],
        ),
        (
            Message::Places {
                places: vec![place],
                bytes: b"ab",
            },
            [&[4, 1, 0][..], &place_bytes, &[2, 0, 0, 0, b'a', b'b']].concat(),
        ),
        (
            Message::Many(vec![(1, 2, Range { from: 3, to: 4 })]),
            vec![5, 1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0],
        ),
        (
            Message::Copied {
                place: Box::new(place),
                key: *b"key",
                rest: vec![9, 8],
            },
            [&[6][..], &place_bytes, b"key", &[9, 8]].concat(),
        ),
        (Message::Borrowed(b"abc"), vec![7, b'a', b'b', b'c']),
        (Message::Vector(vec![7]), vec![9, 1, 7]),
    ]
}

fn written(message: &Message<'_>, version: u8) -> Vec<u8> {
    let mut out = Vec::new();
    Writer::of_version(version, &mut out).put(message);
    out
}

fn read(bytes: &[u8]) -> Result<Message<'_>, Malformed> {
    Reader::new(bytes).whole()
}

#[test]
fn a_declaration_says_the_bytes_and_both_directions_follow_it() {
    for (message, bytes) in samples() {
        assert_eq!(written(&message, 1), bytes);
        assert_eq!(read(&bytes), Ok(message));
    }
}

#[test]
fn what_is_cut_or_longer_is_refused() {
    for (message, bytes) in samples() {
        for len in 0..bytes.len() {
            let is_shorter_one = matches!(message, Message::Copied { .. } | Message::Borrowed(_));
            if let Ok(other) = read(&bytes[..len]) {
                assert!(is_shorter_one, "{other:?} of {message:?}");
            }
        }
        let longer = [&bytes[..], &[0; 5]].concat();
        assert!(read(&longer).is_err(), "{message:?}");
    }
    assert_eq!(read(&[1, 0]), Err(Malformed("bytes after the end")));
    assert_eq!(read(&[]), Err(Malformed("message ends early")));
}

#[test]
fn what_breaks_a_bound_is_named() {
    for (bytes, wrong) in [
        (&[0][..], "an unknown message"),
        (&[2, 2], "an unknown colour"),
        (&[3, 0, 0, 0, 0, 5], "text is too long"),
        (&[3, 0, 0, 0, 0, 1, 0xff], "text is not UTF-8"),
        (&[3, 0, 0, 0, 0, 0, 2], "truth value is not 0 or 1"),
        (&[4, 0, 0], "no places, or too many"),
        (&[4, 4, 0], "no places, or too many"),
        (&[4, 3, 0, 0], "message ends early"),
        (&[5], "many"),
        (&[5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "an empty range"),
        (&[7, 0, 0, 0, 0, 0], "too many bytes"),
        (&[9, 5], "too many bytes"),
    ] {
        assert_eq!(read(bytes), Err(Malformed(wrong)), "{bytes:?}");
    }
    let three = [1, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0].repeat(3);
    assert_eq!(read(&[&[5][..], &three].concat()), Err(Malformed("many")));
    assert_eq!(Malformed::ITEMS.to_string(), "too many items, or too few");
}

#[test]
fn a_count_is_not_believed_before_the_bytes_are_there() {
    let claimed = u32::MAX.to_le_bytes();
    let mut input = Reader::new(&claimed);
    let taken = input.take_as::<List<u32, 0, { usize::MAX }>, Vec<u64>>();
    assert_eq!(taken, Err(Malformed("message ends early")));
}

#[test]
fn what_a_later_version_added_is_left_out_of_an_earlier_one() {
    let grown = |new, newest: &str| Message::Grown {
        old: 1,
        new,
        newest: newest.to_owned(),
    };
    let message = grown(2, "3");
    let kept = [grown(0, ""), grown(2, ""), message.clone()];
    for (version, kept) in (1..).zip(kept) {
        let bytes = written(&message, version);
        assert_eq!(bytes.len(), [2, 18, 20][usize::from(version) - 1]);
        let input = Reader::of_version(version, &bytes);
        assert_eq!(input.version(), version);
        assert_eq!(input.whole(), Ok(kept));
    }
}

#[test]
#[should_panic(expected = "4, not 1 to 3")]
fn a_list_beyond_its_bound_is_not_written() {
    let places = vec![Place { x: 1, y: 1 }; 4];
    written(&Message::Places { places, bytes: &[] }, 1);
}

#[test]
#[should_panic(expected = "5, not 0 to 4")]
fn a_text_beyond_its_bound_is_not_written() {
    let message = Message::Named {
        id: Id(1),
        name: "abcde".to_owned(),
        is_new: false,
    };
    written(&message, 1);
}

#[test]
#[should_panic(expected = "256 of something that is counted in fewer bits")]
fn a_count_that_its_bits_do_not_hold_is_not_written() {
    let mut out = Vec::new();
    let bytes = vec![0; 256];
    Writer::new(&mut out).put_as::<Bytes<u8, 300>, _>(&bytes);
}

#[test]
fn a_lenient_writer_leaves_bounds_to_the_reader() {
    let place = Place { x: 1, y: 1 };
    for message in [
        Message::Places {
            places: vec![place; 4],
            bytes: b"",
        },
        Message::Many(Vec::new()),
        Message::Borrowed(b"12345"),
        Message::Vector(vec![0; 5]),
    ] {
        let mut out = Vec::new();
        Writer::lenient(&mut out).put(&message);
        assert!(read(&out).is_err(), "{message:?}");
    }
}

#[test]
fn the_numbers_of_an_enum_without_fields_are_its_discriminants() {
    assert_eq!(Colour::Blue as u8, 4);
    let mut rest = Reader::new(&[9]);
    assert_eq!(Colour::take_tagged(1, &mut rest), Ok(Colour::Red));
    assert_eq!(rest.left(), 1, "what follows is not read");
}

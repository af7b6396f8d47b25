use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::message::tests::message;
use crate::{Access, CacheId, Grants, ProcedureId};

fn text(most: usize) -> impl Strategy<Value = String> {
    vec(prop::char::range('a', 'z'), 0..most).prop_map(|chars| chars.into_iter().collect())
}

fn any_grants() -> impl Strategy<Value = Grants> {
    let access = |writes| {
        if writes {
            Access::ReadWrite
        } else {
            Access::Read
        }
    };
    let caches = vec((any::<u128>(), any::<bool>()), 0..6);
    prop_oneof![
        any::<bool>().prop_map(move |writes| Grants::All(access(writes))),
        caches.prop_map(move |caches| {
            let one = |(cache, writes)| (CacheId(cache), access(writes));
            Grants::Caches(caches.into_iter().map(one).collect())
        }),
    ]
}

fn any_slab() -> impl Strategy<Value = SlabWord> {
    any::<(u32, u64, u32, u64)>().prop_flat_map(|(slab, generation, number, window)| {
        let named = Named {
            window: number,
            generation: window,
        };
        (0..6).prop_map(move |kind| SlabWord {
            slab,
            generation,
            place: match kind {
                0 => SlabPlace::Nowhere,
                1 => SlabPlace::At(number),
                2 => SlabPlace::Here(named),
                3 => SlabPlace::Leaving(named),
                4 => SlabPlace::First {
                    named,
                    second: number,
                },
                _ => SlabPlace::Second {
                    named,
                    first: number,
                },
            },
        })
    })
}

fn word() -> impl Strategy<Value = Word> {
    let opened = (
        any::<(u128, u64, u32, (u8, bool), u32)>(),
        vec(text(20), 0..5),
        vec(any::<u128>(), 0..5),
    );
    let map = (any::<(u128, u64)>(), vec(any_slab(), 0..20));
    prop_oneof![
        opened.prop_map(
            |((cache, slab_bytes, slabs, (writing, leased), me), machines, users)| {
                Word::Open(Opened {
                    cache: CacheId(cache),
                    slab_bytes,
                    slabs,
                    writing: match writing % 3 {
                        0 => Writing::Denied,
                        1 => Writing::Direct,
                        _ => Writing::Replicated,
                    },
                    leased,
                    me,
                    machines,
                    users,
                })
            }
        ),
        map.prop_map(|((cache, writes_until), slabs)| Word::Map {
            cache: CacheId(cache),
            writes_until,
            slabs,
        }),
        any::<(u128, u32)>().prop_map(|(cache, successor)| Word::Leave {
            cache: CacheId(cache),
            successor,
        }),
        any::<u128>().prop_map(|cache| Word::Close {
            cache: CacheId(cache)
        }),
        any::<u128>().prop_map(|cache| Word::Write {
            cache: CacheId(cache)
        }),
        (any::<u128>(), vec(any::<(u32, u64)>(), 0..9)).prop_map(|(cache, doubts)| {
            let doubt = |(slab, generation)| Doubt { slab, generation };
            let doubts = doubts.into_iter().map(doubt).collect();
            let cache = CacheId(cache);
            Word::Told { cache, doubts }
        }),
    ]
}

fn order() -> impl Strategy<Value = Order> {
    let label = (any::<(u32, u32, u32)>(), text(NAME_MAX), any_grants());
    prop_oneof![
        any::<u32>().prop_map(|skip| Order::List { skip }),
        label.prop_map(|((id, version, len_bytes), name, grants)| {
            Order::Begin(Label {
                id: ProcedureId(id),
                name,
                version,
                grants,
                len_bytes,
            })
        }),
        (any::<u32>(), vec(any::<u8>(), 0..99))
            .prop_map(|(offset, bytes)| Order::Piece { offset, bytes }),
        Just(Order::Ask),
        any::<u32>().prop_map(|id| Order::Remove(ProcedureId(id))),
    ]
}

fn told() -> impl Strategy<Value = Told> {
    let row = (any::<(u32, u32, bool)>(), text(NAME_MAX), any_grants()).prop_map(
        |((id, version, native), name, grants)| Row {
            id: ProcedureId(id),
            name,
            version,
            native,
            grants,
            checksum: u64::from(id) * 7,
        },
    );
    prop_oneof![
        (any::<u32>(), vec(row, 0..9)).prop_map(|(total, rows)| Told::List { total, rows }),
        Just(Told::Going),
        Just(Told::Loaded),
        Just(Told::Kept),
        any::<bool>().prop_map(Told::Removed),
        text(99).prop_map(Told::Refused),
    ]
}

fn errand() -> impl Strategy<Value = Errand> {
    (message(), any::<(u128, u32, u64)>()).prop_filter_map(
        "travels between machines",
        |(message, (user, home, ticket))| match message {
            Message::Responses(responses) => Some(Errand::Answers(responses)),
            Message::Fetch(fetch) => Some(Errand::Fetch(fetch)),
            Message::Replicate(replicate) => Some(Errand::Replicate(replicate)),
            Message::Moved(moved) => Some(Errand::Move(Travel {
                user,
                home,
                ticket,
                moved,
            })),
            _ => None,
        },
    )
}

/// Written, read, cut, lengthened and damaged.
macro_rules! holds {
    ($what:expr, $skip:expr, $read:expr, $cut:expr, $byte:expr) => {{
        let mut bytes = Vec::new();
        $what.write(&mut bytes);
        let body = bytes.split_off($skip);
        prop_assert_eq!(&$read(&body), &Ok($what.clone()));
        let cut = $cut.index(body.len());
        prop_assert!($read(&body[..cut]).is_err());
        let mut damaged = body.clone();
        damaged[cut] = $byte;
        // What is taken has one form.
        if let Ok(other) = $read(&damaged) {
            let mut again = Vec::new();
            other.write(&mut again);
            prop_assert_eq!(&again[$skip..], &damaged[..]);
        }
        let mut longer = body;
        longer.push(0);
        let is_longer = $read(&longer).is_ok_and(|read| read == $what);
        prop_assert!(!is_longer);
    }};
}

proptest! {
    #[test]
    fn words_are_read_in_one_way(
        word in word(), cut in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        holds!(word, 1, Word::read, cut, byte);
    }

    #[test]
    fn orders_are_read_in_one_way(
        order in order(), told in told(), cut in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        holds!(order, 1, Order::read, cut, byte);
        holds!(told, 0, Told::read, cut, byte);
    }

    #[test]
    fn errands_are_read_in_one_way(
        errand in errand(), cut in any::<prop::sample::Index>(), byte in any::<u8>(),
    ) {
        holds!(errand, 1, Errand::read, cut, byte);
    }

    #[test]
    fn bytes_of_anybody_are_read_or_refused(bytes in vec(any::<u8>(), 0..300), kind in 0u8..9) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Ok(word) = Word::read(&bytes) {
            let mut again = Vec::new();
            word.write(&mut again);
            prop_assert_eq!(&again[1..], &bytes[..]);
        }
        if let Ok(order) = Order::read(&bytes) {
            let mut again = Vec::new();
            order.write(&mut again);
            prop_assert_eq!(&again[1..], &bytes[..]);
        }
        drop((Errand::read(&bytes), Told::read(&bytes), Heard::read(&bytes)));
        drop((Taking::read(&bytes), read_data(&bytes)));
    }
}

#[test]
fn answers_to_words_are_read_as_they_were_written() {
    let refused = [
        WordRefusal::NotYours,
        WordRefusal::Unknown,
        WordRefusal::Shape,
        WordRefusal::Full,
    ];
    let refused = refused.into_iter().map(Heard::Refused);
    let doubt = Doubt {
        slab: 5,
        generation: 9,
    };
    let said = [
        (WriteState::Idle, vec![]),
        (WriteState::Idle, vec![doubt]),
        (WriteState::Writes, vec![]),
        (WriteState::Wants, vec![doubt; 2]),
    ];
    let taken = said.map(|(state, doubts)| Heard::Taken {
        now: 7,
        missing: 3,
        state,
        doubts,
    });
    for heard in refused.chain(taken) {
        let mut bytes = Vec::new();
        heard.write(&mut bytes);
        assert_eq!(Heard::read(&bytes), Ok(heard));
    }
}

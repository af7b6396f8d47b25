use proptest::prelude::*;

use super::*;
use crate::owner::Access;

const SLAB_BYTES: u64 = 1 << 20;

fn entry() -> impl Strategy<Value = Entry> {
    let copy = (
        0_usize..4096,
        0_u8..8,
        proptest::collection::vec(any::<(u32, u64)>(), 1..5),
    );
    let copies = proptest::collection::vec(copy, 1..3);
    (0_u32..1 << 16, any::<u64>(), any::<u32>(), 0_u8..4, copies).prop_map(
        |(region, generation, losses, access, copies)| Entry {
            region,
            generation,
            access: Reader::new(&[access]).whole().expect("one of four"),
            copies: copies
                .into_iter()
                .map(|(host, rights, names)| {
                    let window = |(id, generation)| Window {
                        id,
                        generation,
                        len_bytes: SLAB_BYTES,
                        rights,
                    };
                    Copy::new(host, names.into_iter().map(window).collect())
                })
                .collect(),
            losses,
            fell_back_ms: generation / 3,
            next: Vec::new(),
        },
    )
}

fn to_manager() -> impl Strategy<Value = ToManager> {
    prop_oneof![
        any::<u16>().prop_map(|version| ToManager::Join { version }),
        any::<u64>().prop_map(|asked_at| ToManager::Alive { asked_at }),
        proptest::collection::vec(any::<(u32, u64)>(), 0..20).prop_map(ToManager::Known),
        any::<u16>().prop_map(|host| ToManager::Trouble { host }),
        any::<(u32, u64)>()
            .prop_map(|(region, generation)| ToManager::Doubt { region, generation }),
        Just(ToManager::Leave),
        (any::<u32>(), proptest::collection::vec(any::<u8>(), 0..50))
            .prop_map(|(number, question)| ToManager::Ask { number, question }),
    ]
}

fn to_client() -> impl Strategy<Value = ToClient> {
    let text = "[a-z0-9:./]{0,40}";
    prop_oneof![
        (
            any::<(u16, u128, u64)>(),
            1_u32..64,
            0_u16..4096,
            1_u32..30,
            0_u32..30
        )
            .prop_map(|((version, cache, epoch), slabs_per_region, hosts, c, s)| {
                ToClient::Welcome(Welcome {
                    version,
                    cache,
                    epoch,
                    slab_bytes: SLAB_BYTES,
                    slabs_per_region,
                    hosts,
                    configuration: Configuration { c, s, b: 7, q: 16 },
                })
            }),
        (any::<u16>(), text, text, text).prop_map(|(number, name, address, domain)| {
            ToClient::Host {
                number,
                name,
                address,
                domain,
            }
        }),
        entry().prop_map(ToClient::Entry),
        any::<u64>().prop_map(|asked_at| ToClient::Lease { asked_at }),
        Just(ToClient::Unknown),
        (
            any::<(u32, bool)>(),
            proptest::collection::vec(any::<u8>(), 0..50)
        )
            .prop_map(|((number, is_last), part)| ToClient::Answer {
                number,
                is_last,
                part
            }),
        (1_u8..5).prop_map(|reason| ToClient::Refused(match reason {
            1 => Refusal::Full,
            2 => Refusal::Version,
            3 => Refusal::Ending,
            _ => Refusal::Superseded,
        })),
    ]
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_back(ours in to_manager(), theirs in to_client()) {
        prop_assert_eq!(ToManager::decode(&ours.encode()), Ok(ours));
        prop_assert_eq!(ToClient::decode(&theirs.encode(), SLAB_BYTES), Ok(theirs));
    }

    #[test]
    fn damaged_and_random_bytes_are_refused_or_read_and_never_more(
        theirs in to_client(),
        ours in to_manager(),
        random in proptest::collection::vec(any::<u8>(), 0..200),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let damaged = |mut bytes: Vec<u8>| {
            for (at, with) in &flips {
                let at = at.index(bytes.len());
                bytes[at] ^= with;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            bytes
        };
        for bytes in [damaged(theirs.encode()), random.clone()] {
            if let Ok(message) = ToClient::decode(&bytes, SLAB_BYTES) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
        for bytes in [damaged(ours.encode()), random] {
            if let Ok(message) = ToManager::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}

#[test]
fn an_entry_of_as_many_slabs_as_may_be_fits_into_a_message() {
    let window = Window {
        id: u32::MAX,
        generation: u64::MAX,
        len_bytes: SLAB_BYTES,
        rights: 7,
    };
    let copy = |host| Copy::new(host, vec![window; ENTRY_SLABS_MAX / 2]);
    let entry = Entry {
        region: 1,
        generation: 1,
        access: Access::Open,
        copies: vec![copy(0), copy(1)],
        losses: 0,
        fell_back_ms: 0,
        next: Vec::new(),
    };
    let bytes = ToClient::Entry(entry).encode();
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{}", bytes.len());
}

#[test]
fn what_no_manager_says_is_refused() {
    let welcome = Welcome {
        version: VERSION,
        cache: 7,
        epoch: 1,
        slab_bytes: u64::MAX,
        slabs_per_region: 2,
        hosts: 1,
        configuration: Configuration {
            c: 1,
            s: 0,
            b: 1,
            q: 16,
        },
    };
    let bytes = ToClient::Welcome(welcome).encode();
    let refused = Malformed("a region of no byte, or too many");
    assert_eq!(ToClient::decode(&bytes, 1), Err(refused));
    let entry = Entry {
        region: 1,
        generation: 1,
        access: Access::Open,
        copies: Vec::new(),
        losses: 0,
        fell_back_ms: 0,
        next: Vec::new(),
    };
    let bytes = ToClient::Entry(entry).encode();
    let refused = Malformed("a region of no copy, or of too many");
    assert_eq!(ToClient::decode(&bytes, 1), Err(refused));
    let known = ToManager::Known(vec![(1, 1); KNOWN_MAX + 1]).encode();
    assert_eq!(
        ToManager::decode(&known),
        Err(Malformed("too many regions"))
    );
}

mod versions;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn window() -> impl Strategy<Value = Window> {
    any::<(u32, u64, u64, u8)>().prop_map(|(id, generation, len_bytes, rights)| Window {
        id,
        generation,
        len_bytes,
        rights,
    })
}

fn text(bytes_max: usize) -> impl Strategy<Value = String> {
    "[ -~]{0,255}".prop_map(move |mut text| {
        text.truncate(bytes_max);
        text
    })
}

fn source() -> impl Strategy<Value = Source> {
    (any::<u8>(), text(ADDRESS_BYTES_MAX), window()).prop_map(|(split, address, window)| Source {
        split,
        address,
        window,
    })
}

fn activity() -> impl Strategy<Value = SlabActivity> {
    (window(), any::<u32>()).prop_map(|(window, milli)| SlabActivity { window, milli })
}

fn request() -> impl Strategy<Value = Request> {
    let fill = (
        any::<(u64, u8, u8, u8, u64, u64)>(),
        window(),
        vec(source(), 0..=usize::from(K_MAX)),
    );
    prop_oneof![
        Just(Request::Query),
        Just(Request::Status),
        any::<(u64, u128, u32, u8)>().prop_map(|(request, volume, extent, member)| Request::Map {
            request,
            volume,
            extent,
            member
        }),
        window().prop_map(|window| Request::Unmap { window }),
        prop::sample::select(vec![Drain::Off, Drain::On, Drain::Stop]).prop_map(Request::Drain),
        window().prop_map(|window| Request::Decline { window }),
        any::<u32>().prop_map(|skip| Request::Held { skip }),
        Just(Request::Upgrade),
        any::<u64>().prop_map(|sequence| Request::Ping { sequence }),
        any::<(u64, u128, u64)>().prop_map(|(request, volume, epoch)| Request::Own {
            request,
            volume,
            epoch
        }),
        any::<(u64, u128, u32, u8, u64)>().prop_map(|(request, volume, extent, member, birth)| {
            Request::Retake {
                request,
                volume,
                extent,
                member,
                birth,
            }
        }),
        any::<u128>().prop_map(|volume| Request::Leave { volume }),
        (any::<u64>(), vec(activity(), 0..=EVICT_WINDOWS_MAX))
            .prop_map(|(request, slabs)| Request::Activity { request, slabs }),
        any::<(u128, u64)>().prop_map(|(machine, away_bytes)| Request::Here {
            machine,
            away_bytes
        }),
        Just(Request::Awaits),
        (any::<u64>(), window()).prop_map(|(request, window)| Request::Renew { request, window }),
        any::<u32>().prop_map(|within_ms| Request::Notice { within_ms }),
        fill.prop_map(
            |((request, split, k, r, offset, len_bytes), target, sources)| Request::Fill {
                request,
                target,
                split,
                k,
                r,
                offset,
                len_bytes,
                sources
            }
        ),
    ]
}

fn status() -> impl Strategy<Value = HostStatus> {
    let client = (
        text(NAME_BYTES_MAX),
        any::<(u128, u32, u64, bool, u32, u8)>(),
    )
        .prop_map(
            |(name, (id, slabs, last_seen_ms, orphaned, declined, version))| ClientStatus {
                name,
                id,
                slabs,
                last_seen_ms,
                orphaned,
                declined,
                version,
            },
        );
    let counters = any::<[u64; 10]>().prop_map(|c| Counters {
        maps: c[0],
        unmaps: c[1],
        refused: c[2],
        fills: c[3],
        fills_failed: c[4],
        fill_bytes: c[5],
        connections: c[6],
        malformed: c[7],
        leases_expired: c[8],
        orphans_taken: c[9],
    });
    let slabs = any::<[u16; 6]>().prop_map(|s| SlabCounts {
        free: s[0].into(),
        preparing: s[1].into(),
        prepared: s[2].into(),
        mapped: s[3].into(),
        orphaned: s[4].into(),
        retired: s[5].into(),
    });
    let numbers = any::<([u64; 5], bool, u32, bool)>();
    let pressure =
        any::<([bool; 2], [u64; 11], [u32; 2])>().prop_map(|(is, n, slabs)| PressureStatus {
            watched: is[0],
            stalled: is[1],
            total_bytes: n[0],
            used_bytes: n[1],
            free_bytes: n[2],
            headroom_bytes: n[3],
            floor_bytes: n[4],
            slabs_max: slabs[0],
            asked_back: slabs[1],
            evictions_asked: n[5],
            evictions_done: n[6],
            slabs_taken: n[7],
            reclaim_bytes: n[8],
            away_bytes: n[9],
            reclaims: n[10],
        });
    let strangers = any::<[u64; 8]>().prop_map(|s| StrangerCounts {
        accepted: s[0],
        proven: s[1],
        wrong_key: s[2],
        wrong_version: s[3],
        hung_up: s[4],
        late: s[5],
        displaced: s[6],
        waiting: s[7],
    });
    let names = (text(NAME_BYTES_MAX), text(NAME_BYTES_MAX));
    (
        names,
        numbers,
        slabs,
        counters,
        vec(client, 0..=STATUS_CLIENTS_MAX),
        (pressure, strangers),
    )
        .prop_map(
            |(
                (name, domain),
                (n, locked, clients_total, draining),
                slabs,
                counters,
                clients,
                (pressure, strangers),
            )| {
                HostStatus {
                    pressure,
                    strangers,
                    draining,
                    program: domain.clone(),
                    name,
                    domain,
                    incarnation: n[0],
                    uptime_s: n[1],
                    slab_bytes: n[2],
                    memory_bytes: n[3],
                    lent_bytes: n[4],
                    locked,
                    slabs,
                    counters,
                    clients_total,
                    clients,
                }
            },
        )
}

fn held() -> impl Strategy<Value = HeldSlab> {
    (any::<(u128, u32, u8)>(), window()).prop_map(|((volume, extent, member), window)| HeldSlab {
        volume,
        extent,
        member,
        window,
    })
}

fn reply() -> impl Strategy<Value = Reply> {
    let reasons = [
        Refusal::NoMemory,
        Refusal::ClientBound,
        Refusal::Owned,
        Refusal::ShuttingDown,
        Refusal::Superseded,
        Refusal::NotHeld,
    ];
    let result = prop_oneof![
        Just(FillResult::Done),
        any::<u8>().prop_map(|split| FillResult::SourceFailed { split }),
        Just(FillResult::TargetStale),
        Just(FillResult::Bad),
        Just(FillResult::Disagree),
    ];
    prop_oneof![
        (any::<(u64, u32, u32)>(), text(NAME_BYTES_MAX)).prop_map(
            |((slab_bytes, slabs_total, slabs_free), domain)| Reply::Free {
                slab_bytes,
                slabs_total,
                slabs_free,
                domain
            }
        ),
        (any::<u64>(), window()).prop_map(|(request, window)| Reply::Mapped { request, window }),
        (any::<u64>(), prop::sample::select(reasons.to_vec()))
            .prop_map(|(request, reason)| Reply::Refused { request, reason }),
        window().prop_map(|window| Reply::Unmapped { window }),
        any::<(u64, u32)>().prop_map(|(sequence, slabs_free)| Reply::Pong {
            sequence,
            slabs_free
        }),
        (any::<u64>(), result).prop_map(|(request, result)| Reply::Filled { request, result }),
        status().prop_map(|status| Reply::Status(Box::new(status))),
        vec(window(), 1..=EVICT_WINDOWS_MAX).prop_map(|windows| Reply::Evict { windows }),
        (any::<u32>(), vec(held(), 0..=HELD_SLABS_MAX))
            .prop_map(|(skip, slabs)| Reply::Held { skip, slabs }),
        any::<(u64, u32)>().prop_map(|(request, slabs)| Reply::Owned { request, slabs }),
        (any::<u64>(), vec(window(), 1..=EVICT_WINDOWS_MAX))
            .prop_map(|(request, windows)| Reply::CheckActivity { request, windows }),
        any::<u64>().prop_map(|bytes| Reply::Reclaim { bytes }),
        any::<u32>().prop_map(|back_within_ms| Reply::HandsOver { back_within_ms }),
        any::<u32>().prop_map(|within_ms| Reply::Notice { within_ms }),
    ]
}

proptest! {
    #[test]
    fn requests_survive_the_wire_within_the_bound(request in request()) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Request::decode(&bytes), Ok(request));
    }

    #[test]
    fn replies_survive_the_wire_within_the_bound(reply in reply()) {
        let mut bytes = Vec::new();
        reply.encode(&mut bytes);
        prop_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Reply::decode(&bytes), Ok(reply));
    }

    #[test]
    fn damaged_messages_are_refused_or_are_exactly_another_message(
        request in request(),
        reply in reply(),
        at: prop::sample::Index,
        value: u8,
        cut: prop::sample::Index,
    ) {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let whole = bytes.len();
        prop_assert!(Request::decode(&bytes[..cut.index(whole)]).is_err(), "a cut message was taken");
        bytes[at.index(whole)] = value;
        if let Ok(other) = Request::decode(&bytes) {
            let mut again = Vec::new();
            other.encode_as(bytes[0], &mut again);
            prop_assert_eq!(&again, &bytes);
        }
        bytes.clear();
        reply.encode(&mut bytes);
        let whole = bytes.len();
        prop_assert!(Reply::decode(&bytes[..cut.index(whole)]).is_err(), "a cut message was taken");
        bytes[at.index(whole)] = value;
        if let Ok(other) = Reply::decode(&bytes) {
            let mut again = Vec::new();
            other.encode_as(bytes[0], &mut again);
            prop_assert_eq!(&again, &bytes);
        }
    }

    #[test]
    fn any_bytes_decode_without_a_panic(mut bytes in vec(any::<u8>(), 0..512), version in 0_u8..9, kind in 0_u8..19) {
        if version > 0 && bytes.len() >= 2 {
            bytes[0] = version;
            bytes[1] = kind;
        }
        if let Ok(request) = Request::decode(&bytes) {
            let mut again = Vec::new();
            request.encode_as(bytes[0], &mut again);
            prop_assert_eq!(&again, &bytes);
        }
        if let Ok(reply) = Reply::decode(&bytes) {
            let mut again = Vec::new();
            reply.encode_as(bytes[0], &mut again);
            prop_assert_eq!(&again, &bytes);
        }
    }
}

#[test]
fn the_largest_messages_fit_the_bound() {
    let window = Window {
        id: u32::MAX,
        generation: u64::MAX,
        len_bytes: u64::MAX,
        rights: u8::MAX,
    };
    let source = Source {
        split: 39,
        address: "x".repeat(ADDRESS_BYTES_MAX),
        window,
    };
    let fill = Request::Fill {
        request: 0,
        target: window,
        split: 0,
        k: K_MAX,
        r: R_MAX,
        offset: 0,
        len_bytes: FILL_BYTES_MAX,
        sources: vec![source; usize::from(K_MAX + R_MAX) - 1],
    };
    let client = ClientStatus {
        name: "x".repeat(NAME_BYTES_MAX),
        id: u128::MAX,
        slabs: 0,
        last_seen_ms: 0,
        orphaned: true,
        declined: u32::MAX,
        version: VERSION,
    };
    let status = Reply::Status(Box::new(HostStatus {
        name: "x".repeat(NAME_BYTES_MAX),
        domain: "x".repeat(NAME_BYTES_MAX),
        clients: vec![client; STATUS_CLIENTS_MAX],
        program: "x".repeat(NAME_BYTES_MAX),
        ..HostStatus::default()
    }));
    let mut bytes = Vec::new();
    fill.encode(&mut bytes);
    assert_eq!(Request::decode(&bytes), Ok(fill));
    bytes.clear();
    status.encode(&mut bytes);
    assert_eq!(Reply::decode(&bytes), Ok(status));
}

#[test]
fn the_bytes_are_those_of_the_document() {
    let mut bytes = Vec::new();
    Request::Map {
        request: 0x0102,
        volume: 3,
        extent: 4,
        member: 5,
    }
    .encode(&mut bytes);
    let mut expected = vec![7, 2, 0x02, 0x01, 0, 0, 0, 0, 0, 0];
    expected.extend([3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    expected.extend([4, 0, 0, 0, 5]);
    assert_eq!(bytes, expected);
    bytes.clear();
    Reply::Filled {
        request: 7,
        result: FillResult::SourceFailed { split: 9 },
    }
    .encode(&mut bytes);
    assert_eq!(bytes, [7, 6, 7, 0, 0, 0, 0, 0, 0, 0, 1, 9]);
    bytes.clear();
    Request::Drain(Drain::Stop).encode(&mut bytes);
    assert_eq!(bytes, [7, 7, 2]);
    bytes.clear();
    let window = Window {
        id: 1,
        generation: 2,
        len_bytes: 3,
        rights: 4,
    };
    let windows = vec![window];
    Reply::Evict { windows }.encode(&mut bytes);
    assert_eq!(bytes[..8], [7, 8, 1, 0, 1, 0, 0, 0]);
    assert_eq!(bytes.len(), 4 + 21);
    bytes.clear();
    Reply::CheckActivity {
        request: 5,
        windows: vec![window],
    }
    .encode(&mut bytes);
    let mut expected = vec![7, 11, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let window_bytes = [
        1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 4,
    ];
    expected.extend(window_bytes);
    assert_eq!(bytes, expected);
    bytes.clear();
    let slabs = vec![SlabActivity {
        window,
        milli: 0x0102,
    }];
    Request::Activity { request: 5, slabs }.encode(&mut bytes);
    let mut expected = vec![7, 14, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    expected.extend(window_bytes);
    expected.extend([2, 1, 0, 0]);
    assert_eq!(bytes, expected);
    bytes.clear();
    let here = Request::Here {
        machine: 0x0302,
        away_bytes: 0x0100,
    };
    here.encode(&mut bytes);
    let mut expected = vec![7, 15, 2, 3];
    expected.extend([0; 14]);
    expected.extend([0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes, expected);
    bytes.clear();
    Reply::Reclaim { bytes: 0x0201 }.encode(&mut bytes);
    assert_eq!(bytes, [7, 12, 1, 2, 0, 0, 0, 0, 0, 0]);
    bytes.clear();
    let back_within_ms = 0x0201;
    Reply::HandsOver { back_within_ms }.encode(&mut bytes);
    assert_eq!(bytes, [7, 13, 1, 2, 0, 0]);
    bytes.clear();
    Request::Awaits.encode(&mut bytes);
    assert_eq!(bytes, [7, 16]);
    bytes.clear();
    Request::Renew { request: 7, window }.encode(&mut bytes);
    let mut expected = vec![7, 17, 7, 0, 0, 0, 0, 0, 0, 0];
    expected.extend(window_bytes);
    assert_eq!(bytes, expected);
    bytes.clear();
    Request::Notice { within_ms: 0x0201 }.encode(&mut bytes);
    assert_eq!(bytes, [7, 18, 1, 2, 0, 0]);
    bytes.clear();
    Reply::Notice { within_ms: 0x0201 }.encode(&mut bytes);
    assert_eq!(bytes, [7, 14, 1, 2, 0, 0]);
    for unknown in [5, 6] {
        bytes[0] = unknown;
        let refused = Err(Malformed("unknown reply of its version"));
        assert_eq!(Reply::decode(&bytes), refused);
    }
    bytes.clear();
    Request::Awaits.encode(&mut bytes);
    let refused = Err(Malformed("another version than 1 to 7"));
    assert_eq!(Request::decode(&[8, 1]), refused);
    assert_eq!(Request::decode(&[0, 1]), refused);
    assert_eq!(
        Request::decode(&[1, 1, 0]),
        Err(Malformed("bytes after the end"))
    );
}

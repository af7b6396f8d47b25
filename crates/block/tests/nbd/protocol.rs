//! Commands and their answers, byte by byte.

use crate::client::*;
use crate::gate::Gate;

const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const ENOTSUP: u32 = 95;
const FUA: u16 = 1;
const NO_HOLE: u16 = 2;
const DF: u16 = 4;
const REQ_ONE: u16 = 8;
const FAST_ZERO: u16 = 16;

fn write(client: &mut Client, cookie: u64, offset: u64, bytes: &[u8]) {
    client.request((WRITE, FUA), cookie, offset, bytes.len() as u32);
    client.put(bytes);
    assert_eq!(client.simple_reply(), (0, cookie));
}

#[test]
fn what_is_written_at_any_offset_is_read_back() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    let bytes: Vec<u8> = (0..70_001u32).map(|n| (n % 251) as u8).collect();
    write(&mut client, 1, 12_345, &bytes);
    client.request((READ, 0), 2, 12_344, 70_003);
    assert_eq!(client.simple_reply(), (0, 2));
    let read = client.take(70_003);
    assert_eq!((read[0], read[70_002]), (0, 0));
    assert_eq!(read[1..70_002], bytes);
    let stats = fixture.server.stats();
    assert_eq!((stats.reads, stats.writes, stats.errors), (1, 1, 0));
    assert_eq!((stats.read_bytes, stats.written_bytes), (70_003, 70_001));
}

#[test]
fn refused_requests_are_answered_and_the_connection_goes_on() {
    let fixture = Fixture::ram(128 << 20);
    let mut client = fixture.simple();
    let end = 128 << 20;
    let over = (64 << 20) + 1;
    for (cookie, (request, offset, len, error)) in [
        ((READ, 0), end - 1, 2, EINVAL),
        ((READ, 0), u64::MAX, 2, EINVAL),
        ((READ, 0), 0, over, EINVAL),
        ((READ, DF), 0, 4096, EINVAL),
        ((READ, 1 << 9), 0, 4096, EINVAL),
        ((TRIM, 0), end, 1, EINVAL),
        ((TRIM, NO_HOLE), 0, 1, EINVAL),
        ((WRITE_ZEROES, 0), end, 1, ENOSPC),
        ((WRITE_ZEROES, NO_HOLE | FAST_ZERO), 0, 4096, ENOTSUP),
        ((BLOCK_STATUS, 0), 0, 4096, EINVAL),
        ((CACHE, 0), end, 1, EINVAL),
        ((CACHE, NO_HOLE), 0, 4096, EINVAL),
        ((9, 0), 0, 4096, EINVAL),
        ((8, 0), 0, 4096, EINVAL),
        ((777, 0), 0, 4096, EINVAL),
    ]
    .into_iter()
    .enumerate()
    {
        client.request(request, cookie as u64, offset, len);
        assert_eq!(client.simple_reply(), (error, cookie as u64), "{request:?}");
    }
    assert_eq!(fixture.server.stats().errors, 15);
    write(&mut client, 99, 0, b"still here");
}

#[test]
fn the_payload_of_a_refused_write_is_skipped() {
    let fixture = Fixture::ram(128 << 20);
    let mut client = fixture.simple();
    let over = (64 << 20) + 1;
    for (flags, offset, len, error) in [
        (0, (128 << 20) - 1, 4096, ENOSPC),
        (NO_HOLE, 0, 4096, EINVAL),
        (0, 0, over, EINVAL),
    ] {
        client.request((WRITE, flags), 5, offset, len);
        client.put(&vec![0x25; len as usize]);
        assert_eq!(client.simple_reply(), (error, 5));
    }
    client.request((READ, 0), 6, 0, 8);
    assert_eq!(client.simple_reply(), (0, 6));
    assert_eq!(client.take(8), [0; 8]);
}

#[test]
fn requests_of_no_length_succeed() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.simple();
    for command in [READ, WRITE, TRIM, CACHE, WRITE_ZEROES, FLUSH] {
        client.request((command, FUA), u64::from(command), 1 << 20, 0);
        assert_eq!(client.simple_reply(), (0, u64::from(command)));
    }
}

#[test]
fn holes_are_announced_and_not_sent() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.structured();
    write(&mut client, 1, 64 << 10, &[7; 32 << 10]);

    client.request((READ, 0), 2, 0, 192 << 10);
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    assert_eq!(client.chunk(), (0, 2, 2, hole(0, 64 << 10)));
    let (flags, kind, _, data) = client.chunk();
    assert_eq!((flags, kind), (0, 1));
    assert_eq!(data[..8], (64u64 << 10).to_be_bytes());
    assert!(data.len() == 8 + (32 << 10) && data[8..].iter().all(|byte| *byte == 7));
    assert_eq!(client.chunk(), (1, 2, 2, hole(96 << 10, 96 << 10)));

    client.request((READ, DF), 3, 0, 192 << 10);
    let (flags, kind, _, data) = client.chunk();
    assert_eq!((flags, kind, data.len()), (1, 1, 8 + (192 << 10)));
    client.request((READ, DF), 4, 512 << 10, 4096);
    assert_eq!(client.chunk(), (1, 2, 4, hole(512 << 10, 4096)));
}

#[test]
fn zeroing_keeps_memory_only_when_asked_to() {
    let fixture = Fixture::ram(8 << 20);
    let mut client = fixture.structured();
    write(&mut client, 1, 0, &vec![7; 8 << 20]);
    client.request((WRITE_ZEROES, NO_HOLE), 2, 4096, (3 << 20) + 4096);
    assert_eq!(client.simple_reply(), (0, 2));
    client.request((WRITE_ZEROES, FAST_ZERO), 3, 4 << 20, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 3));
    client.request((TRIM, 0), 4, 5 << 20, 1 << 20);
    assert_eq!(client.simple_reply(), (0, 4));

    client.request((BLOCK_STATUS, 0), 5, 0, 8 << 20);
    let (flags, kind, cookie, payload) = client.chunk();
    assert_eq!((flags, kind, cookie), (1, 5, 5));
    let words: Vec<u32> = payload
        .chunks(4)
        .map(|word| u32::from_be_bytes(word.try_into().unwrap()))
        .collect();
    assert_eq!(words, [1, 4 << 20, 0, 2 << 20, 3, 2 << 20, 0]);

    client.request((BLOCK_STATUS, REQ_ONE), 6, 5 << 20, 2 << 20);
    assert_eq!(client.chunk().3, [0, 0, 0, 1, 0, 16, 0, 0, 0, 0, 0, 3]);

    client.request((READ, DF), 7, 0, (3 << 20) + 8193);
    let data = client.chunk().3;
    let zeros = 8 + 4096..8 + 8192 + (3 << 20);
    assert!(data[8..zeros.start].iter().all(|byte| *byte == 7));
    assert!(data[zeros.clone()].iter().all(|byte| *byte == 0));
    assert_eq!(data[zeros.end], 7);
}

#[test]
fn refusals_of_a_structured_client_are_chunks_with_a_message() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.structured();
    for (command, len) in [(READ, 2), (BLOCK_STATUS, 2), (BLOCK_STATUS, 0)] {
        client.request((command, 0), 9, (1 << 20) - 1, len);
        let (flags, kind, cookie, payload) = client.chunk();
        assert_eq!((flags, kind, cookie), (1, 0x8001, 9));
        assert_eq!(payload[..4], EINVAL.to_be_bytes());
        let text_bytes = u16::from_be_bytes([payload[4], payload[5]]);
        assert_eq!(usize::from(text_bytes), payload.len() - 6);
    }
    client.request((TRIM, 0), 10, 1 << 20, 1);
    assert_eq!(client.simple_reply(), (EINVAL, 10));
}

#[test]
fn a_terabyte_is_trimmed_and_described_as_one_hole() {
    let fixture = Fixture::ram(1 << 40);
    let mut client = fixture.structured();
    write(&mut client, 1, 1 << 39, &[1; 4096]);
    let step = u32::MAX - 4095;
    let mut offset = 0;
    while offset < 1 << 40 {
        let len = u64::from(step).min((1 << 40) - offset) as u32;
        client.request((TRIM, 0), 2, offset, len);
        assert_eq!(client.simple_reply(), (0, 2));
        offset += u64::from(len);
    }
    client.request((BLOCK_STATUS, 0), 3, (1 << 39) - 4096, step);
    let expected = [&[0, 0, 0, 1][..], &step.to_be_bytes(), &[0, 0, 0, 3]].concat();
    assert_eq!(client.chunk().3, expected);
}

#[test]
fn a_flush_is_answered_after_the_writes_before_it_and_not_after_later_ones() {
    let gate = Gate::new(1 << 20, 64);
    let fixture = Fixture::with(gate.clone(), |_| {});
    let mut client = fixture.simple();
    let mut bytes = Vec::new();
    for cookie in [1, 2] {
        bytes.extend(header((WRITE, 0), cookie, 0, 1));
        bytes.push(cookie as u8);
    }
    bytes.extend(header((FLUSH, 0), 3, 0, 0));
    bytes.extend(header((WRITE, 0), 4, 0, 1));
    bytes.push(4);
    client.put(&bytes);
    gate.let_through(1);
    assert_eq!(client.simple_reply(), (0, 1));
    gate.let_through(1);
    assert_eq!(client.simple_reply(), (0, 2));
    assert_eq!(client.simple_reply(), (0, 3));
    gate.let_through(1);
    assert_eq!(client.simple_reply(), (0, 4));
}

#[test]
fn a_new_connection_sees_another_connections_writes() {
    let fixture = Fixture::ram(1 << 20);
    let mut writer = fixture.simple();
    let mut reader = fixture.simple();
    for round in 0..100u64 {
        write(&mut writer, round, 4096, &round.to_be_bytes());
        reader.request((READ, 0), round, 4096, 8);
        assert_eq!(reader.simple_reply(), (0, round));
        assert_eq!(reader.take(8), round.to_be_bytes());
    }
}

//! Extended headers: lengths of 64 bits, and replies that are all chunks.

use crate::client::*;

const PAYLOAD_LEN: u16 = 1 << 5;
const DF: u16 = 4;
const NO_HOLE: u16 = 2;
const REQ_ONE: u16 = 8;
const TIB: u64 = 1 << 40;

fn write(client: &mut Client, cookie: u64, offset: u64, bytes: &[u8]) {
    client.extended_request((WRITE, PAYLOAD_LEN), cookie, offset, bytes.len() as u64);
    client.put(bytes);
    assert_eq!(client.extended_chunk(), (1, 0, cookie, offset, Vec::new()));
}

/// Runs of a BLOCK_STATUS chunk, after its context and its count.
fn runs(payload: &[u8]) -> Vec<(u64, u64)> {
    assert_eq!(payload[..4], [0, 0, 0, 1], "the context");
    let count = u32::from_be_bytes(payload[4..8].try_into().unwrap());
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
    let runs: Vec<_> = payload[8..]
        .chunks(16)
        .map(|run| (word(&run[..8]), word(&run[8..])))
        .collect();
    assert_eq!(runs.len(), count as usize);
    runs
}

#[test]
fn every_reply_is_an_extended_chunk_with_the_requests_offset() {
    let fixture = Fixture::ram(TIB);
    let mut client = fixture.extended();
    write(&mut client, 1, 12_345, b"hello");
    client.extended_request((READ, DF), 2, 12_344, 7);
    let (flags, kind, cookie, offset, payload) = client.extended_chunk();
    assert_eq!((flags, kind, cookie, offset), (1, 1, 2, 12_344));
    assert_eq!(payload[..8], 12_344u64.to_be_bytes());
    assert_eq!(&payload[8..], b"\0hello\0");
    for (command, len) in [(FLUSH, 0), (TRIM, 4096), (CACHE, 4096), (WRITE_ZEROES, 9)] {
        client.extended_request((command, 0), 3, 0, len);
        assert_eq!(client.extended_chunk(), (1, 0, 3, 0, Vec::new()));
    }
    client.extended_request((READ, 0), 4, 1 << 20, 32 << 10);
    let (flags, kind, _, offset, payload) = client.extended_chunk();
    assert_eq!((flags, kind, offset, payload.len()), (1, 2, 1 << 20, 12));
}

#[test]
fn a_terabyte_is_zeroed_trimmed_and_described_in_one_request_each() {
    let fixture = Fixture::ram(2 * TIB);
    let mut client = fixture.extended();
    write(&mut client, 1, 5 << 32, &[7; 8192]);
    client.extended_request((BLOCK_STATUS, 0), 2, 4 << 32, 8 << 32);
    let (flags, kind, _, _, payload) = client.extended_chunk();
    assert_eq!((flags, kind), (1, 6));
    assert_eq!(
        runs(&payload),
        [(1 << 32, 3), (8192, 0), ((7 << 32) - 8192, 3)]
    );
    client.extended_request((BLOCK_STATUS, REQ_ONE), 3, 4 << 32, 8 << 32);
    assert_eq!(runs(&client.extended_chunk().4), [(1 << 32, 3)]);
    for (cookie, command) in [(4, WRITE_ZEROES), (5, TRIM)] {
        write(&mut client, cookie, 5 << 32, &[7; 8192]);
        client.extended_request((command, 0), cookie, 4096, TIB);
        assert_eq!(client.extended_chunk().1, 0);
        client.extended_request((READ, 0), cookie, 5 << 32, 8192);
        assert_eq!(client.extended_chunk().1, 2, "a hole");
    }
    // Asked of more than is looked at for one request, it says less, and something.
    client.extended_request((BLOCK_STATUS, 0), 6, 0, 2 * TIB);
    let described: u64 = runs(&client.extended_chunk().4)
        .iter()
        .map(|run| run.0)
        .sum();
    assert!(described > 1 << 32 && described < 2 * TIB, "{described}");
}

#[test]
fn what_is_wrong_is_refused_and_its_payload_thrown_away() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.extended();
    for (request, offset, len, error) in [
        // A write has a payload, and says so.
        ((WRITE, 0), 0, 4096, 22u32),
        // Others have none.
        ((READ, PAYLOAD_LEN), 0, 4096, 22),
        ((TRIM, PAYLOAD_LEN), 0, 3, 22),
        ((TRIM, 0), 1, u64::MAX, 22),
        ((WRITE_ZEROES, NO_HOLE), 0, 1 << 40, 28),
        ((READ, 0), 0, 1 << 33, 22),
        ((WRITE, PAYLOAD_LEN), 1 << 20, 1, 28),
        ((777, PAYLOAD_LEN), 0, 100, 22),
    ] {
        client.extended_request(request, 9, offset, len);
        if request.1 & PAYLOAD_LEN != 0 {
            client.put(&vec![0x21; len as usize]);
        }
        let (flags, kind, cookie, at, payload) = client.extended_chunk();
        assert_eq!(
            (flags, kind, cookie, at),
            (1, 0x8001, 9, offset),
            "{request:?}"
        );
        assert_eq!(payload[..4], error.to_be_bytes(), "{request:?}");
    }
    write(&mut client, 10, 0, b"still here");
    client.extended_request((WRITE, PAYLOAD_LEN), 11, 0, 1 << 40);
    assert!(client.is_closed(), "nobody throws a terabyte away");
}

#[test]
fn compact_requests_mean_nothing_once_extended_ones_are_agreed_on() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.extended();
    client.request((READ, 0), 1, 0, 4096);
    client.put(&[0; 4]);
    assert!(client.is_closed());
}

#[test]
fn the_handshake_goes_up_to_extended_headers_and_not_back() {
    let fixture = Fixture::ram(1 << 20);
    let mut client = fixture.connect();
    client.greet();
    for (option, data, kind) in [
        (EXTENDED_HEADERS, &b"x"[..], 0x8000_0003u32),
        (8, b"", 1),
        (EXTENDED_HEADERS, b"", 1),
        (EXTENDED_HEADERS, b"", 0x8000_0003),
        (8, b"", 0x8000_000a),
    ] {
        client.option(option, data);
        assert_eq!(client.option_reply().0, kind, "option {option} {data:?}");
    }
    client.go();
    client.extended_request((READ, 0), 1, 0, 512);
    assert_eq!(client.extended_chunk().1, 2);

    let mut forbidden = fixture.connect();
    forbidden.greet();
    forbidden.option(EXTENDED_HEADERS, b"");
    assert_eq!(forbidden.option_reply().0, 1);
    forbidden.option(1, b"disk");
    assert!(forbidden.is_closed());
}

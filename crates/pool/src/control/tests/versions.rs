//! Messages of versions before this one.

use super::*;

/// A conversation as version 1 wrote it, byte for byte.
#[test]
fn the_versions_before_are_read_and_written_as_they_were() {
    let map = [
        1, 2, 7, 0, 0, 0, 0, 0, 0, 0, // request
        3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // volume
        4, 0, 0, 0, 5, // extent, member
    ];
    let expected = Request::Map {
        request: 7,
        volume: 3,
        extent: 4,
        member: 5,
    };
    assert_eq!(Request::decode(&map), Ok(expected.clone()));
    let mut bytes = Vec::new();
    expected.encode_as(1, &mut bytes);
    assert_eq!(bytes, map);

    let status = HostStatus {
        name: "h".into(),
        draining: true,
        program: "9".into(),
        clients: vec![ClientStatus {
            name: "c".into(),
            id: 1,
            slabs: 2,
            last_seen_ms: 3,
            orphaned: false,
            declined: 4,
            version: 2,
        }],
        ..HostStatus::default()
    };
    bytes.clear();
    Reply::Status(Box::new(status.clone())).encode_as(1, &mut bytes);
    // Name, domain, 5 x u64, locked, 6 x u32, 10 x u64, clients in all, clients listed, one client.
    let fields = 2 + 2 + 1 + 5 * 8 + 1 + 6 * 4 + 10 * 8 + 4 + 2 + (2 + 16 + 4 + 8 + 1);
    assert_eq!(bytes.len(), fields);
    match Reply::decode(&bytes) {
        Ok(Reply::Status(read)) => {
            assert_eq!((read.draining, read.program.as_str()), (false, ""));
            assert_eq!((read.clients[0].slabs, read.clients[0].declined), (2, 0));
        }
        other => panic!("{other:?}"),
    }

    // What version 1 did not have is refused in its name.
    for kind in 7..=10 {
        assert!(Request::decode(&[1, kind, 0]).is_err(), "request {kind}");
    }
    // Version 2 had no word of pressure: two truth values, 8 x u64 and 2 x u32 less.
    let mut pressed = status.clone();
    pressed.pressure.watched = true;
    pressed.pressure.slabs_max = 7;
    let written = |version| {
        let mut bytes = Vec::new();
        Reply::Status(Box::new(pressed.clone())).encode_as(version, &mut bytes);
        bytes
    };
    assert_eq!(written(3).len() - written(2).len(), 2 + 8 * 8 + 2 * 4);
    // And version 3 none of memory to spare.
    assert_eq!(written(4).len() - written(3).len(), 3 * 8);
    // Nor version 4 of strangers.
    assert_eq!(written(5).len() - written(4).len(), 8 * 8);
    match Reply::decode(&written(2)) {
        Ok(Reply::Status(read)) => assert_eq!(*read, status),
        other => panic!("{other:?}"),
    }

    bytes.clear();
    Request::Activity {
        request: 0,
        slabs: Vec::new(),
    }
    .encode(&mut bytes);
    bytes[0] = 2;
    assert_eq!(
        Request::decode(&bytes),
        Err(Malformed("unknown request of its version"))
    );
    bytes.clear();
    let windows = vec![Window {
        id: 1,
        generation: 2,
        len_bytes: 3,
        rights: 4,
    }];
    let check = Reply::CheckActivity {
        request: 0,
        windows,
    };
    assert_eq!((check.since(), VERSION_OLDEST), (3, 1));
    check.encode(&mut bytes);
    bytes[0] = 2;
    assert_eq!(
        Reply::decode(&bytes),
        Err(Malformed("unknown reply of its version"))
    );
    bytes.clear();
    let here = Request::Here {
        machine: 1,
        away_bytes: 2,
    };
    let spare = Reply::Reclaim { bytes: 3 };
    assert_eq!((here.since(), spare.since()), (4, 4));
    here.encode(&mut bytes);
    bytes[0] = 3;
    assert_eq!(
        Request::decode(&bytes),
        Err(Malformed("unknown request of its version"))
    );
    bytes.clear();
    spare.encode(&mut bytes);
    bytes[0] = 3;
    assert_eq!(
        Reply::decode(&bytes),
        Err(Malformed("unknown reply of its version"))
    );
    bytes.clear();
    Reply::HandsOver { back_within_ms: 1 }.encode(&mut bytes);
    bytes[0] = 4;
    assert_eq!(
        Reply::decode(&bytes),
        Err(Malformed("unknown reply of its version"))
    );
    assert_eq!(
        Request::decode(&[4, 16]),
        Err(Malformed("unknown request of its version"))
    );
    let mut renew = vec![5, 17];
    renew.extend([0; 8 + 21]);
    assert_eq!(
        Request::decode(&renew),
        Err(Malformed("unknown request of its version"))
    );
    bytes.clear();
    Reply::Held {
        skip: 0,
        slabs: Vec::new(),
    }
    .encode(&mut bytes);
    bytes[0] = 1;
    assert_eq!(
        Reply::decode(&bytes),
        Err(Malformed("unknown reply of its version"))
    );
}

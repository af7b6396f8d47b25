//! Records between two ends, and everything that somebody between them may do.

use proptest::prelude::*;

use super::*;
use crate::noise::{Initiator, Responder};
use crate::{ClusterKey, Protocol};

const SEALED: [WireProtection; 2] = [WireProtection::Authenticated, WireProtection::Encrypted];

/// Caller and answerer of a connection.
fn ends() -> (Transport, Transport) {
    let key = ClusterKey::from_hex(&"5a".repeat(32)).unwrap();
    let (initiator, first) = Initiator::start_of(Protocol::FABRIC, &key);
    let (responder, answer, _) = Responder::answer_of(Protocol::FABRIC, &key, &first).unwrap();
    (initiator.finish(&answer).unwrap(), responder.transport())
}

fn caller_to_answerer(protection: WireProtection) -> (RecordSealer, RecordOpener) {
    let (caller, answerer) = ends();
    let (sealer, _) = caller.records("test", protection).unwrap();
    let (_, opener) = answerer.records("test", protection).unwrap();
    (sealer, opener)
}

fn record(sealer: &mut RecordSealer, body: &[u8]) -> Vec<u8> {
    let mut record = vec![0; RECORD_OVERHEAD_BYTES + body.len()];
    record[RECORD_LENGTH_BYTES..][..body.len()].copy_from_slice(body);
    sealer.seal(&mut record);
    record
}

fn open(opener: &mut RecordOpener, record: &[u8]) -> std::result::Result<Vec<u8>, RecordError> {
    opener.open(&mut record.to_vec()).map(<[u8]>::to_vec)
}

#[test]
fn bodies_of_every_length_arrive_both_ways() {
    for protection in SEALED {
        let (caller, answerer) = ends();
        let (mut a, mut b) = (
            caller.records("test", protection).unwrap(),
            answerer.records("test", protection).unwrap(),
        );
        for length in [1, 15, 16, 17, 4112, RECORD_BODY_BYTES_MAX] {
            let body = vec![length as u8; length];
            let there = record(&mut a.0, &body);
            assert_eq!(RecordOpener::record_bytes(&there), Ok(Some(there.len())));
            assert_eq!(open(&mut b.1, &there).unwrap(), body);
            let back = record(&mut b.0, &body);
            assert_eq!(open(&mut a.1, &back).unwrap(), body);
            assert_ne!(there, back, "each direction has its own key");
            let is_readable = there
                .windows(length.min(16))
                .any(|w| w == &body[..length.min(16)]);
            if length >= 16 {
                assert_eq!(is_readable, protection == WireProtection::Authenticated);
            }
        }
    }
    assert!(ends().0.records("test", WireProtection::Plain).is_none());
}

#[test]
fn other_connections_purposes_and_protections_have_other_keys() {
    let (caller, answerer) = ends();
    let (mut sealer, _) = caller.records("one", WireProtection::Encrypted).unwrap();
    let sealed = record(&mut sealer, b"page");
    let others = [
        answerer.records("two", WireProtection::Encrypted),
        answerer.records("one", WireProtection::Authenticated),
        ends().1.records("one", WireProtection::Encrypted),
        caller.records("one", WireProtection::Encrypted),
    ];
    for other in others {
        let (_, mut opener) = other.unwrap();
        assert_eq!(open(&mut opener, &sealed), Err(RecordError::Forged));
    }
    let (_, mut opener) = answerer.records("one", WireProtection::Encrypted).unwrap();
    assert_eq!(open(&mut opener, &sealed).unwrap(), b"page");
}

#[test]
fn what_is_repeated_left_out_or_reordered_does_not_open() {
    for protection in SEALED {
        let (mut sealer, mut opener) = caller_to_answerer(protection);
        let [first, second, third] = [1, 2, 3].map(|n| record(&mut sealer, &[n; 40]));
        assert_eq!(open(&mut opener, &first).unwrap(), [1; 40]);
        assert_eq!(open(&mut opener, &first), Err(RecordError::Forged), "again");
        let (mut sealer, mut opener) = caller_to_answerer(protection);
        let mut again = [0, 1, 2].map(|n| record(&mut sealer, &[n; 40]));
        again.swap(0, 1);
        assert_eq!(open(&mut opener, &again[0]), Err(RecordError::Forged));
        assert_eq!(
            open(&mut opener, &second),
            Err(RecordError::Forged),
            "of another connection"
        );
        assert_eq!(open(&mut opener, &third), Err(RecordError::Forged));
    }
}

#[test]
fn a_key_is_used_for_so_many_records_and_no_more() {
    let (caller, answerer) = ends();
    let few = |direction: &mut Direction| direction.records_per_key = 3;
    let (mut sealer, _) = caller.records("test", WireProtection::Encrypted).unwrap();
    let (_, mut opener) = answerer.records("test", WireProtection::Encrypted).unwrap();
    few(&mut sealer.0);
    few(opener.0.as_mut().unwrap());
    let mut secrets = Vec::new();
    for number in 0..10_u8 {
        secrets.push(sealer.0.secret);
        let sealed = record(&mut sealer, &[number; 20]);
        assert_eq!(open(&mut opener, &sealed).unwrap(), [number; 20]);
    }
    secrets.dedup();
    // A new one is made with the record that needs it.
    assert_eq!(
        secrets.len(),
        3,
        "records 0 to 3, 4 to 6 and 7 to 9 saw these before them"
    );
    let (_, mut other) = answerer.records("test", WireProtection::Encrypted).unwrap();
    other.0.as_mut().unwrap().next = 10;
    assert_eq!(
        open(&mut other, &record(&mut sealer, b"late")),
        Err(RecordError::Forged),
        "the first key opens nothing of the later ones"
    );
}

/// Independent of the code above: HKDF by hand, out of HMAC.
#[test]
fn keys_are_derived_as_the_document_says() {
    use ring::hmac;
    let mac = |key: &[u8], parts: &[&[u8]]| {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
        parts.iter().for_each(|part| context.update(part));
        let tag: [u8; 32] = context.sign().as_ref().try_into().unwrap();
        tag
    };
    let (hash, keys) = ([1; 32], ([2; 32], [3; 32]));
    let secret = mac(&hash, &[&[2; 32], &[3; 32]]);
    let info: &[u8] = b"cenote records\0data\0encrypted\0caller\0";
    let of_direction = mac(&secret, &[info, &[1]]);
    let key = mac(&of_direction, &[b"key\0", &[1]]);
    let mask = &mac(&of_direction, &[b"nonce\0", &[1]])[..NONCE_LEN];
    let next = mac(&of_direction, &[b"next\0", &[1]]);

    let parts = [
        b"cenote records".as_slice(),
        b"data",
        b"encrypted",
        b"caller",
    ];
    let secret = connection_secret(&hash, keys);
    let mut direction = Direction::new(expand(&secret, &parts), Sealed::Encrypted);
    assert_eq!(direction.secret, of_direction);
    assert_eq!(direction.mask, mask);
    let mut ours = RecordSealer(Direction::new(of_direction, Sealed::Encrypted));
    let mut sealed = [0; RECORD_OVERHEAD_BYTES + 4];
    sealed[2..6].copy_from_slice(b"page");
    ours.seal(&mut sealed);
    let theirs = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &key).unwrap());
    let nonce = Nonce::try_assume_unique_for_key(mask).unwrap();
    let (length, body) = sealed.split_at_mut(2);
    assert_eq!(length, [20, 0]);
    assert_eq!(
        theirs
            .open_in_place(nonce, Aad::from([20, 0]), body)
            .unwrap(),
        b"page"
    );
    direction.records_per_key = 1;
    direction.next = 1;
    direction.next();
    assert_eq!(direction.secret, next);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_change_of_a_record_opens(
        authenticated: bool,
        length in 1..600_usize,
        place in any::<prop::sample::Index>(),
        bit in 0..8_u8,
        cut in any::<prop::sample::Index>(),
        extra in proptest::collection::vec(any::<u8>(), 1..40),
        how in 0..3_u8,
    ) {
        let (mut sealer, mut opener) = caller_to_answerer(SEALED[usize::from(!authenticated)]);
        let good = record(&mut sealer, &vec![0x5a; length]);
        let mut bad = good.clone();
        match how {
            0 => { let place = place.index(bad.len()); bad[place] ^= 1 << bit; }
            1 => bad.truncate(cut.index(bad.len())),
            _ => bad.extend(extra),
        }
        prop_assert!(open(&mut opener, &bad).is_err());
    }

    #[test]
    fn any_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let (_, mut opener) = caller_to_answerer(WireProtection::Encrypted);
        prop_assert!(open(&mut opener, &bytes).is_err());
    }
}

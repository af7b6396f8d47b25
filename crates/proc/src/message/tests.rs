use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn state() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..64)
}

fn request() -> impl Strategy<Value = Request> {
    (any::<u64>(), any::<u128>(), any::<u32>(), state()).prop_map(|(number, cache, code, state)| {
        Request {
            client: CLIENT,
            number,
            cache: CacheId(cache),
            procedure: ProcedureId(code),
            steps: 0,
            refusals: 0,
            state: state.into(),
        }
    })
}

fn any_status() -> impl Strategy<Value = Status> {
    (0u8..13, any::<u32>()).prop_map(|(kind, detail)| {
        let detail = if kind == 6 { detail } else { 0 };
        status(kind, detail).expect("a status")
    })
}

fn moved() -> impl Strategy<Value = Moved> {
    let need = (0..3, any::<u64>(), 1..=4096u32).prop_map(|(kind, addr, size)| match kind {
        0 => None,
        1 => Some(Need::Data { addr, size }),
        _ => Some(Need::Place { addr, size }),
    });
    let client = any::<(u32, u64, bool, u64, u32)>();
    (need, request(), client).prop_map(|(need, mut request, rest)| {
        let (from, generation, forwarded, client, steps) = rest;
        request.client = ClientId(client);
        request.steps = steps;
        Moved {
            from: Machine(from),
            need,
            generation,
            forwarded,
            request,
        }
    })
}

pub(crate) fn message() -> impl Strategy<Value = Message> {
    let response =
        (any::<u64>(), any_status(), state()).prop_map(|(number, status, state)| Response {
            number,
            status,
            state: state.into(),
        });
    let fetch = (any::<(u32, u64, u128, u64, u64, bool)>(), 1..=4096u32).prop_map(
        |((from, token, cache, addr, generation, forwarded), size)| Fetch {
            from: Machine(from),
            token,
            cache: CacheId(cache),
            addr,
            size,
            generation,
            forwarded,
        },
    );
    let data = (any::<u64>(), 0..4, state()).prop_map(|(token, kind, bytes)| Data {
        token,
        bytes: match kind {
            0 => Ok(bytes),
            1 => Err(Refusal::Stale),
            2 => Err(Refusal::Early),
            _ => Err(Refusal::OutOfBounds),
        },
    });
    let piece = (any::<(u64, u64)>(), state()).prop_map(|((addr, generation), bytes)| Piece {
        addr,
        generation,
        bytes,
    });
    let replicate =
        (any::<(u64, u128)>(), vec(piece, 0..9)).prop_map(|((token, cache), pieces)| Replicate {
            token,
            cache: CacheId(cache),
            pieces,
        });
    prop_oneof![
        replicate.prop_map(Message::Replicate),
        vec(request(), 0..20).prop_map(Message::Requests),
        vec(response, 0..20).prop_map(Message::Responses),
        moved().prop_map(Message::Moved),
        moved().prop_map(|moved| Message::Refused(Refused { moved })),
        fetch.prop_map(Message::Fetch),
        data.prop_map(Message::Data),
    ]
}

fn sender(message: &Message) -> Sender {
    match message {
        Message::Requests(_) => SENDERS[0],
        Message::Responses(_) => SENDERS[1],
        _ => SENDERS[2],
    }
}

proptest! {
    #[test]
    fn nobody_sends_what_is_anothers(message in message()) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        for other in SENDERS {
            let read = Message::read(&bytes, other);
            prop_assert_eq!(read.is_ok(), other == sender(&message));
        }
    }

    #[test]
    fn what_is_written_is_read(message in message()) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        prop_assert_eq!(Message::read(&bytes, sender(&message)), Ok(message));
    }

    #[test]
    fn a_message_that_is_cut_or_longer_is_none(message in message(), cut in any::<prop::sample::Index>()) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        prop_assert!(Message::read(&bytes[..cut.index(bytes.len())], sender(&message)).is_err());
        bytes.push(0);
        prop_assert!(Message::read(&bytes, sender(&message)).is_err());
    }

    #[test]
    fn bytes_of_peers_are_read_or_refused(bytes in vec(any::<u8>(), 0..300), kind in 0u8..8) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        // What is taken is written as it came: nothing has two forms.
        for sender in SENDERS {
            if let Ok(message) = Message::read(&bytes, sender) {
                let mut again = Vec::new();
                message.write(&mut again);
                prop_assert_eq!(&again, &bytes);
            }
        }
    }

    #[test]
    fn a_changed_byte_never_makes_more_than_was_sent(
        message in message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(message) = Message::read(&bytes, sender(&message)) {
            let mut again = Vec::new();
            message.write(&mut again);
            prop_assert_eq!(again.len(), bytes.len());
        }
    }
}

#[test]
fn a_count_beyond_the_message_reserves_nothing() {
    let bytes = [1, 0xff, 0xff, 0xff, 0xff];
    assert!(Message::read(&bytes, SENDERS[0]).is_err());
    let long = vec![1; MESSAGE_MAX + 1];
    assert!(Message::read(&long, SENDERS[0]).is_err());
}

const CLIENT: ClientId = ClientId(7);
const SENDERS: [Sender; 3] = [Sender::Client(CLIENT), Sender::Server, Sender::Machine];

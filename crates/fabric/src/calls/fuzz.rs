//! What a peer may do to the two ways of calls; see [`crate::fuzz`].

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ring::{self, Memory, Way};
use super::stream::Stream;
use super::{Broken, CALL_BYTES_MAX, HEADER_BYTES, encode_header};
use crate::memory::Mapping;
use crate::{Generation, Rights, WindowDescriptor, WindowId, socket};

/// Messages and what ended them.
type Told = (Vec<(u32, Vec<u8>)>, bool);

/// A stream of calls: the same messages, or the same end, in whatever pieces it comes; they have
/// the bytes that came.
pub fn stream(bytes: &[u8]) {
    let told = through_a_socket(bytes, bytes.len());
    assert_eq!(through_a_socket(bytes, 5), told, "in pieces of 5");
    let mut at = 0;
    for (id, body) in &told.0 {
        assert_eq!(bytes[at..][..HEADER_BYTES], encode_header(*id, body.len()));
        assert_eq!(&bytes[at + HEADER_BYTES..][..body.len()], &body[..]);
        at += HEADER_BYTES + body.len();
    }
}

fn through_a_socket(bytes: &[u8], piece: usize) -> Told {
    let (a, b) = UnixStream::pair().expect("the system has sockets");
    let (socket, peer): (OwnedFd, OwnedFd) = (a.into(), b.into());
    let mut stream = Stream::new(None);
    let mut told = Vec::new();
    for chunk in bytes.chunks(piece.max(1)) {
        let sent = socket::send(peer.as_fd(), chunk, None);
        assert!(
            sent.is_ok_and(|sent| sent == Some(chunk.len())),
            "the socket takes it"
        );
        loop {
            match stream.next() {
                Ok(Some((id, body))) => told.push((id, body.to_vec())),
                Ok(None) => match stream.fill(socket.as_fd()) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(_) => return (told, true),
                },
                Err(_) => return (told, true),
            }
        }
    }
    (told, false)
}

/// Rings whose peer scribbles over them: messages or an end, and none longer than messages are. The
/// bytes are acts of nine: what is done, and a number. Word `act` of the counts is set, a word of
/// the calls' ring is, or an honest call is made.
pub fn ring(acts: &[u8]) {
    let region = Arc::new(ring::create().expect("the system has memory"));
    let descriptor = WindowDescriptor {
        id: WindowId(0),
        generation: Generation(0),
        len_bytes: region.len_bytes(),
        rights: Rights::ALL,
    };
    let map = || Mapping::new(region.as_fd(), descriptor).expect("it can be mapped");
    let scribbler = map();
    let (mut honest, _) = ring::ends(Memory::Client(Box::new(map())), Way::Calls);
    let (mut answers, mut calls) = ring::ends(Memory::Host(Arc::clone(&region)), Way::Answers);
    let mut message = vec![0; CALL_BYTES_MAX];
    for act in acts.chunks(9) {
        let (what, rest) = (act[0], &act[1..]);
        let mut number = [0; 8];
        number[..rest.len()].copy_from_slice(rest);
        let number = u64::from_le_bytes(number);
        match what {
            0..64 => {
                let cell = usize::from(what % 8) * 64;
                scribbler.view.atomic(cell).store(number, Ordering::SeqCst);
            }
            64..128 => {
                let word = 4096 + usize::from(what - 64) * 8;
                scribbler.view.atomic(word).store(number, Ordering::SeqCst);
            }
            128.. => {
                let body = vec![what; (number % 600) as usize];
                if honest.push(3, &body).is_ok() {
                    honest.publish();
                }
            }
        }
        for _ in 0..100 {
            match calls.next(&mut message) {
                Ok(Some((_, len))) => assert!(len <= CALL_BYTES_MAX),
                Ok(None) => break,
                Err(Broken::Closed | Broken::Protocol(_) | Broken::Forged) => return,
            }
        }
        calls.release();
        if answers.push(1, &[7; 100]).is_err() {
            return;
        }
        answers.publish();
    }
}

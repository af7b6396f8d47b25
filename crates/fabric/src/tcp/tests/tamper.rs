//! Somebody sits between a client and its host and changes what goes by: never a wrong byte, always
//! an end.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::record::{RECORD_BODY_BYTES_MAX, RECORD_OVERHEAD_BYTES};

/// What is done to one direction of a stream.
#[derive(Clone, Debug)]
enum Tamper {
    Flip {
        at: usize,
        bit: u8,
    },
    Drop {
        at: usize,
        len: usize,
    },
    Inject {
        at: usize,
        bytes: Vec<u8>,
    },
    /// What went by from `from` on is sent once more at `at`.
    Repeat {
        from: usize,
        at: usize,
    },
    /// Two neighbouring pieces change places.
    Swap {
        at: usize,
        len: usize,
    },
    Cut {
        at: usize,
    },
}

/// Bytes of one direction, changed as they go by.
struct Editor {
    tamper: Option<Tamper>,
    seen: Vec<u8>,
    held: Vec<u8>,
}

impl Editor {
    /// What to pass on for `bytes`; `None`: the end. Says when something was changed.
    fn edit(&mut self, bytes: &[u8], is_changed: &AtomicBool) -> Option<Vec<u8>> {
        let start = self.seen.len();
        self.seen.extend(bytes);
        let end = self.seen.len();
        let mut out = bytes.to_vec();
        let is_here = |at: usize| (start..end).contains(&at);
        match &self.tamper {
            Some(Tamper::Flip { at, bit }) if is_here(*at) => out[at - start] ^= 1 << bit,
            Some(Tamper::Drop { at, len }) if is_here(*at) => {
                drop(out.drain(at - start..(at - start + len).min(out.len())));
            }
            Some(Tamper::Inject { at, bytes }) if is_here(*at) => {
                let rest = out.split_off(at - start);
                out.extend(bytes);
                out.extend(rest);
            }
            Some(Tamper::Repeat { from, at }) if is_here(*at) => {
                let rest = out.split_off(at - start);
                out.extend(&self.seen[*from..*at]);
                out.extend(rest);
            }
            Some(Tamper::Swap { at, len }) if self.held.is_empty() && is_here(*at) => {
                self.held = out.split_off(at - start);
                if self.held.len() < 2 * len {
                    // Not before both pieces are there.
                    return Some(out);
                }
                out.extend(swapped(std::mem::take(&mut self.held), *len, is_changed));
                self.tamper = None;
                return Some(out);
            }
            Some(Tamper::Swap { len, .. }) if !self.held.is_empty() => {
                self.held.extend(&out);
                if self.held.len() < 2 * len {
                    return Some(Vec::new());
                }
                out = swapped(std::mem::take(&mut self.held), *len, is_changed);
                self.tamper = None;
                return Some(out);
            }
            Some(Tamper::Cut { at }) if is_here(*at) => {
                is_changed.store(true, Ordering::SeqCst);
                return None;
            }
            _ => return Some(out),
        }
        if out != bytes {
            is_changed.store(true, Ordering::SeqCst);
        }
        self.tamper = None;
        Some(out)
    }
}

fn swapped(mut bytes: Vec<u8>, len: usize, is_changed: &AtomicBool) -> Vec<u8> {
    let before = bytes.clone();
    bytes[..2 * len].rotate_left(len);
    if bytes != before {
        is_changed.store(true, Ordering::SeqCst);
    }
    bytes
}

fn carry(mut from: TcpStream, mut to: TcpStream, mut editor: Editor, is_changed: &AtomicBool) {
    let mut buffer = [0; 8192];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        match editor.edit(&buffer[..count], is_changed) {
            Some(bytes) if to.write_all(&bytes).is_ok() => {}
            _ => break,
        }
    }
    // The other end may be gone already: that is an end as well.
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

const PAGE: usize = 4096;
const LONG: usize = 3 * RECORD_BODY_BYTES_MAX / 2;

/// What a run came to.
struct Seen {
    /// Verbs that ended well, of six.
    ok: usize,
    /// One of them read other bytes than were written.
    is_wrong: bool,
    /// A byte of the window is neither what was there nor what was written.
    is_window_wrong: bool,
    /// The connection ended.
    is_dead: bool,
    was_changed: bool,
    statuses: Vec<Status>,
}

/// Writes and reads pages through a relay that does `tamper` to one direction.
fn run(protection: WireProtection, to_host: bool, tamper: Option<Tamper>) -> Seen {
    let rig = Rig::new(64);
    let (region, window) = rig.window(1 << 20, Rights::ALL);
    let old = pattern(1 << 20, 1);
    region.write(0, &old).unwrap();
    let (ours, relay_near) = sockets();
    let (relay_far, theirs) = sockets();
    let (our_records, their_records) = records(protection);
    rig.agent.adopt(theirs, CLIENT, their_records);
    let mut client = Client::with(ours, our_records);
    if tamper.is_some() && protection != WireProtection::Plain {
        // What is left out is found missing by the silence after it.
        client.clock = Time::now;
    }
    let is_changed = AtomicBool::new(false);
    let editor = |tamper| Editor {
        tamper,
        seen: Vec::new(),
        held: Vec::new(),
    };
    let (up, down) = if to_host {
        (editor(tamper), editor(None))
    } else {
        (editor(None), editor(tamper))
    };
    std::thread::scope(|scope| {
        let (near, far) = (
            relay_near.try_clone().unwrap(),
            relay_far.try_clone().unwrap(),
        );
        scope.spawn(|| carry(near, far, up, &is_changed));
        scope.spawn(|| carry(relay_far, relay_near, down, &is_changed));
        let new = pattern(PAGE, 2);
        let long = pattern(LONG, 3);
        let (mut first, mut second, mut third) = (vec![0; PAGE], vec![0; PAGE], vec![0; LONG]);
        client.write(&window, 0, &new, 1);
        client.read(&window, 0, &mut first, 2);
        client.write(&window, 1 << 16, &long, 3);
        client.read(&window, 1 << 15, &mut second, 4);
        client.read(&window, 1 << 16, &mut third, 5);
        client
            .endpoint
            .post_send(b"said", 6, &mut client.queue)
            .unwrap();
        let statuses = client.statuses(6);
        let is_ok = |verb: usize| statuses[verb] == Status::Ok;
        let is_wrong = (is_ok(1) && first != new)
            || (is_ok(3) && second != old[1 << 15..][..PAGE])
            || (is_ok(4) && third != long);
        // What comes when nothing is owed ends it as well.
        let deadline = Instant::now() + Duration::from_secs(20);
        while is_changed.load(Ordering::SeqCst) && !client.endpoint.is_dead() {
            assert!(
                Instant::now() < deadline,
                "{protection}: not dead, {statuses:?}"
            );
            if let Some(fd) = client.endpoint.fd() {
                wait(&[fd], Some(Duration::from_millis(20))).unwrap();
            }
            client.endpoint.poll(Time::now(), &mut client.queue);
            if protection == WireProtection::Plain {
                break;
            }
        }
        let is_dead = client.endpoint.is_dead();
        drop(client);
        // Until then the host may be writing what came before the end.
        let is_over = |event| matches!(event, AgentEvent::Closed { .. });
        while !is_over(rig.events.recv_timeout(Duration::from_secs(20)).unwrap()) {}
        let mut bytes = vec![0; 1 << 20];
        region.read(0, &mut bytes).unwrap();
        let mut written = old.clone();
        written[..PAGE].copy_from_slice(&new);
        written[1 << 16..][..LONG].copy_from_slice(&long);
        let is_either = bytes
            .iter()
            .zip(old.iter().zip(&written))
            .all(|(byte, (old, new))| byte == old || byte == new);
        let is_page_whole = bytes[..PAGE] == old[..PAGE] || bytes[..PAGE] == new;
        Seen {
            ok: statuses
                .iter()
                .filter(|&&status| status == Status::Ok)
                .count(),
            is_wrong,
            is_window_wrong: !(is_either && is_page_whole),
            is_dead,
            was_changed: is_changed.load(Ordering::SeqCst),
            statuses,
        }
    })
}

/// Bytes of each direction in one run, about.
fn stream_bytes(to_host: bool) -> usize {
    let pages = PAGE + LONG + 6 * RECORD_OVERHEAD_BYTES;
    if to_host { pages } else { pages + PAGE }
}

fn tampers() -> impl Strategy<Value = (bool, Tamper)> {
    let bytes = proptest::collection::vec(any::<u8>(), 1..100);
    let places = (any::<prop::sample::Index>(), any::<prop::sample::Index>());
    (
        any::<bool>(),
        places,
        0..6_u8,
        0..8_u8,
        1..6000_usize,
        bytes,
    )
        .prop_map(|(to_host, (at, from), how, bit, len, bytes)| {
            let at = at.index(stream_bytes(to_host));
            let tamper = match how {
                0 => Tamper::Flip { at, bit },
                1 => Tamper::Drop { at, len },
                2 => Tamper::Inject { at, bytes },
                3 => Tamper::Repeat {
                    from: from.index(at + 1),
                    at,
                },
                4 => Tamper::Swap { at, len },
                _ => Tamper::Cut { at },
            };
            (to_host, tamper)
        })
}

#[test]
fn what_is_not_changed_arrives() {
    for protection in WireProtection::ALL {
        let seen = run(protection, true, None);
        assert_eq!(
            (seen.ok, seen.is_wrong, seen.is_window_wrong),
            (6, false, false)
        );
        assert!(!seen.is_dead && !seen.was_changed);
    }
}

#[test]
fn one_bit_in_an_unprotected_answer_is_read_as_good() {
    let at = 100;
    let seen = run(
        WireProtection::Plain,
        false,
        Some(Tamper::Flip { at, bit: 3 }),
    );
    // The answer to the first write, then the page.
    assert!(
        seen.was_changed && seen.is_wrong && seen.ok == 6,
        "this relay does nothing"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_changed_ends_the_connection_and_is_never_used(
        (to_host, tamper) in tampers(),
        authenticated: bool,
    ) {
        let protection = if authenticated {
            WireProtection::Authenticated
        } else {
            WireProtection::Encrypted
        };
        let seen = run(protection, to_host, Some(tamper));
        prop_assert!(!seen.is_wrong, "a read ended well with other bytes: {:?}", seen.statuses);
        prop_assert!(!seen.is_window_wrong, "other bytes are in the window: {:?}", seen.statuses);
        prop_assert!(!seen.was_changed || seen.is_dead, "{:?}", seen.statuses);
        let known = [Status::Ok, Status::Forged, Status::Protocol, Status::Disconnected, Status::Timeout];
        prop_assert!(seen.statuses.iter().all(|status| known.contains(status)), "{:?}", seen.statuses);
    }

    #[test]
    fn any_bytes_in_place_of_records_end_the_connection(
        bytes in proptest::collection::vec(any::<u8>(), 1..2000),
        length in 0..40_000_u16,
        to_host: bool,
    ) {
        let rig = Rig::new(4);
        let (_region, window) = rig.window(1 << 16, Rights::ALL);
        let (ours, theirs) = sockets();
        let (our_records, their_records) = records(WireProtection::Encrypted);
        let mut bytes = [&length.to_le_bytes(), &bytes[..]].concat();
        if to_host {
            rig.agent.adopt(theirs, CLIENT, their_records);
            let mut ours = ours;
            // The host may have ended it before all is written.
            ours.write_all(&bytes).and_then(|()| ours.shutdown(Shutdown::Write)).ok();
            let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
            prop_assert_eq!(event, AgentEvent::Closed { client: CLIENT });
        } else {
            let mut client = Client::with(ours, our_records);
            let mut landing = [7; 64];
            client.read(&window, 0, &mut landing, 1);
            client.endpoint.flush(&mut client.queue);
            let mut theirs = theirs;
            bytes.truncate(1000);
            theirs.write_all(&bytes).unwrap();
            drop(theirs);
            let status = client.next().status;
            prop_assert!(status != Status::Ok && client.endpoint.is_dead(), "{status:?}");
            prop_assert_eq!(landing, [7; 64]);
        }
    }
}

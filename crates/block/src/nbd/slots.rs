//! The connections of one listener: how many, from where, and who goes first when there are too many.
//!
//! A connection is a stranger until its handshake has ended. When all slots are taken, the stranger
//! that has been there longest makes room, one from where nobody is established before others; an
//! established client never does. No source has more than its share. [`Book`] decides and is pure;
//! [`Slots`] shares it between the acceptor and the workers, who touch it once at each end of a
//! handshake and never for a request.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many connections a listener has at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// In all.
    pub(crate) all_max: usize,
    /// From one source.
    pub(crate) source_max: usize,
}

/// Where a connection comes from: an address, of which IPv6's hosts have many.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Source(IpAddr);

impl Source {
    /// The source that an address belongs to: itself, or its network of 64 bits.
    pub(crate) fn of(address: IpAddr) -> Self {
        Self(match address.to_canonical() {
            IpAddr::V6(v6) if !v6.is_loopback() => {
                let [a, b, c, d, ..] = v6.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            other => other,
        })
    }
}

/// Who has a slot.
#[derive(Debug, Default)]
struct Book {
    /// By number, so in the order in which they came.
    guests: BTreeMap<u64, Guest>,
    next: u64,
}

#[derive(Debug)]
struct Guest {
    /// None of a unix socket.
    source: Option<Source>,
    standing: Standing,
    /// Read by the connection's worker.
    is_evicted: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Standing {
    /// Its handshake has not ended.
    Stranger,
    Established,
    /// It has lost its slot and was not closed yet.
    Leaving,
}

/// Whether a connection may stay.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Verdict {
    /// Under this number.
    Admitted(u64),
    /// Under this number, in the place of a stranger.
    AdmittedForAnother(u64),
    Refused,
}

impl Book {
    fn admit(&mut self, source: Option<Source>, bounds: Bounds) -> Verdict {
        let present = |guest: &&Guest| guest.standing != Standing::Leaving;
        let all = self.guests.values().filter(present).count();
        let alike = self
            .guests
            .values()
            .filter(present)
            .filter(|guest| source.is_some() && guest.source == source)
            .count();
        let victim = if alike >= bounds.source_max {
            self.oldest_stranger(|guest| guest.source == source)
        } else if all >= bounds.all_max {
            self.oldest_stranger(|guest| !self.is_known(guest.source))
                .or_else(|| self.oldest_stranger(|_| true))
        } else {
            return Verdict::Admitted(self.add(source));
        };
        let Some(victim) = victim else {
            return Verdict::Refused;
        };
        self.evict(victim);
        Verdict::AdmittedForAnother(self.add(source))
    }

    /// Whether as many as there are slots wait to be closed: each still has a descriptor.
    fn is_settling(&self, bounds: Bounds) -> bool {
        let leaving = |guest: &&Guest| guest.standing == Standing::Leaving;
        self.guests.values().filter(leaving).count() >= bounds.all_max
    }

    fn add(&mut self, source: Option<Source>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.guests.insert(
            number,
            Guest {
                source,
                standing: Standing::Stranger,
                is_evicted: Arc::default(),
            },
        );
        number
    }

    fn evict(&mut self, number: u64) {
        if let Some(guest) = self.guests.get_mut(&number) {
            guest.standing = Standing::Leaving;
            guest.is_evicted.store(true, Ordering::Release);
        }
    }

    /// Whether somebody from there is established.
    fn is_known(&self, source: Option<Source>) -> bool {
        let established = |guest: &Guest| guest.standing == Standing::Established;
        self.guests
            .values()
            .any(|guest| established(guest) && guest.source == source)
    }

    fn oldest_stranger(&self, among: impl Fn(&Guest) -> bool) -> Option<u64> {
        let mut strangers = self
            .guests
            .iter()
            .filter(|(_, guest)| guest.standing == Standing::Stranger && among(guest));
        strangers.next().map(|(number, _)| *number)
    }

    /// Ends a handshake; false when the slot went to another meanwhile.
    fn establish(&mut self, number: u64) -> bool {
        match self.guests.get_mut(&number) {
            Some(guest) if guest.standing == Standing::Stranger => {
                guest.standing = Standing::Established;
                true
            }
            _ => false,
        }
    }
}

/// The slots of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    book: Arc<Mutex<Book>>,
    bounds: Bounds,
}

/// What a new connection got.
#[derive(Debug)]
pub(crate) enum Admission {
    Admitted(Seat),
    /// A stranger has to go for it.
    AdmittedForAnother(Seat),
    Refused,
}

impl Slots {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            book: Arc::default(),
            bounds,
        }
    }

    /// Whether no connection is to be accepted before some that lost their slots are closed.
    pub(crate) fn is_settling(&self) -> bool {
        lock(&self.book).is_settling(self.bounds)
    }

    /// Finds room for a connection, which is a stranger at first.
    pub(crate) fn admit(&self, source: Option<Source>) -> Admission {
        let mut book = lock(&self.book);
        match book.admit(source, self.bounds) {
            Verdict::Admitted(number) => Admission::Admitted(self.seat(&book, number)),
            Verdict::AdmittedForAnother(number) => {
                Admission::AdmittedForAnother(self.seat(&book, number))
            }
            Verdict::Refused => Admission::Refused,
        }
    }

    fn seat(&self, book: &Book, number: u64) -> Seat {
        Seat {
            book: Arc::clone(&self.book),
            number,
            is_evicted: Arc::clone(&book.guests[&number].is_evicted),
        }
    }
}

/// One connection's slot, given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    book: Arc<Mutex<Book>>,
    number: u64,
    is_evicted: Arc<AtomicBool>,
}

impl Seat {
    /// Says that the handshake has ended; false when it came too late.
    pub(crate) fn establish(&self) -> bool {
        lock(&self.book).establish(self.number)
    }

    /// Whether the slot went to another connection.
    pub(crate) fn is_evicted(&self) -> bool {
        self.is_evicted.load(Ordering::Acquire)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.book).guests.remove(&self.number);
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        all_max: 4,
        source_max: 3,
    };

    fn source(last: u8) -> Option<Source> {
        Some(Source::of(IpAddr::from([10, 0, 0, last])))
    }

    fn admitted(book: &mut Book, source: Option<Source>) -> u64 {
        match book.admit(source, BOUNDS) {
            Verdict::Admitted(number) | Verdict::AdmittedForAnother(number) => number,
            Verdict::Refused => panic!("refused: {book:?}"),
        }
    }

    fn standing(book: &Book, number: u64) -> Standing {
        book.guests[&number].standing
    }

    #[test]
    fn the_oldest_stranger_makes_room_and_an_established_client_never_does() {
        let mut book = Book::default();
        let numbers: Vec<_> = (0..4).map(|_| admitted(&mut book, None)).collect();
        assert!(book.establish(numbers[0]));
        let verdict = book.admit(None, BOUNDS);
        assert_eq!(verdict, Verdict::AdmittedForAnother(4));
        assert_eq!(standing(&book, numbers[0]), Standing::Established);
        assert_eq!(standing(&book, numbers[1]), Standing::Leaving);
        assert!(book.guests[&numbers[1]].is_evicted.load(Ordering::Acquire));
        assert!(!book.establish(numbers[1]), "too late");
        book.guests.remove(&numbers[1]);
        for number in [numbers[2], numbers[3], 4] {
            assert!(book.establish(number));
        }
        assert_eq!(book.admit(None, BOUNDS), Verdict::Refused);
        book.guests.remove(&numbers[0]);
        assert_eq!(book.admit(None, BOUNDS), Verdict::Admitted(5));
    }

    #[test]
    fn one_source_has_no_more_than_its_share() {
        let mut book = Book::default();
        let first = admitted(&mut book, source(1));
        for _ in 0..50 {
            let number = admitted(&mut book, source(1));
            let present: Vec<_> = book
                .guests
                .iter()
                .filter(|(_, guest)| guest.standing != Standing::Leaving)
                .map(|(number, _)| *number)
                .collect();
            assert!(present.len() <= BOUNDS.source_max && present.contains(&number));
            book.guests
                .retain(|_, guest| guest.standing != Standing::Leaving);
        }
        assert!(!book.guests.contains_key(&first));
        assert_eq!(book.guests.len(), BOUNDS.source_max);
        assert!(matches!(
            book.admit(source(2), BOUNDS),
            Verdict::Admitted(_)
        ));
    }

    #[test]
    fn strangers_from_where_somebody_is_established_go_last() {
        let mut book = Book::default();
        let client = admitted(&mut book, source(1));
        assert!(book.establish(client));
        let again = admitted(&mut book, source(1));
        let other = admitted(&mut book, source(2));
        admitted(&mut book, source(3));
        admitted(&mut book, source(4));
        assert_eq!(standing(&book, again), Standing::Stranger);
        assert_eq!(standing(&book, other), Standing::Leaving);
    }

    #[test]
    fn connections_that_are_being_closed_are_bounded_too() {
        let mut book = Book::default();
        let mut admitted = 0;
        while !book.is_settling(BOUNDS) {
            assert_ne!(book.admit(None, BOUNDS), Verdict::Refused);
            admitted += 1;
        }
        assert_eq!((admitted, book.guests.len()), (8, 2 * BOUNDS.all_max));
        book.guests.remove(&0);
        assert!(!book.is_settling(BOUNDS));
    }

    #[test]
    fn an_ipv6_host_is_one_source_whatever_addresses_it_takes() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::9"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("::1"), of("::2"));
    }

    #[test]
    fn a_seat_is_given_back_when_it_is_dropped() {
        let slots = Slots::new(Bounds {
            all_max: 1,
            source_max: 1,
        });
        let Admission::Admitted(seat) = slots.admit(None) else {
            panic!("there is room");
        };
        assert!(seat.establish());
        assert!(matches!(slots.admit(None), Admission::Refused));
        drop(seat);
        assert!(matches!(slots.admit(None), Admission::Admitted(_)));
    }
}

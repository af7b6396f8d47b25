//! Who has connected to one listening socket and not proven the key yet, and who of them has to go.
//!
//! Nobody is kept out: who comes takes the place of another once all are taken, or all that one
//! source may have. First go those whose first message has not opened under the key; among equals strangers from where nobody has
//! proven the key lately, and then the oldest. So connections that lie idle push each other out, and
//! a client that holds the key and speaks at once stays.
//!
//! Pure: connections are numbers of the caller's, and time is passed in. Bounds: places in all and
//! for each source, and how many sources are remembered.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Where a connection comes from, as far as one budget goes.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Source {
    /// An address; of IPv6 the network of 64 bits, in which anybody may take any.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        Self::Address(match address.to_canonical() {
            IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address @ IpAddr::V6(_)) => write!(f, "{address}/64"),
            Self::Address(address) => write!(f, "{address}"),
            Self::User(user) => write!(f, "user {user} of this machine"),
        }
    }
}

/// How far a stranger has come.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Stage {
    /// Nothing has come.
    Silent,
    /// A part of its first message has.
    Speaking,
    /// Its first message opened under the key; it may be a recording.
    Answered,
}

/// How a stranger ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Parting {
    /// It proved the key.
    Proven,
    /// What it said does not open under the key: it has another one, or speaks something else.
    WrongKey,
    /// It holds the key, and there is no version that both ends speak.
    WrongVersion,
    /// It closed the connection, or that broke.
    HungUp,
    /// It had not proven the key in time.
    Late,
    /// It had to go for another.
    Displaced,
}

/// What has become of strangers so far.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Connections that were accepted.
    pub accepted: u64,
    /// That proved the key.
    pub proven: u64,
    /// Whose first or second message does not open under the key.
    pub wrong_key: u64,
    /// That speak other versions.
    pub wrong_version: u64,
    /// That hung up.
    pub hung_up: u64,
    /// That took too long.
    pub late: u64,
    /// That went for others.
    pub displaced: u64,
    /// That have not ended: no count but how many there are now.
    pub waiting: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.accepted += other.accepted;
        self.proven += other.proven;
        self.wrong_key += other.wrong_key;
        self.wrong_version += other.wrong_version;
        self.hung_up += other.hung_up;
        self.late += other.late;
        self.displaced += other.displaced;
        self.waiting += other.waiting;
    }
}

/// How many there may be, and for how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Places in all.
    pub places: usize,
    /// Places of one source.
    pub places_of_source: usize,
    /// How long one has to prove the key.
    pub patience: Duration,
}

/// See the module.
#[derive(Debug)]
pub struct Strangers {
    limits: Limits,
    /// Oldest first.
    waiting: Vec<Waiting>,
    /// Where the key was proven from lately, newest last.
    known: VecDeque<Source>,
    counts: Counts,
    refusals: Refusals,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: u64,
    source: Source,
    stage: Stage,
    deadline: Instant,
}

/// Refusals that were not told of yet.
#[derive(Debug, Default)]
struct Refusals {
    told_at: Option<Instant>,
    wrong_key: u64,
    late: u64,
    displaced: u64,
    last: Option<Source>,
}

/// What an operator is to hear of strangers, now and then.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Report {
    /// Since the last report, did not prove the key, ...
    pub wrong_key: u64,
    /// ... took too long, ...
    pub late: u64,
    /// ... and went for others.
    pub displaced: u64,
    /// Where the last of them came from.
    pub last: Source,
}

/// Sources that are remembered; arbitrary, more than the machines of a cluster.
const KNOWN_MAX: usize = 1024;
/// Least time between two reports.
const REPORT_PAUSE: Duration = Duration::from_secs(10);

impl Strangers {
    /// Nobody yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        assert!(limits.places_of_source > 0 && limits.places >= limits.places_of_source);
        Self {
            limits,
            waiting: Vec::new(),
            known: VecDeque::new(),
            counts: Counts::default(),
            refusals: Refusals::default(),
        }
    }

    /// Who has to go before somebody from `source` is admitted; ask until it is nobody.
    ///
    /// What a silent one has said may not have been looked at: look, and tell by
    /// [`Strangers::advance`], before it is closed.
    #[must_use]
    pub fn displaced_by(&self, source: Source) -> Option<u64> {
        let of_source = self.waiting.iter().filter(|other| other.source == source);
        let is_source_full = of_source.count() >= self.limits.places_of_source;
        if !is_source_full && self.waiting.len() < self.limits.places {
            return None;
        }
        let candidates = self
            .waiting
            .iter()
            .filter(|other| !is_source_full || other.source == source);
        // The first of the least: the oldest.
        let first = candidates.min_by_key(|other| {
            // A byte or two cost an attacker nothing, and a client's may be on their way.
            (other.stage == Stage::Answered, self.is_known(other.source))
        });
        first.map(|waiting| waiting.id)
    }

    /// Takes a connection in.
    ///
    /// # Panics
    /// There is no place for it.
    pub fn admit(&mut self, id: u64, source: Source, now: Instant) {
        assert_eq!(self.displaced_by(source), None, "room was made");
        self.counts.accepted += 1;
        self.waiting.push(Waiting {
            id,
            source,
            stage: Stage::Silent,
            deadline: now + self.limits.patience,
        });
    }

    /// Notes how far one has come.
    pub fn advance(&mut self, id: u64, stage: Stage) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.id == id) {
            waiting.stage = waiting.stage.max(stage);
        }
    }

    /// Whether it is here.
    #[must_use]
    pub fn contains(&self, id: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id)
    }

    /// Notes that one has ended.
    pub fn part(&mut self, id: u64, how: Parting) {
        let Some(at) = self.waiting.iter().position(|waiting| waiting.id == id) else {
            return;
        };
        let source = self.waiting.remove(at).source;
        let counts = &mut self.counts;
        match how {
            Parting::Proven => {
                counts.proven += 1;
                self.know(source);
            }
            // Said where it happens: with the versions.
            Parting::WrongVersion => counts.wrong_version += 1,
            Parting::HungUp => counts.hung_up += 1,
            Parting::WrongKey => {
                counts.wrong_key += 1;
                self.refusals.wrong_key += 1;
                self.refusals.last = Some(source);
            }
            Parting::Late => {
                counts.late += 1;
                self.refusals.late += 1;
                self.refusals.last = Some(source);
            }
            Parting::Displaced => {
                counts.displaced += 1;
                self.refusals.displaced += 1;
                self.refusals.last = Some(source);
            }
        }
    }

    /// One whose time is over.
    #[must_use]
    pub fn late(&self, now: Instant) -> Option<u64> {
        // All have the same time, so that the oldest is the first.
        let first = self.waiting.first()?;
        (first.deadline <= now).then_some(first.id)
    }

    /// When the time of the next one is over.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.waiting.first().map(|waiting| waiting.deadline)
    }

    /// What has become of all.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            waiting: self.waiting.len() as u64,
            ..self.counts
        }
    }

    /// What is to be logged, at most once in ten seconds.
    pub fn report(&mut self, now: Instant) -> Option<Report> {
        let last = self.refusals.last?;
        let told_at = self.refusals.told_at;
        if told_at.is_some_and(|at| now.saturating_duration_since(at) < REPORT_PAUSE) {
            return None;
        }
        let told = std::mem::take(&mut self.refusals);
        self.refusals.told_at = Some(now);
        Some(Report {
            wrong_key: told.wrong_key,
            late: told.late,
            displaced: told.displaced,
            last,
        })
    }

    fn is_known(&self, source: Source) -> bool {
        self.known.contains(&source)
    }

    fn know(&mut self, source: Source) {
        if self.known.back() == Some(&source) {
            return;
        }
        self.known.retain(|&known| known != source);
        self.known.push_back(source);
        if self.known.len() > KNOWN_MAX {
            self.known.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMITS: Limits = Limits {
        places: 8,
        places_of_source: 4,
        patience: Duration::from_secs(1),
    };

    fn source(last: u8) -> Source {
        IpAddr::from([10, 0, 0, last]).into()
    }

    fn come(strangers: &mut Strangers, id: u64, from: u8, now: Instant) -> Vec<u64> {
        let mut gone = Vec::new();
        while let Some(other) = strangers.displaced_by(source(from)) {
            strangers.part(other, Parting::Displaced);
            gone.push(other);
        }
        strangers.admit(id, source(from), now);
        gone
    }

    #[test]
    fn one_source_pushes_out_its_own_silent_ones_oldest_first() {
        let mut strangers = Strangers::new(LIMITS);
        let now = Instant::now();
        come(&mut strangers, 100, 2, now);
        for id in 0..4 {
            assert!(come(&mut strangers, id, 1, now).is_empty());
        }
        strangers.advance(0, Stage::Answered);
        strangers.advance(1, Stage::Speaking);
        assert_eq!(come(&mut strangers, 4, 1, now), [1]);
        assert_eq!(come(&mut strangers, 5, 1, now), [2]);
        assert_eq!(come(&mut strangers, 6, 1, now), [3]);
        assert!(strangers.contains(100) && strangers.contains(0) && strangers.contains(4));
        assert_eq!(strangers.counts().displaced, 3);
    }

    #[test]
    fn many_sources_push_out_strangers_before_those_that_were_clients() {
        let mut strangers = Strangers::new(LIMITS);
        let now = Instant::now();
        come(&mut strangers, 0, 1, now);
        strangers.part(0, Parting::Proven);
        come(&mut strangers, 1, 1, now);
        for id in 2..9 {
            assert!(come(&mut strangers, id, id as u8, now).is_empty());
        }
        for id in 9..50 {
            assert_eq!(come(&mut strangers, id, id as u8, now), [id - 7]);
        }
        assert!(strangers.contains(1), "a silent one, and of a known source");
        strangers.part(1, Parting::Proven);
        assert_eq!(strangers.counts().proven, 2);
    }

    #[test]
    fn who_takes_too_long_is_late_and_what_is_refused_is_told_now_and_then() {
        let mut strangers = Strangers::new(LIMITS);
        let start = Instant::now();
        come(&mut strangers, 1, 1, start);
        come(&mut strangers, 2, 2, start + Duration::from_millis(500));
        assert_eq!(strangers.next_deadline(), Some(start + LIMITS.patience));
        assert_eq!(strangers.late(start), None);
        assert_eq!(strangers.late(start + LIMITS.patience), Some(1));
        assert_eq!(strangers.report(start), None);
        strangers.part(1, Parting::Late);
        strangers.part(2, Parting::WrongKey);
        let report = Report {
            wrong_key: 1,
            late: 1,
            displaced: 0,
            last: source(2),
        };
        assert_eq!(strangers.report(start), Some(report));
        come(&mut strangers, 3, 3, start);
        strangers.part(3, Parting::WrongKey);
        assert_eq!(strangers.report(start + Duration::from_secs(9)), None);
        let second = strangers.report(start + Duration::from_secs(10)).unwrap();
        assert_eq!(
            (second.wrong_key, second.late, second.last),
            (1, 0, source(3))
        );
        assert_eq!(strangers.counts().wrong_key, 2);
    }

    #[test]
    fn a_network_of_ipv6_is_one_source() {
        let of = |text: &str| Source::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    proptest! {
        #[test]
        fn bounds_hold_and_who_speaks_at_once_stays(
            comers in proptest::collection::vec((0..6_u8, 0..3_u8), 1..200),
        ) {
            let mut strangers = Strangers::new(LIMITS);
            let now = Instant::now();
            let mut answered: Vec<(u64, u8)> = Vec::new();
            for (id, (from, how)) in (0..).zip(comers) {
                let gone = come(&mut strangers, id, from, now);
                // Of those that answered one goes only where all others of the budget have as well.
                for other in &gone {
                    if let Some(&(_, of)) = answered.iter().find(|(id, _)| id == other) {
                        let mine = answered.iter().filter(|(_, from)| *from == of).count();
                        prop_assert!(mine >= LIMITS.places_of_source || answered.len() >= LIMITS.places);
                    }
                }
                answered.retain(|(id, _)| !gone.contains(id));
                match how {
                    0 => {}
                    1 => { strangers.advance(id, Stage::Answered); answered.push((id, from)); }
                    _ => strangers.part(id, Parting::Proven),
                }
                let counts = strangers.counts();
                prop_assert!(counts.waiting <= LIMITS.places as u64);
                let of_source = strangers.waiting.iter().filter(|w| w.source == source(from)).count();
                prop_assert!(of_source <= LIMITS.places_of_source);
                prop_assert_eq!(counts.accepted, counts.waiting + counts.proven + counts.displaced);
            }
        }
    }
}

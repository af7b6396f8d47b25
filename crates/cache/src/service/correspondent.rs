//! A handle's connection to the manager of its cache: found, lost, and found again.
//!
//! Knows the words and the order in which they go; what they mean for regions is the client's. Never blocks:
//! threads of their own connect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, ClusterKey, Hello, Incoming, Session, Time, Waker, connector,
};

use super::message::{ANSWER_BYTES_MAX, KNOWN_MAX, Refusal, ToClient, ToManager, VERSION};
use super::server::SIGN_AFTER;
use crate::links::{Caller, Dial, Threads};

/// What came of the manager, for the handle.
#[derive(Debug)]
pub enum Told {
    /// Something about the cache.
    Message(ToClient),
    /// An answer, whole.
    Answer(u32, Vec<u8>),
    /// The connection on which this was asked ended without an answer.
    Unanswered(u32),
    /// It does not take this client.
    Refused(Refusal),
}

/// See the module's text.
pub struct Correspondent {
    addresses: Vec<Address>,
    dial: Threads,
    state: State,
    /// Of the addresses, the one that is tried next.
    next: usize,
    /// Of the last wish for a lease.
    asked_at: Time,
    /// Until when it has a lease, as far as it was told.
    leased_until: Time,
    doubts: VecDeque<(u32, u64)>,
    known: VecDeque<(u32, u64)>,
    troubled: VecDeque<u16>,
    questions: VecDeque<(u32, Vec<u8>)>,
    /// Questions that were sent on this connection, and not answered.
    asked: BTreeSet<u32>,
    /// And those of connections that ended.
    unanswered: Vec<u32>,
    /// Answers of which parts came.
    answers: BTreeMap<u32, Vec<u8>>,
    /// How messages about slabs are read.
    slab_bytes: u64,
    /// The cache, and the last of its managers that this heard of.
    followed: Option<(u128, u64)>,
    /// Since when it has asked for a lease and heard nothing, on this connection.
    unheard_since: Option<Time>,
}

enum State {
    Down {
        retry_at: Time,
    },
    Dialling,
    /// Connected, and to join.
    Strange(Box<dyn Session>),
    /// It joined.
    Joined(Box<dyn Session>),
}

/// Between two tries to reach a manager.
const RETRY: Duration = Duration::from_millis(100);
/// Between two wishes for a lease, while there is one and while there is none.
const ALIVE: Duration = Duration::from_millis(500);
const UNLEASED: Duration = Duration::from_millis(100);
/// A manager that says nothing for so long to who asks for a lease is stopped, or hangs: the next one may be at
/// another address.
const SILENCE: Duration = Duration::from_secs(10);
const _: () = assert!(
    SILENCE.as_secs() > 2 * SIGN_AFTER.as_secs(),
    "one that grants no lease and goes on says something before"
);
/// Most troubles that wait to be told: the manager compares books of a host once.
const TROUBLED_MAX: usize = 64;

impl Correspondent {
    /// Looks for the manager at `addresses`, one after the other, again and again.
    pub fn new(addresses: Vec<Address>, key: &ClusterKey, hello: Hello, waker: Waker) -> Self {
        let caller = Caller {
            connector: Arc::new(connector(key.clone())),
            hello,
            with_data: false,
        };
        Self {
            addresses,
            dial: Threads::new(caller).waking(waker),
            state: State::Down { retry_at: Time(0) },
            next: 0,
            asked_at: Time(0),
            leased_until: Time(0),
            doubts: VecDeque::new(),
            known: VecDeque::new(),
            troubled: VecDeque::new(),
            questions: VecDeque::new(),
            asked: BTreeSet::new(),
            unanswered: Vec::new(),
            answers: BTreeMap::new(),
            slab_bytes: 0,
            followed: None,
            unheard_since: None,
        }
    }

    /// As whom a handle is known.
    pub fn hello(name: &str, client: u128) -> Hello {
        let mut name = name.to_owned();
        while name.len() > 64 {
            name.pop();
        }
        let client = ClientId(client);
        Hello { client, name }
    }

    /// A write of this generation may land late, or is in one copy alone.
    pub fn say_doubt(&mut self, region: u32, generation: u64) {
        self.doubts.push_back((region, generation));
    }

    /// The client acts on this generation alone.
    pub fn say_known(&mut self, region: u32, generation: u64) {
        self.known.push_back((region, generation));
    }

    /// A host is other than the table says.
    pub fn say_trouble(&mut self, host: usize) {
        if let Ok(host) = u16::try_from(host)
            && !self.troubled.contains(&host)
            && self.troubled.len() < TROUBLED_MAX
        {
            self.troubled.push_back(host);
        }
    }

    /// Asks, once the manager is there.
    pub fn say_question(&mut self, number: u32, question: Vec<u8>) {
        self.questions.push_back((number, question));
    }

    /// Nobody waits for an answer any more: it is not asked if it was not yet.
    pub fn drop_question(&mut self, number: u32) {
        self.questions.retain(|(of, _)| *of != number);
    }

    /// The lease that was asked for at `asked_at`, if that is a moment at which this asked; when it ends.
    pub fn leased(&mut self, asked_at: u64) -> Time {
        let asked_at = Time(asked_at).min(self.asked_at);
        self.leased_until = self.leased_until.max(asked_at.after(crate::owner::LEASE));
        asked_at
    }

    /// What to wait for besides the waker.
    pub fn fd(&self) -> Option<RawFd> {
        match &self.state {
            State::Strange(session) | State::Joined(session) => session.fd(),
            State::Down { .. } | State::Dialling => None,
        }
    }

    /// It has to be asked for a lease by then.
    pub fn due(&self, now: Time) -> Time {
        match self.state {
            State::Joined(_) => self.asked_at.after(self.pause(now)),
            _ => now.after(UNLEASED),
        }
    }

    fn pause(&self, now: Time) -> Duration {
        match now < self.leased_until {
            true => ALIVE,
            false => UNLEASED,
        }
    }

    /// Whether there is a connection.
    pub fn is_connected(&self) -> bool {
        matches!(self.state, State::Strange(_) | State::Joined(_))
    }

    /// Takes what has come.
    pub fn receive(&mut self, now: Time, told: &mut Vec<Told>) {
        self.receive_all(now, told);
        told.extend(self.unanswered.drain(..).map(Told::Unanswered));
    }

    fn receive_all(&mut self, now: Time, told: &mut Vec<Told>) {
        while let Some(arrival) = self.dial.poll() {
            self.state = match arrival.linked {
                Ok(linked) => State::Strange(linked.session),
                Err(error) => {
                    tracing::debug!(%error, "no manager");
                    State::Down {
                        retry_at: now.after(RETRY),
                    }
                }
            };
        }
        if matches!(self.state, State::Down { retry_at } if now >= retry_at)
            && let Some(address) = self.addresses.get(self.next % self.addresses.len().max(1))
        {
            self.next += 1;
            self.dial.dial(0, address);
            self.state = State::Dialling;
        }
        loop {
            let (State::Strange(session) | State::Joined(session)) = &mut self.state else {
                return;
            };
            match session.receive() {
                Ok(Some(Incoming::Message(bytes))) => {
                    self.unheard_since = None;
                    match ToClient::decode(&bytes, self.slab_bytes) {
                        Ok(message) => self.take(now, message, told),
                        Err(error) => {
                            tracing::warn!(%error, "the manager's message");
                            return self.lose(now);
                        }
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) if self.is_unheard(now) => {
                    tracing::warn!("the manager says nothing");
                    return self.lose(now);
                }
                Ok(None) => return,
                Err(_) => return self.lose(now),
            }
        }
    }

    fn is_unheard(&self, now: Time) -> bool {
        self.unheard_since
            .is_some_and(|since| now.since(since) >= SILENCE)
    }

    fn take(&mut self, now: Time, message: ToClient, told: &mut Vec<Told>) {
        match message {
            ToClient::Welcome(welcome) => {
                let followed = self.followed.filter(|(cache, _)| *cache == welcome.cache);
                if followed.is_some_and(|(_, epoch)| welcome.epoch < epoch) {
                    // Its table may be out of date: it does not know of the next one.
                    tracing::debug!(welcome.epoch, "an earlier manager");
                    return self.lose(now);
                }
                self.followed = Some((welcome.cache, welcome.epoch));
                self.slab_bytes = welcome.slab_bytes;
                told.push(Told::Message(message));
            }
            ToClient::Unknown => {
                let state = std::mem::replace(&mut self.state, State::Dialling);
                self.state = match state {
                    State::Joined(session) => State::Strange(session),
                    other => other,
                };
            }
            ToClient::Answer {
                number,
                is_last,
                part,
            } => {
                let answer = self.answers.entry(number).or_default();
                answer.extend(part);
                if answer.len() > ANSWER_BYTES_MAX {
                    tracing::warn!("the manager's answer is too long");
                    return self.lose(now);
                }
                if is_last && let Some(answer) = self.answers.remove(&number) {
                    self.asked.remove(&number);
                    told.push(Told::Answer(number, answer));
                }
            }
            ToClient::Refused(refusal) => {
                told.push(Told::Refused(refusal));
                self.lose(now);
            }
            ToClient::Host { .. } | ToClient::Entry(_) | ToClient::Lease { .. } => {
                told.push(Told::Message(message));
            }
        }
    }

    fn lose(&mut self, now: Time) {
        self.state = State::Down {
            retry_at: now.after(RETRY),
        };
        self.unheard_since = None;
        self.answers.clear();
        self.unanswered.extend(std::mem::take(&mut self.asked));
    }

    /// Says what waits: that it joins, what it knows, what it asks, that it is alive. `joins`: it takes part
    /// in the cache, and does not only ask.
    pub fn send(&mut self, now: Time, joins: bool) {
        let pause = self.pause(now);
        let is_strange = matches!(self.state, State::Strange(_));
        let (State::Strange(session) | State::Joined(session)) = &mut self.state else {
            return;
        };
        let mut say = |message: &ToManager| session.send(&message.encode()).is_ok();
        while let Some((number, question)) = self.questions.front() {
            let (number, question) = (*number, question.clone());
            if !say(&ToManager::Ask { number, question }) {
                return;
            }
            self.questions.pop_front();
            self.asked.insert(number);
        }
        if !joins {
            return;
        }
        if is_strange {
            return self.join(now);
        }
        while let Some(&(region, generation)) = self.doubts.front() {
            if !say(&ToManager::Doubt { region, generation }) {
                return;
            }
            self.doubts.pop_front();
        }
        while !self.known.is_empty() {
            let count = self.known.len().min(KNOWN_MAX);
            let known: Vec<(u32, u64)> = self.known.range(..count).copied().collect();
            if !say(&ToManager::Known(known)) {
                return;
            }
            self.known.drain(..count);
        }
        while let Some(&host) = self.troubled.front() {
            if !say(&ToManager::Trouble { host }) {
                return;
            }
            self.troubled.pop_front();
        }
        let alive = ToManager::Alive { asked_at: now.0 };
        if now.since(self.asked_at) >= pause && say(&alive) {
            self.asked_at = now;
            self.unheard_since.get_or_insert(now);
        }
    }

    fn join(&mut self, now: Time) {
        let State::Strange(mut session) = std::mem::replace(&mut self.state, State::Dialling)
        else {
            return;
        };
        // The manager tells of every region again, and hears of each again.
        self.known.clear();
        self.doubts.clear();
        let join = ToManager::Join { version: VERSION }.encode();
        let alive = ToManager::Alive { asked_at: now.0 }.encode();
        match session.send(&join).and_then(|()| session.send(&alive)) {
            Ok(()) => {
                self.asked_at = now;
                self.unheard_since.get_or_insert(now);
                self.state = State::Joined(session);
            }
            Err(_) => self.lose(now),
        }
    }

    /// Says goodbye: nothing is under way. Not before every doubt is told: who left has none, and copies that
    /// differ would stay so. Without a goodbye the manager waits for the lease to end, and sees to them.
    pub fn leave(&mut self) {
        if self.doubts.is_empty()
            && let State::Joined(session) = &mut self.state
            && let Err(error) = session.send(&ToManager::Leave.encode())
        {
            tracing::debug!(%error, "say goodbye");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use cenote_fabric::calls::CallerOpener;
    use cenote_fabric::{Error, Opener, Result, WindowDescriptor};

    use super::*;
    use crate::configuration::Configuration;
    use crate::service::message::Welcome;

    /// Keeps what is said, and takes no more than so many messages; says what comes.
    #[derive(Default)]
    struct Line {
        said: Vec<ToManager>,
        most: usize,
        comes: VecDeque<ToClient>,
    }

    #[derive(Clone, Default)]
    struct Said(Arc<Mutex<Line>>);

    impl Said {
        fn with_room(most: usize) -> Self {
            let said = Self::default();
            said.0.lock().unwrap().most = most;
            said
        }

        fn says(comes: impl Into<VecDeque<ToClient>>) -> Self {
            let said = Self::with_room(usize::MAX);
            said.0.lock().unwrap().comes = comes.into();
            said
        }
    }

    impl Session for Said {
        fn send(&mut self, message: &[u8]) -> Result<()> {
            let line = &mut *self.0.lock().unwrap();
            if line.said.len() >= line.most {
                return Err(Error::Bound("a full socket"));
            }
            line.said.push(ToManager::decode(message).unwrap());
            Ok(())
        }

        fn attach(&mut self, _: WindowDescriptor) -> Result<()> {
            unreachable!("no window is attached")
        }

        fn receive(&mut self) -> Result<Option<Incoming>> {
            let comes = self.0.lock().unwrap().comes.pop_front();
            Ok(comes.map(|message| Incoming::Message(message.encode())))
        }

        fn opener(&self) -> Opener {
            unreachable!("no data goes this way")
        }

        fn caller_opener(&self) -> CallerOpener {
            unreachable!("no data goes this way")
        }

        fn fd(&self) -> Option<RawFd> {
            None
        }

        fn wants_write(&self) -> bool {
            false
        }
    }

    /// One that finds no manager by itself.
    fn correspondent() -> Correspondent {
        let hello = Correspondent::hello("it", 1);
        let key = ClusterKey::generate().unwrap();
        Correspondent::new(Vec::new(), &key, hello, Waker::new().unwrap())
    }

    fn said_at_the_end(most: usize) -> Vec<ToManager> {
        let said = Said::with_room(most);
        let mut manager = correspondent();
        manager.state = State::Joined(Box::new(said.clone()));
        manager.say_doubt(3, 7);
        manager.send(Time(1), true);
        manager.leave();
        std::mem::take(&mut said.0.lock().unwrap().said)
    }

    #[test]
    fn nobody_says_goodbye_with_a_doubt_untold() {
        let doubt = ToManager::Doubt {
            region: 3,
            generation: 7,
        };
        let said = said_at_the_end(10);
        assert_eq!(said.first(), Some(&doubt));
        assert_eq!(said.last(), Some(&ToManager::Leave));
        assert_eq!(said_at_the_end(0), []);
        // No room for the doubt, and some again when it leaves.
        let said = Said::default();
        let mut manager = correspondent();
        manager.state = State::Joined(Box::new(said.clone()));
        manager.say_doubt(3, 7);
        manager.send(Time(1), true);
        said.0.lock().unwrap().most = 10;
        manager.leave();
        assert_eq!(said.0.lock().unwrap().said, []);
    }

    #[test]
    fn a_manager_that_says_nothing_to_who_asks_for_a_lease_is_left() {
        let said = Said::says([]);
        let mut manager = correspondent();
        manager.state = State::Strange(Box::new(said.clone()));
        let mut is_there_after = |seconds: u64| {
            let now = Time(1).after(Duration::from_secs(seconds));
            manager.receive(now, &mut Vec::new());
            manager.send(now, true);
            manager.is_connected()
        };
        assert!((0..10).all(&mut is_there_after));
        // Whatever it says, it is there; what counts is since when it was asked next.
        let lease = ToClient::Lease { asked_at: 0 };
        said.0.lock().unwrap().comes.push_back(lease.clone());
        assert!((10..20).all(&mut is_there_after));
        said.0.lock().unwrap().comes.push_back(lease.clone());
        assert!(is_there_after(20));
        // Nobody polled it for long: its answer has waited.
        said.0.lock().unwrap().comes.push_back(lease);
        assert!((1000..1010).all(&mut is_there_after));
        assert!(!is_there_after(1010));
    }

    #[test]
    fn a_client_does_not_go_back_to_an_earlier_manager() {
        let welcome = |cache, epoch| {
            ToClient::Welcome(Welcome {
                version: VERSION,
                cache,
                epoch,
                slab_bytes: 1 << 20,
                slabs_per_region: 1,
                hosts: 0,
                configuration: Configuration {
                    c: 1,
                    s: 0,
                    b: 1,
                    q: 1,
                },
            })
        };
        let mut manager = correspondent();
        let mut told_by = |comes: [ToClient; 2]| {
            manager.state = State::Joined(Box::new(Said::says(comes)));
            let mut told = Vec::new();
            manager.receive(Time(1), &mut told);
            (told.len(), manager.is_connected())
        };
        let lease = ToClient::Lease { asked_at: 0 };
        assert_eq!(told_by([welcome(7, 2), lease.clone()]), (2, true));
        assert_eq!(told_by([welcome(7, 1), lease.clone()]), (0, false));
        assert_eq!(told_by([welcome(7, 2), lease.clone()]), (2, true));
        // The handle is to hear of another cache, whose managers are counted anew.
        assert_eq!(told_by([welcome(8, 1), lease]), (2, true));
    }
}

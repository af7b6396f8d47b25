//! A connection to one store, on its thread: made again after it broke, when something is asked.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use cenote_fabric::{Status, Time, Waker, wait};
use cenote_store::client::{Client, ClientError};

use super::{End, Error, Request, StoreTarget, command, done, explain};
use crate::driver::Connection;

pub struct Link {
    place: StoreTarget,
    waker: Waker,
    client: Option<Client>,
    under_way: UnderWay,
    /// Ended without the store.
    refused: Vec<(u64, End)>,
    /// When the last try to connect ended, and why in vain. What was asked for until then shares its
    /// end: those who wait behind one another do not wait for a try each.
    last_try: Option<(Time, Error)>,
    unsettled: Unsettled,
}

/// Requests under way, and whether the store has fallen silent on them.
#[derive(Debug, Default)]
struct UnderWay {
    /// When each was begun. Tokens grow, so the first is the oldest.
    begun: BTreeMap<u64, Time>,
    /// When the oldest ended last, or one that has waited for about as long.
    moved: Time,
}

impl UnderWay {
    fn begin(&mut self, token: u64, now: Time) {
        self.begun.insert(token, now);
    }

    fn end(&mut self, token: u64, limit: Duration, now: Time) {
        let oldest = self.oldest();
        let begun = self.begun.remove(&token);
        // What came long after the oldest does not say that this one's turn comes.
        if let (Some(oldest), Some(begun)) = (oldest, begun)
            && begun <= oldest.after(limit)
        {
            self.moved = now;
        }
    }

    /// Whether the oldest waits for longer than `limit`, and what it waits with does not end
    /// either: where much is under way a slow store takes longer for all of it.
    fn is_stuck(&self, limit: Duration, now: Time) -> bool {
        let since = self.oldest().map(|oldest| oldest.max(self.moved));
        since.is_some_and(|since| since.after(limit) < now)
    }

    fn oldest(&self) -> Option<Time> {
        self.begun.first_key_value().map(|(_, begun)| *begun)
    }
}

/// What was put, and is not known to be durable.
#[derive(Debug, Default)]
struct Unsettled {
    /// Puts that ended well, and that a crash may take, ...
    puts: u64,
    /// ... and those of them that are durable: that had ended before a `Sync` began that ended
    /// well.
    settled: u64,
    /// Under way.
    concerned: BTreeMap<u64, Concerned>,
    /// A connection ended before all were durable: the next one knows nothing of them.
    is_forgotten: bool,
}

/// A request that what is durable depends on.
#[derive(Clone, Copy, Debug)]
enum Concerned {
    /// A put that does not wait until it is durable. The store has it once it has ended well.
    Put,
    /// A `Sync`, and the puts that had ended before it. The store may not know of others yet.
    Sync { puts: u64 },
}

impl Unsettled {
    fn begin(&mut self, token: u64, request: &Request) {
        let concerned = match request {
            Request::Put {
                is_durable: false, ..
            } => Concerned::Put,
            Request::Sync => Concerned::Sync { puts: self.puts },
            _ => return,
        };
        self.concerned.insert(token, concerned);
    }

    fn end(&mut self, token: u64, is_ok: bool) {
        match self.concerned.remove(&token).filter(|_| is_ok) {
            Some(Concerned::Put) => self.puts += 1,
            Some(Concerned::Sync { puts }) => self.settled = self.settled.max(puts),
            None => {}
        }
    }

    /// The connection has ended, and what was under way.
    fn forget(&mut self) {
        self.is_forgotten |= self.puts > self.settled;
        self.settled = self.puts;
        self.concerned.clear();
    }
}

impl Link {
    /// Connects.
    pub fn open(place: StoreTarget) -> Result<Self, Error> {
        let waker = Waker::new().map_err(|error| Error::Refused(error.to_string()))?;
        let client = Some(place.connect(0)?);
        Ok(Self {
            place,
            waker,
            client,
            under_way: UnderWay::default(),
            refused: Vec::new(),
            last_try: None,
            unsettled: Unsettled::default(),
        })
    }

    /// The client, for a request of this time.
    fn connected(&mut self, asked: Time) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            if let Some((at, error)) = &self.last_try
                && asked <= *at
            {
                return Err(error.clone());
            }
            match self.place.connect(0) {
                Ok(client) => self.client = Some(client),
                Err(error) => {
                    self.last_try = Some((Time::now(), error.clone()));
                    return Err(error);
                }
            }
        }
        Ok(self.client.as_mut().expect("just made"))
    }

    /// Gives the connection up, and with it what is under way.
    fn fail(&mut self, status: Status) {
        self.client = None;
        self.unsettled.forget();
        let tokens = std::mem::take(&mut self.under_way).begun.into_keys();
        let error = explain(ClientError::Lost(status));
        self.refused
            .extend(tokens.map(|token| (token, Err(error.clone()))));
    }
}

impl Connection for Link {
    type Request = Request;
    type End = End;

    fn begin(&mut self, request: Request, token: u64, asked: Time) {
        if matches!(request, Request::Sync) && std::mem::take(&mut self.unsettled.is_forgotten) {
            let why =
                "the connection ended before what was put was durable; a crash may have taken it";
            self.refused.push((token, Err(Error::Lost(why.to_owned()))));
            return;
        }
        self.unsettled.begin(token, &request);
        match self.connected(asked) {
            Ok(client) => {
                // Connecting took a while.
                let now = Time::now();
                client.submit(command(request), token, now);
                self.under_way.begin(token, now);
            }
            Err(error) => {
                self.unsettled.end(token, false);
                self.refused.push((token, Err(error)));
            }
        }
    }

    fn poll(&mut self, ended: &mut Vec<(u64, End)>) {
        let now = Time::now();
        let mut broken = None;
        while let Some(client) = &mut self.client
            && let Some((token, end)) = client.poll(now)
        {
            self.under_way.end(token, self.place.limit, now);
            self.unsettled.end(token, end.is_ok());
            if let Err(ClientError::Lost(status)) = end {
                broken = Some(status);
            }
            ended.push((token, end.map(done).map_err(explain)));
        }
        if self.under_way.is_stuck(self.place.limit, now) {
            broken = Some(Status::Timeout);
        }
        if let Some(status) = broken {
            self.fail(status);
        }
        ended.append(&mut self.refused);
    }

    fn wait(&mut self, timeout: Duration) {
        let fd = self.waker.as_fd().as_raw_fd();
        let waited = match &mut self.client {
            // Without work an end of the connection is found by what is asked next.
            Some(client) if !self.under_way.begun.is_empty() => client.wait_beside(fd, timeout),
            _ => wait(&[fd], Some(IDLE)).map(drop),
        };
        if waited.is_err() {
            self.fail(Status::Disconnected);
        }
        self.waker.clear();
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Sleep without work.
const IDLE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    /// Where no store is.
    fn nowhere(limit: Duration) -> StoreTarget {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        drop(listener);
        StoreTarget {
            addresses: vec![address.parse().unwrap()],
            key: cenote_fabric::ClusterKey::from_hex(&"37".repeat(32)).unwrap(),
            limit,
        }
    }

    #[test]
    fn a_store_may_be_waited_for_however_long_it_takes() {
        let connected = nowhere(Duration::MAX).connect(0);
        assert!(matches!(connected, Err(Error::Unreachable(_))));
    }

    #[test]
    fn who_asked_before_a_try_failed_shares_its_end_and_who_asks_later_has_one_of_its_own() {
        let mut link = Link {
            place: nowhere(Duration::from_millis(100)),
            waker: Waker::new().unwrap(),
            client: None,
            under_way: UnderWay::default(),
            refused: Vec::new(),
            last_try: None,
            unsettled: Unsettled::default(),
        };
        let tries = |link: &mut Link, asked: Time| {
            let before = link.last_try.as_ref().map(|(at, _)| *at);
            link.begin(Request::Sync, 1, asked);
            let mut ended = Vec::new();
            link.poll(&mut ended);
            let is_unreachable = matches!(ended[..], [(1, Err(Error::Unreachable(_)))]);
            assert!(is_unreachable, "{ended:?}");
            link.last_try.as_ref().map(|(at, _)| *at) != before
        };
        let early = Time::now();
        assert!(tries(&mut link, early));
        assert!(!tries(&mut link, early), "it was asked for before that try");
        assert!(tries(&mut link, Time::now()), "the store may be there now");
    }

    const LIMIT: Duration = Duration::from_secs(8);

    fn at(secs: u64) -> Time {
        Time::default().after(Duration::from_secs(100 + secs))
    }

    /// The first of `ends`, (when, token), after which nothing ends before the store counts as
    /// silent.
    fn stuck_at(under_way: &mut UnderWay, ends: &[(u64, u64)]) -> Option<u64> {
        (0..200).find(|&secs| {
            for (_, token) in ends.iter().filter(|(when, _)| *when == secs) {
                under_way.end(*token, LIMIT, at(secs));
            }
            under_way.is_stuck(LIMIT, at(secs))
        })
    }

    #[test]
    fn a_store_that_goes_on_answering_is_not_silent_however_much_it_is_asked() {
        let orders: [[u64; 8]; 2] = [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]];
        for order in orders {
            let mut under_way = UnderWay::default();
            for token in 0..8 {
                under_way.begin(token, at(0));
            }
            let ends = (1..).map(|round| 2 * round).zip(order);
            assert_eq!(stuck_at(&mut under_way, &ends.collect::<Vec<_>>()), None);
        }
    }

    #[test]
    fn a_store_that_ends_nothing_is_silent_after_its_limit() {
        let mut under_way = UnderWay::default();
        under_way.begin(0, at(0));
        under_way.begin(1, at(1));
        assert_eq!(stuck_at(&mut under_way, &[]), Some(9));

        let mut under_way = UnderWay::default();
        under_way.begin(0, at(0));
        under_way.begin(1, at(0));
        assert_eq!(stuck_at(&mut under_way, &[(5, 1)]), Some(14));
    }

    #[test]
    fn requests_that_came_long_after_one_that_is_stuck_do_not_keep_it_waiting() {
        let mut under_way = UnderWay::default();
        under_way.begin(0, at(0));
        for token in 1..100 {
            under_way.begin(token, at(token));
            under_way.end(token, LIMIT, at(token));
            let is_over = token > 16;
            assert_eq!(under_way.is_stuck(LIMIT, at(token)), is_over, "{token}");
        }
    }

    /// With so many puts that have ended well.
    fn after_puts(count: u64) -> Unsettled {
        let mut unsettled = Unsettled::default();
        for token in 0..count {
            unsettled.begin(token, &put(false));
            unsettled.end(token, true);
        }
        unsettled
    }

    fn put(is_durable: bool) -> Request {
        Request::Put {
            key: b"key".to_vec(),
            value: Vec::new(),
            condition: super::super::Condition::Always,
            is_durable,
        }
    }

    fn is_forgotten_with_its_connection(mut unsettled: Unsettled) -> bool {
        unsettled.forget();
        unsettled.is_forgotten
    }

    #[test]
    fn what_a_sync_under_way_was_to_make_durable_is_forgotten_with_its_connection() {
        let mut unsettled = after_puts(2);
        unsettled.begin(7, &Request::Sync);
        assert!(is_forgotten_with_its_connection(unsettled));

        let mut unsettled = after_puts(1);
        unsettled.begin(7, &Request::Sync);
        unsettled.begin(8, &put(false));
        unsettled.end(8, true);
        unsettled.end(7, true);
        assert_eq!(unsettled.settled, 1, "the second came after it");
        unsettled.begin(9, &Request::Sync);
        unsettled.end(9, false);
        assert!(is_forgotten_with_its_connection(unsettled));

        let mut unsettled = after_puts(2);
        unsettled.begin(7, &Request::Sync);
        unsettled.end(7, true);
        let is_forgotten = is_forgotten_with_its_connection(unsettled);
        assert!(!is_forgotten, "all of it is durable");
    }

    #[test]
    fn a_sync_makes_no_put_durable_that_ends_after_it_began() {
        let mut unsettled = Unsettled::default();
        unsettled.begin(1, &put(false));
        unsettled.begin(2, &Request::Sync);
        unsettled.end(2, true);
        unsettled.end(1, true);
        assert!(is_forgotten_with_its_connection(unsettled));
    }

    #[test]
    fn puts_that_are_refused_or_durable_are_not_forgotten() {
        let mut unsettled = Unsettled::default();
        unsettled.begin(1, &put(false));
        unsettled.end(1, false);
        unsettled.begin(2, &put(true));
        unsettled.end(2, true);
        // Who waits for this one is told of it.
        unsettled.begin(3, &put(false));
        assert!(!is_forgotten_with_its_connection(unsettled));
    }
}

//! How a program uses a cache.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::calls::CALLS_UNDER_WAY_MAX;
use cenote_fabric::{Address, ClusterKey, QUEUE_DEPTH, Time, Waker, connector_with, wait};

use cenote_pool::batch::OPERATION_BYTES_MAX;

use super::asker::{self, CallError};
use super::correspondent::{Correspondent, Told};
use super::greeting::{OpenError, Options, REST, greeted, host_of};
use super::message::{Refusal, ToClient, Welcome};
use super::question::{Answer, Question, Status};
use crate::client::{Client, Ended, Geometry, Lost};
use crate::configuration::Configuration;
use crate::connections::Attached;
use crate::links::{Caller, Threads};
use crate::path::Token;

/// One thread's handle on a cache: a range of bytes in the memory of several machines.
///
/// A program with several client threads (the configuration's c) opens one on each. Requests of one handle
/// that overlap take effect in the order of their submission; those of several in any.
///
/// The handle works within its calls: what is under way goes on when it is polled, or a call blocks. It
/// keeps a lease while it is called at least every second; one that is not called for longer is waited for
/// by nobody, and takes part again with the next call.
///
/// ```no_run
/// use cenote_cache::service::{Cache, Options};
/// use cenote_fabric::ClusterKey;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = ClusterKey::load("/srv/well/cluster.key".as_ref())?;
/// let manager = "shm:/srv/well/caches/c0/socket".parse()?;
/// let mut cache = Cache::open(vec![manager], &key, &Options::default())?;
/// // One at a time:
/// cache.write(4096, b"some bytes")?;
/// let mut bytes = [0; 10];
/// cache.read(4096, &mut bytes)?;
/// // Many under way:
/// for record in 0..16 {
///     cache.submit_read(record * 16, bytes::BytesMut::zeroed(16), record)?;
/// }
/// let mut ended = Vec::new();
/// while ended.len() < 16 {
///     cache.wait(std::time::Duration::from_millis(100))?;
///     cache.poll(&mut ended);
/// }
/// for end in ended {
///     match end.result {
///         Ok(()) => println!("record {}: {:?}", end.token, &end.buffer[..]),
///         Err(error) => println!("{error}; try again: {}", error.is_retryable()),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Cache {
    manager: Correspondent,
    attached: Attached,
    /// Bytes that a call has under way.
    call_bytes: usize,
    welcome: Welcome,
    state: State,
    options: Options,
    waker: Waker,
    questions: u32,
    tended_at: Time,
    /// Ended while a call blocked that they are not of.
    ended: VecDeque<Ended>,
    told: Vec<Told>,
}

/// Whether the cache is there.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    There,
    Gone,
}

/// The token of the request that a call waits for. No other request has it.
const CALL: Token = Token::MAX;
/// Bytes that a call has under way, as few parts; ...
const CALL_BYTES: usize = 64 << 20;
/// ... and where each part is as long as a request in a message may be.
const BATCHED_CALL_BYTES: usize = 1 << 20;
/// Between two looks for messages while requests keep the thread busy.
const TEND: Duration = Duration::from_micros(500);
impl Cache {
    /// Finds the manager at one of `addresses`, and waits until it told of every region.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        addresses: Vec<Address>,
        key: &ClusterKey,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let waker = Waker::new()?;
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(OpenError::Random)?;
        let hello = Correspondent::hello(&options.name, u128::from_le_bytes(bytes));
        let mut manager = Correspondent::new(addresses, key, hello.clone(), waker.clone());
        let begun = Time::now();
        let (welcome, hosts, told) = greeted(&mut manager, options, begun, &waker)?;
        let geometry = Geometry {
            slab_bytes: welcome.slab_bytes,
            slabs_per_region: welcome.slabs_per_region,
        };
        let configuration = welcome.configuration;
        let is_batched = configuration.s > 0;
        let client = Client::new(geometry, hosts.len(), options.patience);
        let client = match is_batched {
            true => client.with_pieces(OPERATION_BYTES_MAX),
            false => client,
        };
        let caller = Caller {
            connector: Arc::new(connector_with(key.clone(), options.page_traffic)),
            hello,
            with_data: true,
        };
        let dial = Threads::new(caller).waking(waker.clone());
        let dial = Box::new(if is_batched { dial.for_calls() } else { dial });
        let batch_requests = usize::try_from(configuration.b).expect("at most 4096");
        let attached = Attached::new(client, hosts, dial, depth(configuration));
        let mut cache = Self {
            manager,
            attached: attached.with_batches(batch_requests),
            call_bytes: if is_batched {
                BATCHED_CALL_BYTES
            } else {
                CALL_BYTES
            },
            welcome,
            state: State::There,
            options: options.clone(),
            waker,
            questions: 0,
            tended_at: Time(0),
            ended: VecDeque::new(),
            told,
        };
        while !cache.attached.client.has_lease(Time::now()) {
            if Time::now().since(begun) >= options.timeout {
                return Err(OpenError::NoManager(options.timeout));
            }
            if cache.state == State::Gone {
                return Err(Refusal::Ending.into());
            }
            cache.rest(REST)?;
            cache.tend(Time::now());
        }
        Ok(cache)
    }

    /// How it is to be accessed: c handles, b times q requests under way on each.
    #[must_use]
    pub fn configuration(&self) -> Configuration {
        self.welcome.configuration
    }

    /// Bytes of the cache, as far as the handle was told.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.attached.client.len_bytes()
    }

    /// Bytes of a region: losses are told by region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.welcome.slab_bytes * u64::from(self.welcome.slabs_per_region)
    }

    /// A region whose bytes were lost since the handle was opened, oldest first: it holds zeros, and what
    /// was written from then on.
    pub fn take_lost(&mut self) -> Option<Lost> {
        self.attached.client.take_lost()
    }

    /// A region that came back from a checkpoint after a loss, oldest first, and when its bytes were as they
    /// are now.
    pub fn take_fallen_back(&mut self) -> Option<crate::client::FellBack> {
        self.attached.client.take_fallen_back()
    }

    /// How many times the region's bytes were lost in all.
    #[must_use]
    pub fn losses(&self, region: usize) -> u32 {
        self.attached.client.losses(region)
    }

    /// Whether the cache was deleted, or its time is over, as far as the handle was told.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.state == State::Gone
    }

    /// Requests under way or waiting.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.attached.client.outstanding()
    }

    /// Fills `buffer`, all of its length, from `address` on. Ends with [`Cache::poll`].
    ///
    /// # Errors
    /// As [`Client::submit_read`], and `Gone`: nothing was submitted.
    ///
    /// # Panics
    /// If the token is [`Token::MAX`].
    pub fn submit_read(
        &mut self,
        address: u64,
        buffer: BytesMut,
        token: Token,
    ) -> Result<(), CallError> {
        assert_ne!(token, CALL, "this token is taken");
        self.submit(address, Work::Read(buffer), token)
    }

    /// Stores `bytes` from `address` on. Ends with [`Cache::poll`].
    ///
    /// # Errors
    /// As [`Cache::submit_read`].
    ///
    /// # Panics
    /// As [`Cache::submit_read`].
    pub fn submit_write(
        &mut self,
        address: u64,
        bytes: Bytes,
        token: Token,
    ) -> Result<(), CallError> {
        assert_ne!(token, CALL, "this token is taken");
        self.submit(address, Work::Write(bytes), token)
    }

    fn submit(&mut self, address: u64, work: Work, token: Token) -> Result<(), CallError> {
        if self.state == State::Gone {
            return Err(CallError::Gone);
        }
        let (now, client) = (Time::now(), &mut self.attached.client);
        match work {
            Work::Read(buffer) => client.submit_read(now, address, buffer, token)?,
            Work::Write(bytes) => client.submit_write(now, address, bytes, token)?,
        }
        Ok(())
    }

    /// Goes on without blocking, and appends what ended.
    pub fn poll(&mut self, ended: &mut Vec<Ended>) {
        ended.extend(self.ended.drain(..));
        let now = Time::now();
        if now.since(self.tended_at) >= TEND {
            self.tend(now);
        }
        self.attached.client.poll(now, ended);
    }

    /// Blocks until there may be something to poll, at most for `timeout`.
    ///
    /// # Errors
    /// The system refuses to wait.
    pub fn wait(&mut self, timeout: Duration) -> Result<(), CallError> {
        if self.ended.is_empty() {
            self.tend(Time::now());
            self.rest(timeout.min(REST))?;
            self.tend(Time::now());
        }
        Ok(())
    }

    /// Ends [`Cache::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Fills `bytes` from `address` on, across regions, and returns when it is done.
    ///
    /// # Errors
    /// The first that failed; bytes before may have been read.
    pub fn read(&mut self, address: u64, bytes: &mut [u8]) -> Result<(), CallError> {
        for (at, part) in (0_u64..)
            .step_by(self.call_bytes)
            .zip(bytes.chunks_mut(self.call_bytes))
        {
            let buffer = BytesMut::zeroed(part.len());
            let buffer = self.call(address.saturating_add(at), Work::Read(buffer))?;
            part.copy_from_slice(&buffer);
        }
        Ok(())
    }

    /// Stores `bytes` from `address` on, across regions, and returns when every copy has them.
    ///
    /// # Errors
    /// The first that failed; bytes before, and a part of those that failed, may be stored.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), CallError> {
        for (at, part) in (0_u64..)
            .step_by(self.call_bytes)
            .zip(bytes.chunks(self.call_bytes))
        {
            let bytes = Bytes::copy_from_slice(part);
            self.call(address.saturating_add(at), Work::Write(bytes))?;
        }
        Ok(())
    }

    fn call(&mut self, address: u64, work: Work) -> Result<BytesMut, CallError> {
        self.submit(address, work, CALL)?;
        let mut ended = Vec::new();
        let mut idle_since = Time::now();
        loop {
            self.attached.client.poll(Time::now(), &mut ended);
            let mut own = None;
            for end in ended.drain(..) {
                match end.token {
                    CALL => own = Some(end),
                    _ => self.ended.push_back(end),
                }
            }
            if let Some(end) = own {
                return end.result.map(|()| end.buffer).map_err(CallError::from);
            }
            let now = Time::now();
            if now.since(self.tended_at) >= TEND {
                self.tend(now);
            }
            // Over shared memory it has ended by now, or has to wait for longer.
            if now.since(idle_since) >= SPIN {
                // One that cannot block waits all the same: a later call would be given this end.
                if self.rest(REST).is_err() {
                    std::thread::sleep(PAUSE);
                }
                self.tend(Time::now());
                idle_since = Time::now();
            }
        }
    }

    /// How the cache is.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn status(&mut self) -> Result<Status, CallError> {
        match self.ask(&Question::Status)? {
            Answer::Status(status) => Ok(*status),
            _ => Err(CallError::Refused(
                "an answer to another question".to_owned(),
            )),
        }
    }

    /// Has the cache be of so many regions. What is cut off is lost; what is new holds zeros.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn reshape(&mut self, regions: u32) -> Result<(), CallError> {
        self.ask(&Question::Resize { regions }).map(drop)
    }

    /// Has the cache end so long from now, unless it is renewed; `None`: when it is deleted.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn renew(&mut self, duration: Option<Duration>) -> Result<(), CallError> {
        let seconds = duration.map(|duration| duration.as_secs());
        self.ask(&Question::Renew { seconds }).map(drop)
    }

    /// Has the cache give all its memory back, and end.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn delete(&mut self) -> Result<(), CallError> {
        self.ask(&Question::Delete).map(drop)
    }

    /// Asks the manager: the next one, where it ends before it is asked, or before it said how the
    /// cache is.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn ask(&mut self, question: &Question) -> Result<Answer, CallError> {
        self.questions += 1;
        let number = self.questions;
        let bytes = serde_json::to_vec(question).expect("plain data");
        self.manager.say_question(number, bytes.clone());
        let begun = Time::now();
        loop {
            self.tend(Time::now());
            // Others are of calls that were given up.
            for told in std::mem::take(&mut self.told) {
                match told {
                    Told::Answer(of, text) if of == number => return asker::read(&text),
                    Told::Unanswered(of) if of == number && question.is_repeatable() => {
                        self.manager.say_question(number, bytes.clone());
                    }
                    Told::Unanswered(of) if of == number => return Err(CallError::Ended),
                    _ => {}
                }
            }
            if self.state == State::Gone {
                return Err(CallError::Gone);
            }
            if Time::now().since(begun) >= self.options.timeout {
                // A manager that comes later is not to do what the caller has given up.
                self.manager.drop_question(number);
                return Err(CallError::Silent(self.options.timeout));
            }
            self.rest(REST)?;
        }
    }

    /// Takes what came of the manager and of hosts, and says what they are to hear.
    fn tend(&mut self, now: Time) {
        self.tended_at = now;
        self.manager.receive(now, &mut self.told);
        let mut answers = Vec::new();
        for told in std::mem::take(&mut self.told) {
            match told {
                Told::Message(message) => self.take(now, message),
                Told::Answer(..) | Told::Unanswered(_) => answers.push(told),
                Told::Refused(Refusal::Ending) => self.state = State::Gone,
                Told::Refused(refusal) => tracing::warn!(%refusal, "the cache's manager"),
            }
        }
        self.told = answers;
        self.attached.step(now);
        let client = &mut self.attached.client;
        while let Some((region, generation)) = client.take_doubt() {
            self.manager.say_doubt(region, generation);
        }
        while let Some((region, generation)) = client.take_known() {
            self.manager.say_known(region, generation);
        }
        while let Some(host) = client.take_trouble() {
            self.manager.say_trouble(host);
        }
        self.manager.send(now, self.state == State::There);
    }

    fn take(&mut self, now: Time, message: ToClient) {
        if self.state == State::Gone {
            // What comes behind the first word of another cache is about that one's memory.
            return;
        }
        match message {
            ToClient::Welcome(welcome) => {
                let is_same = welcome.cache == self.welcome.cache
                    && welcome.slab_bytes == self.welcome.slab_bytes
                    && welcome.slabs_per_region == self.welcome.slabs_per_region;
                match is_same {
                    true => self.welcome = welcome,
                    false => self.state = State::Gone,
                }
            }
            ToClient::Host {
                number,
                name,
                address,
                domain,
            } => match host_of(name, &address, domain) {
                Some(host) => self.attached.set_host(usize::from(number), host),
                None => tracing::warn!(address, "a host's address"),
            },
            ToClient::Entry(entry) => self.attached.client.handle_entry(entry),
            ToClient::Lease { asked_at } => {
                let asked_at = self.manager.leased(asked_at);
                self.attached.client.handle_lease(now, asked_at);
            }
            ToClient::Unknown | ToClient::Answer { .. } | ToClient::Refused(_) => {}
        }
    }

    /// Blocks until something came, at most for `timeout`.
    fn rest(&self, timeout: Duration) -> Result<(), cenote_fabric::Error> {
        let now = Time::now();
        let timeout = timeout.min(self.manager.due(now).since(now));
        let mut fds: Vec<RawFd> = vec![self.waker.as_fd().as_raw_fd()];
        fds.extend(self.manager.fd());
        fds.extend(self.attached.fds());
        fds.extend(self.attached.client.fds());
        wait(&fds, Some(timeout))?;
        self.waker.clear();
        Ok(())
    }
}

/// How long a call spins before it blocks.
const SPIN: Duration = Duration::from_micros(20);
/// Between two looks of a call that the system does not let block.
const PAUSE: Duration = Duration::from_millis(1);

enum Work {
    Read(BytesMut),
    Write(Bytes),
}

impl Drop for Cache {
    fn drop(&mut self) {
        // One with something under way is waited for until its lease ends.
        if self.attached.client.outstanding() == 0 {
            // A request that failed may have left a doubt.
            self.tend(Time::now());
            self.manager.leave();
        }
    }
}

/// Verbs, or messages to a server thread, under way to each host.
fn depth(configuration: Configuration) -> usize {
    let most = match configuration.s {
        0 => QUEUE_DEPTH,
        _ => CALLS_UNDER_WAY_MAX,
    };
    usize::try_from(configuration.q).map_or(most, |q| q.clamp(1, most))
}

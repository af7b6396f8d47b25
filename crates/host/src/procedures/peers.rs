//! The thread that makes a host's calls to other hosts: bytes that are fetched, requests that move,
//! answers.
//!
//! One session and one connection for each machine, made when there is something to say, by a
//! short-lived thread: a machine that is silent keeps nobody waiting but those who want it. What
//! was sent and not answered is lost with its connection; what was not sent is given back as such.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_fabric::calls::Caller;
use cenote_fabric::{
    Address, ClientId, Connector, FAILURE_TIMEOUT, Hello, Session, Time, Waker, wait,
};
use cenote_pool::control::NAME_BYTES_MAX;
use cenote_proc::Machine;

use crate::{Error, Result};

/// A call to another machine.
pub(super) struct Job {
    pub to: Machine,
    pub address: Arc<Address>,
    /// Which server thread wants the answer, and its own number for it.
    pub thread: usize,
    pub token: u64,
    pub bytes: Vec<u8>,
    /// It is not sent where that would take a connection that is yet to be made.
    pub at_once: bool,
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum Called {
    Answered(Vec<u8>),
    /// The machine did not get it.
    NotSent,
    /// Nobody knows whether the machine got it.
    Lost,
}

/// What takes the ends of calls: thread, token and end.
pub(super) type Deliver = Box<dyn Fn(usize, u64, Called) + Send>;

/// What is told that the connection to a machine ended.
pub(super) type Gone = Box<dyn Fn(Machine) + Send>;

/// The server threads' end. Dropping it ends the thread.
pub(super) struct Peers {
    jobs: Option<Sender<Job>>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Peers {
    /// Starts the thread. To other hosts this one is the client `proc:NAME`, which holds no slabs.
    pub(super) fn start(
        name: &str,
        connector: Box<dyn Connector>,
        deliver: Deliver,
        gone: Gone,
    ) -> Result<Self> {
        let (jobs, inbox) = channel();
        let waker = Waker::new()?;
        let mut name = format!("proc:{name}");
        while name.len() > NAME_BYTES_MAX {
            name.pop();
        }
        let (arrive, arrivals) = channel();
        let work = Work {
            name,
            connector: Arc::from(connector),
            deliver,
            gone,
            inbox,
            waker: waker.clone(),
            links: HashMap::new(),
            out_of_reach: HashSet::new(),
            arrive,
            arrivals,
        };
        let thread = std::thread::Builder::new()
            .name("proc-peers".into())
            .spawn(move || work.run())
            .map_err(|source| Error::Os {
                what: "start a thread of the host",
                source,
            })?;
        Ok(Self {
            jobs: Some(jobs),
            waker,
            thread: Some(thread),
        })
    }

    /// Makes a call; its end is delivered.
    pub(super) fn call(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("set until the drop");
        jobs.send(job).expect("it runs as long as it can be asked");
        self.waker.wake();
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that calls other hosts panicked");
        }
    }
}

type Connected = cenote_fabric::Result<(Box<dyn Session>, Box<dyn Caller>)>;

struct Work {
    name: String,
    connector: Arc<dyn Connector>,
    deliver: Deliver,
    gone: Gone,
    inbox: Receiver<Job>,
    waker: Waker,
    links: HashMap<Machine, Link>,
    /// Those that were not reached the last time.
    out_of_reach: HashSet<Machine>,
    arrive: Sender<(Machine, Connected)>,
    arrivals: Receiver<(Machine, Connected)>,
}

struct Link {
    address: Arc<Address>,
    state: State,
    /// Not sent yet.
    waiting: VecDeque<Job>,
    used_at: Time,
}

enum State {
    Dialling,
    Up(Line),
    /// Nobody there, a moment ago.
    Shunned(Time),
}

struct Line {
    // Before the session, whose end it may outlive.
    caller: Box<dyn Caller>,
    session: Box<dyn Session>,
    /// Thread and token of each call under way.
    sent: HashMap<u64, (usize, u64)>,
    made: u64,
}

impl Work {
    fn run(mut self) {
        loop {
            self.waker.clear();
            loop {
                match self.inbox.try_recv() {
                    Ok(job) => self.take(job),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
            while let Ok((machine, connected)) = self.arrivals.try_recv() {
                self.connected(machine, connected);
            }
            let now = Time::now();
            let mut fds = vec![self.waker.as_fd().as_raw_fd()];
            self.links.retain(|machine, link| {
                let was_up = matches!(link.state, State::Up(_));
                let lives = link.poll(now, &self.deliver);
                if was_up && matches!(link.state, State::Shunned(_)) {
                    (self.gone)(*machine);
                }
                if let (State::Up(line), true) = (&link.state, lives) {
                    fds.extend(line.caller.fd());
                    fds.extend(line.session.fd());
                }
                lives
            });
            if let Err(error) = wait(&fds, Some(LOOK)) {
                tracing::error!(%error, "wait for other hosts");
                std::thread::sleep(LOOK);
            }
        }
    }

    fn take(&mut self, job: Job) {
        let now = Time::now();
        let machine = job.to;
        let link = self.links.entry(machine).or_insert_with(|| Link {
            address: Arc::clone(&job.address),
            state: State::Shunned(now),
            waiting: VecDeque::new(),
            used_at: now,
        });
        link.used_at = now;
        let is_up = matches!(link.state, State::Up(_));
        match link.state {
            State::Shunned(until) if now < until => return refuse(&self.deliver, &job),
            _ if link.waiting.len() >= WAITING_MAX => return refuse(&self.deliver, &job),
            _ if job.at_once && !is_up => refuse(&self.deliver, &job),
            _ => link.waiting.push_back(job),
        }
        if !matches!(link.state, State::Shunned(_)) {
            return;
        }
        link.state = State::Dialling;
        let address = Arc::clone(&link.address);
        let (connector, name) = (Arc::clone(&self.connector), self.name.clone());
        let (arrive, waker) = (self.arrive.clone(), self.waker.clone());
        let dial = move || {
            let connected = connect(&*connector, name, &address);
            // Nobody waits for it any more: then the connection ends with it.
            drop(arrive.send((machine, connected)));
            waker.wake();
        };
        let builder = std::thread::Builder::new().name("proc-connect".into());
        if let Err(error) = builder.spawn(dial) {
            let error = cenote_fabric::Error::os("start a thread".to_owned(), error);
            drop(self.arrive.send((machine, Err(error))));
            self.waker.wake();
        }
    }

    fn connected(&mut self, machine: Machine, connected: Connected) {
        let Some(link) = self.links.get_mut(&machine) else {
            return;
        };
        match connected {
            Ok((session, caller)) => {
                self.out_of_reach.remove(&machine);
                link.state = State::Up(Line {
                    caller,
                    session,
                    sent: HashMap::new(),
                    made: 0,
                });
            }
            Err(error) => {
                // It is tried again and again as long as it is wanted.
                if self.out_of_reach.insert(machine) {
                    tracing::warn!(address = %link.address, %error, "reach a machine of a cache");
                }
                link.shun(&self.deliver);
            }
        }
    }
}

fn connect(connector: &dyn Connector, name: String, address: &Address) -> Connected {
    let mut number = [0; 16];
    // A session for each machine, and two addresses may be one machine's: they are told apart.
    getrandom::fill(&mut number)
        .map_err(|_| cenote_fabric::Error::Key(cenote_fabric::KeyError::NoRandomness))?;
    let client = ClientId(u128::from_le_bytes(number));
    let session = connector.connect(address, &Hello { client, name }, FAILURE_TIMEOUT)?;
    let caller = session.caller_opener()(FAILURE_TIMEOUT)?;
    Ok((session, caller))
}

fn refuse(deliver: &Deliver, job: &Job) {
    deliver(job.thread, job.token, Called::NotSent);
}

impl Link {
    /// Sends and receives; whether it is still of use.
    fn poll(&mut self, now: Time, deliver: &Deliver) -> bool {
        let State::Up(line) = &mut self.state else {
            // One that was shunned is forgotten once it may be tried again.
            return !matches!(self.state, State::Shunned(until) if now >= until)
                || !self.waiting.is_empty();
        };
        while let Some(job) = self.waiting.front() {
            if line.caller.call(&job.bytes, line.made).is_err() {
                break;
            }
            line.sent.insert(line.made, (job.thread, job.token));
            line.made += 1;
            self.waiting.pop_front();
        }
        line.caller.flush();
        let sent = &mut line.sent;
        line.caller.poll(now, &mut |token, answer| {
            if let Some((thread, token)) = sent.remove(&token) {
                let end = answer.map_or(Called::Lost, |bytes| Called::Answered(bytes.to_vec()));
                deliver(thread, token, end);
            }
        });
        let mut has_ended = line.caller.is_dead();
        // A host says nothing to a client that asked for nothing: this is where its end shows.
        while !has_ended {
            match line.session.receive() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => has_ended = true,
            }
        }
        if has_ended {
            for (thread, token) in std::mem::take(&mut line.sent).into_values() {
                deliver(thread, token, Called::Lost);
            }
            self.shun(deliver);
            return true;
        }
        let idle = line.sent.is_empty() && self.waiting.is_empty();
        !(idle && now.since(self.used_at) > IDLE)
    }

    fn shun(&mut self, deliver: &Deliver) {
        self.state = State::Shunned(Time::now().after(SHUNNED));
        for job in self.waiting.drain(..) {
            refuse(deliver, &job);
        }
    }
}

/// Calls that wait for a connection to one machine, or for room on it.
const WAITING_MAX: usize = 4096;
/// How long a machine that was not there is not tried again.
const SHUNNED: Duration = Duration::from_millis(100);
/// How long a connection that nobody uses is kept.
const IDLE: Duration = Duration::from_secs(60);
/// How long a wait lasts before connections look at their own timeouts.
const LOOK: Duration = Duration::from_millis(100);

//! WRITEs that come after their version was given up: its place may be another's by then.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cenote_fabric::{
    CompletionQueue, Endpoint, Generation, Incoming, RemoteWindow, Rights, Status, Time,
    WindowDescriptor, WindowId, wait,
};
use cenote_store::client::{ClientError, Command, End};
use cenote_store::schemes::Saw;
use cenote_store::{
    Condition, FileMedium, INLINE_BYTES_MAX, Medium, Pool, Refusal, Server, shard_of,
};

use crate::by_hand::{ByHand, received};
use crate::fences::{Gate, Gated, Opening, State, gated};
use crate::lab::{LIMIT, Lab, Options, TRANSPORTS, Transport, User};

/// A client by hand, whose WRITEs come when the test says so.
struct Slow {
    // Dropped before the session, as verbs need it.
    endpoint: Box<dyn Endpoint>,
    client: ByHand,
    landing: RemoteWindow,
    log: RemoteWindow,
    queue: CompletionQueue,
}

impl Slow {
    fn connect<M: Medium>(lab: &Lab, server: &Server<M>) -> Self {
        let mut client = ByHand::connect(lab, server, 1000);
        let (greeting, session) = (&client.greeting, client.session.as_mut().unwrap());
        // Kind, length of the scheme's name, the name, seed, landing; places, index, log.
        let landing_at = 2 + usize::from(greeting[1]) + 8;
        let mut attach = |at: usize| {
            session.attach(window_of(&greeting[at..])).unwrap();
            match received(&mut **session) {
                Incoming::Attached(_, window) => window.unwrap(),
                _ => panic!("no window"),
            }
        };
        let landing = attach(landing_at);
        let log = attach(landing_at + WINDOW_BYTES + 8 + WINDOW_BYTES);
        Self {
            endpoint: session.endpoint(LIMIT).unwrap(),
            client,
            landing,
            log,
            queue: CompletionQueue::default(),
        }
    }

    /// A version that it takes too long over: where it may write it.
    fn give_up<M: Medium>(&mut self, server: &Server<M>) -> u64 {
        let (_, place) = self.client.space(b"key", VALUE_BYTES as u32);
        until(server, "the version waits", |server| {
            server.figures()[0].backlog == 0
        });
        place
    }

    fn write(&mut self, window: &RemoteWindow, offset: u64, bytes: &[u8]) -> Status {
        let (source, len) = (bytes.as_ptr(), bytes.len());
        // SAFETY: the bytes stay until the verb has ended, below.
        let posted = unsafe {
            let queue = &mut self.queue;
            (self.endpoint).post_write(window, offset, source, len, None, 1, queue)
        };
        posted.unwrap();
        self.endpoint.flush(&mut self.queue);
        let until = Instant::now() + LIMIT;
        loop {
            if let Some(ended) = self.queue.pop() {
                return ended.status;
            }
            assert!(Instant::now() < until, "a WRITE does not end");
            let fds: Vec<_> = self.endpoint.fd().into_iter().collect();
            wait(&fds, Some(Duration::from_millis(10))).unwrap();
            self.endpoint.poll(Time::now(), &mut self.queue);
        }
    }
}

const WINDOW_BYTES: usize = 4 + 8 + 8 + 1;

fn window_of(bytes: &[u8]) -> WindowDescriptor {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    WindowDescriptor {
        id: WindowId(u32::from_le_bytes(bytes[..4].try_into().unwrap())),
        generation: Generation(word(4)),
        len_bytes: word(12),
        rights: Rights(bytes[20]),
    }
}

fn until<M: Medium>(server: &Server<M>, what: &str, is_so: impl Fn(&Server<M>) -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so(server) {
        assert!(Instant::now() < until, "{what}: {:?}", server.figures());
        std::thread::yield_now();
    }
}

fn options(transport: Transport) -> Options {
    Options {
        shards: 1,
        // Of others as well, whose threads may have to wait for a processor.
        patience: Duration::from_secs(2),
        landing_bytes: 64 << 10,
        ..Options::new(transport)
    }
}

const VALUE_BYTES: usize = 4096;
/// So long that no call carries it: it is written, over any transport.
const WRITTEN_BYTES: usize = INLINE_BYTES_MAX + 1;

#[test]
fn a_write_after_its_version_was_given_up_lands_in_its_own_clients_memory_alone() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&options(transport));
        let mut slow = Slow::connect(&lab, &server);
        let offset = slow.give_up(&server);
        // Another client has the place now that was free: in a landing of its own.
        let mut user = lab.client(&server);
        let value = |number: u8| vec![number; VALUE_BYTES];
        for number in 0..16 {
            user.put(&[number], &value(number));
            let landing = slow.landing.clone();
            assert_eq!(slow.write(&landing, offset, &[99; VALUE_BYTES]), Status::Ok);
        }
        // Elsewhere it may not write at all.
        let log = slow.log.clone();
        assert_eq!(slow.write(&log, 8192, &[99; 64]), Status::NoRights);
        assert_eq!(user.sync(), 0, "nothing of the other's is lost");
        for number in 0..16 {
            assert_eq!(user.get(&[number]), Some(value(number)));
        }
        assert_eq!(user.get(b"key"), None);
    }
}

/// How the next of `user`'s commands ends, by this clock.
fn ended(user: &mut User, now: impl Fn() -> Time) -> End {
    let until = Instant::now() + LIMIT;
    loop {
        assert!(Instant::now() < until, "a command does not end");
        if let Some(end) = user.0.poll(now()) {
            return end;
        }
        user.0.wait(Duration::from_millis(10)).unwrap();
    }
}

/// A PUT that asks for a place, and looks at the answer when the place was given up.
fn lose<M: Medium>(user: &mut User, server: &Server<M>, number: u8) {
    let before = server.figures()[0].put_bytes;
    let command = Command::Put {
        key: b"key".to_vec(),
        // Another than what may lie at the place from before.
        value: vec![number; WRITTEN_BYTES],
        condition: Condition::Always,
        is_durable: false,
    };
    user.0.submit(command, number.into(), Time::now());
    // Sends it, and takes no answer.
    user.0.wait(Duration::ZERO).unwrap();
    until(server, "the version waits", |server| {
        let figures = server.figures()[0];
        figures.put_bytes > before && figures.backlog == 0
    });
    // It does not know that its value is in time: the server does.
    let end = ended(user, || Time::now().after(Duration::from_millis(600)));
    let refused = Err(ClientError::Refused(Refusal::Incomplete));
    assert_eq!(end, (number.into(), refused), "it came too late");
}

#[test]
fn a_loss_that_a_sync_told_nobody_is_told_by_the_next_one() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            patience: Duration::from_millis(50),
            ..options(transport)
        };
        let (gate, server) = gated(&lab, &options);
        let _opening = Opening(&gate);
        let mut user = lab.client(&server);
        for number in 1..=10_u8 {
            lose(&mut user, &server, number);
            // The sync waits for it, longer than its caller does.
            gate.set(State::Shut);
            let stored = Command::Put {
                key: b"another".to_vec(),
                value: vec![number],
                condition: Condition::Always,
                is_durable: true,
            };
            user.0.submit(stored, 100, Time::now());
            user.0.wait(Duration::ZERO).unwrap();
            gate.await_fence();
            let unheard = user.0.call(Command::Sync, Duration::ZERO);
            assert!(
                matches!(unheard, Err(ClientError::Lost(_))),
                "{transport:?}: {unheard:?}"
            );
            gate.set(State::Open);
            assert_eq!(ended(&mut user, Time::now).0, 100);
            // And the sync with it.
            assert_eq!(user.sync(), 1, "{transport:?}: value {number}");
        }
    }
}

/// The process stood still between its look at the clock and its write.
#[test]
fn a_put_that_was_given_up_is_not_acknowledged_by_a_clock_that_was_read_before() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options {
            patience: Duration::from_secs(1),
            ..options(transport)
        });
        let mut user = lab.client(&server);
        let command = Command::Put {
            key: b"key".to_vec(),
            value: vec![7; WRITTEN_BYTES],
            condition: Condition::Always,
            is_durable: false,
        };
        let now = Time::now();
        user.0.submit(command, 1, now);
        user.0.wait(Duration::ZERO).unwrap();
        until(&server, "the version waits", |server| {
            let figures = server.figures()[0];
            figures.put_bytes > 0 && figures.backlog == 0
        });
        let end = ended(&mut user, || now);
        let refused = Err(ClientError::Refused(Refusal::Incomplete));
        assert_eq!(end, (1, refused), "{transport:?}: it came too late");
    }
}

#[test]
fn each_loss_is_told_by_one_sync() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options {
            patience: Duration::from_millis(50),
            ..options(transport)
        });
        let mut user = lab.client(&server);
        for number in 1..=3_u8 {
            lose(&mut user, &server, number);
            assert_eq!(
                user.sync(),
                1,
                "{transport:?}: value {number} came too late"
            );
            assert_eq!(user.sync(), 0, "{transport:?}: it was told before");
        }
    }
}

#[test]
fn a_write_of_a_client_that_is_gone_reaches_nobody() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&options(transport));
        let mut slow = Slow::connect(&lab, &server);
        let (_, offset) = slow.client.space(b"key", VALUE_BYTES as u32);
        // It is taken for gone, and has its connection for data and its map of the landing still.
        drop(slow.client.session.take());
        until(&server, "the version waits", |server| {
            server.figures()[0].backlog == 0
        });
        // Who comes now may get the landing's number.
        let mut others: Vec<_> = (0..4).map(|_| lab.client(&server)).collect();
        let landing = slow.landing.clone();
        let mut number = 0_u8;
        let mut late = |slow: &mut Slow| {
            number = (number + 1) % 99;
            for user in &mut others {
                user.put(&[number % 7], &[number; VALUE_BYTES]);
            }
            slow.write(&landing, offset, &[99; VALUE_BYTES])
        };
        if transport == Transport::Tcp {
            // Closed before its values were looked at for the last time.
            assert_ne!(late(&mut slow), Status::Ok, "its landing is open");
        }
        let until = Instant::now() + LIMIT;
        while late(&mut slow) == Status::Ok {
            assert!(Instant::now() < until, "{transport:?}: its landing is open");
        }
        for _ in 0..50 {
            assert_ne!(late(&mut slow), Status::Ok, "it is open again");
        }
        for mut user in others {
            assert_eq!(user.sync(), 0, "nothing of the others' is lost");
            for key in 0..7 {
                let value = user.get(&[key]).unwrap();
                assert!(value.len() == VALUE_BYTES && value.iter().all(|byte| *byte == value[0]));
                assert_ne!(value[0], 99);
            }
        }
    }
}

/// One shard waits for its disk long after the other has looked at its landings for the last time. Not over shm:
/// what a client has mapped cannot be closed without losing what is in it.
#[test]
fn what_a_stopping_store_acknowledged_is_there_after_it() {
    let is_in = |shard: usize, key: &Vec<u8>| shard_of(77, key, 2) == shard;
    let keys = || (0_u8..).map(|number| vec![number]);
    let held: Vec<_> = keys().filter(|key| is_in(1, key)).take(1).collect();
    let written: Vec<_> = keys().filter(|key| is_in(0, key)).take(40).collect();
    let value = [7; VALUE_BYTES];
    for transport in [Transport::Tcp] {
        let lab = Lab::new();
        let options = Options {
            shards: 2,
            landing_bytes: 1 << 20,
            patience: LIMIT * 4,
            ..options(transport)
        };
        let gates = [(); 2].map(|()| Arc::new(Gate::default()));
        let opened = AtomicUsize::new(0);
        let server = lab.serve_on(&options, |file| Gated {
            disk: FileMedium::open(file).unwrap(),
            gate: Arc::clone(&gates[opened.fetch_add(1, Ordering::Relaxed)]),
        });
        let opening = Opening(&gates[1]);
        let mut slow = Slow::connect(&lab, &server);
        let mut places = Vec::new();
        for key in &written {
            let checksum = Pool::<FileMedium>::checksum(key, &value);
            places.push(slow.client.space_of(key, VALUE_BYTES as u32, checksum).1);
        }
        gates[1].set(State::Shut);
        let mut user = lab.client(&server);
        let submitted = Command::Put {
            key: held[0].clone(),
            value: b"held".to_vec(),
            condition: Condition::Always,
            is_durable: true,
        };
        user.0.submit(submitted, 1, Time::now());
        user.0.wait(Duration::ZERO).unwrap();
        gates[1].await_fence();
        let stopping = std::thread::spawn(move || server.stop());
        let landing = slow.landing.clone();
        let mut there = Vec::new();
        let until = Instant::now() + LIMIT;
        for (key, place) in written.iter().zip(&places) {
            if slow.write(&landing, *place, &value) == Status::Ok {
                there.push(key);
            }
        }
        while slow.write(&landing, places[0], &value) == Status::Ok {
            assert!(Instant::now() < until, "{transport:?}: writes go on");
        }
        drop(opening);
        for pool in stopping.join().unwrap().unwrap() {
            pool.close().unwrap();
        }
        drop((slow, user));
        let server = lab.serve(&options);
        let mut user = lab.client(&server);
        for key in there {
            assert_eq!(user.get(key), Some(value.to_vec()), "{transport:?}");
        }
    }
}

/// Where clients write to the log, the place of a version that was given up would be another's once the log
/// was cleaned.
#[test]
fn a_place_of_the_log_is_not_anothers_while_its_client_may_write_there() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            scheme: Arc::new(Saw),
            pool_bytes: 160 << 10,
            ..options(transport)
        };
        let server = lab.serve(&options);
        let mut slow = Slow::connect(&lab, &server);
        let place = slow.give_up(&server);
        let mut user = lab.client(&server);
        let put = |number: u8| Command::Put {
            key: vec![number % 4],
            value: vec![number; VALUE_BYTES],
            condition: Condition::Always,
            is_durable: true,
        };
        let full = Err(ClientError::Refused(Refusal::Full));
        let refused = (0..100).find(|number| user.call(put(*number)) == full);
        let refused = refused.expect("the log takes many times what it holds");
        let log = slow.log.clone();
        assert_eq!(slow.write(&log, place, &[99; VALUE_BYTES]), Status::Ok);
        for key in 0..4 {
            let newest = (0..refused).rev().find(|number| number % 4 == key).unwrap();
            assert_eq!(user.get(&[key]), Some(vec![newest; VALUE_BYTES]));
        }
        // With the client goes what kept the log as it is.
        drop(slow);
        for number in 0..60 {
            let until = Instant::now() + LIMIT;
            while let Err(error) = user.call(put(number)) {
                assert!(Instant::now() < until, "{error}");
            }
            assert_eq!(user.get(&[number % 4]), Some(vec![number; VALUE_BYTES]));
        }
        assert_eq!(user.get(b"key"), None);
    }
}

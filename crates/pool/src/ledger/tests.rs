use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

mod departure;
mod eviction;
mod orphans;

const CLIENTS: u8 = 4;
const SLABS: u32 = 6;
const CLIENT_SLABS_MAX: u32 = 4;
const LIFE: Duration = Duration::from_secs(60);

fn limits() -> Limits {
    Limits {
        slabs_total: SLABS,
        client_slabs_max: CLIENT_SLABS_MAX,
        clients_max: 3,
        stock: 1,
        lease: LEASE,
        orphan_life: LIFE,
        room: crate::pressure::Room::fixed(SLABS),
    }
}

fn place(volume: u8, extent: u8) -> StripeMember {
    StripeMember {
        volume: volume.into(),
        extent: extent.into(),
        member: 0,
    }
}

#[derive(Clone, Debug)]
enum Op {
    Connect(u8),
    Disconnect(u8),
    Ping(u8),
    Map {
        client: u8,
        volume: u8,
        extent: u8,
    },
    /// Unmaps the n-th window ever granted, whoever holds it now.
    Unmap {
        client: u8,
        nth: usize,
    },
    /// Lets time pass with a tick each second, as a host that runs.
    Run {
        seconds: u8,
    },
    /// Lets time pass without a tick, as a host that is stopped, then ticks.
    Stop {
        seconds: u8,
    },
    /// The n-th piece of slow work ends.
    Work {
        nth: usize,
        fails: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0..CLIENTS).prop_map(Op::Connect),
        1 => (0..CLIENTS).prop_map(Op::Disconnect),
        2 => (0..CLIENTS).prop_map(Op::Ping),
        6 => (0..CLIENTS, 0_u8..3, 0_u8..4).prop_map(|(client, volume, extent)| Op::Map {
            client,
            volume,
            extent
        }),
        3 => (0..CLIENTS, 0_usize..24).prop_map(|(client, nth)| Op::Unmap { client, nth }),
        2 => (0_u8..15).prop_map(|seconds| Op::Run { seconds }),
        1 => (0_u8..100).prop_map(|seconds| Op::Stop { seconds }),
        4 => (0_usize..8, prop::bool::weighted(0.2)).prop_map(|(nth, fails)| Op::Work { nth, fails }),
    ]
}

/// What an outsider knows who sees only messages, actions and the clock.
#[derive(Clone, Debug)]
struct Known {
    window: Window,
    holder: Option<(u8, StripeMember)>,
    /// Who it was granted to.
    client: u8,
    /// The daemon has closed it: no verb finds it any more.
    is_closed: bool,
    /// The owner asked for its end, by unmapping or by mapping the place again.
    given_up: bool,
}

/// Drives a ledger and holds every action against the rules of the module's text.
struct Bench {
    ledger: Ledger,
    now: Duration,
    /// Slow work at once, always well; otherwise by `Op::Work`.
    prompt: bool,
    connected: BTreeSet<u8>,
    heard: BTreeMap<u8, Duration>,
    /// Time in which nobody listened does not count against a client.
    stopped: Vec<(Duration, Duration)>,
    /// Who held slabs at the last tick: a lease runs out at one.
    held_at_tick: BTreeSet<u8>,
    windows: Vec<Known>,
    requests: BTreeMap<u64, (u8, StripeMember)>,
    requests_made: u64,
    work: Vec<Action>,
    /// Who asks has no slab yet, and as many have some as may.
    is_crowded: bool,
}

impl Bench {
    fn new(prompt: bool) -> Self {
        let now = Duration::from_secs(1000);
        let mut bench = Self {
            ledger: Ledger::new(limits(), now),
            now,
            prompt,
            connected: BTreeSet::new(),
            heard: BTreeMap::new(),
            stopped: Vec::new(),
            held_at_tick: BTreeSet::new(),
            windows: Vec::new(),
            requests: BTreeMap::new(),
            requests_made: 0,
            work: Vec::new(),
            is_crowded: false,
        };
        bench.settle();
        bench
    }

    fn held_by(&self, client: u8) -> usize {
        self.windows
            .iter()
            .filter(|w| w.holder.is_some_and(|(holder, _)| holder == client))
            .count()
    }

    fn held(&self) -> usize {
        self.windows.iter().filter(|w| w.holder.is_some()).count()
    }

    /// How long a client has been silent while this host listened.
    fn silent(&self, client: u8) -> Duration {
        let heard = self.heard[&client];
        let stopped: Duration = self
            .stopped
            .iter()
            .filter(|(from, _)| *from >= heard)
            .map(|(from, to)| *to - *from)
            .sum();
        self.now - heard - stopped
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Connect(client) => {
                let held = self.held();
                self.ledger
                    .handle_connected(self.now, client.into(), "client");
                self.connected.insert(client);
                self.heard.insert(client, self.now);
                self.settle();
                assert_eq!(self.held(), held, "who only looks takes nobody's slab");
            }
            Op::Disconnect(client) => {
                self.connected.remove(&client);
                self.requests.retain(|_, (asker, _)| *asker != client);
                self.ledger.handle_disconnected(self.now, client.into());
            }
            Op::Ping(client) if self.connected.contains(&client) => self.hear(client),
            Op::Map {
                client,
                volume,
                extent,
            } if self.connected.contains(&client) => {
                self.hear(client);
                self.map(client, place(volume, extent));
            }
            Op::Unmap { client, nth }
                if self.connected.contains(&client) && !self.windows.is_empty() =>
            {
                self.hear(client);
                self.unmap(client, nth % self.windows.len());
            }
            Op::Run { seconds } => {
                for _ in 0..seconds {
                    self.now += TICK;
                    self.tick();
                    self.settle();
                }
            }
            Op::Stop { seconds } => {
                let from = self.now;
                self.now += Duration::from_secs(seconds.into());
                if seconds > 3 {
                    self.stopped.push((from, self.now));
                }
                self.tick();
            }
            Op::Work { nth, fails } if !self.work.is_empty() => {
                let action = self.work.remove(nth % self.work.len());
                self.finish(action, fails);
            }
            _ => {}
        }
        self.settle();
    }

    fn tick(&mut self) {
        let holds = |client: &u8| self.held_by(*client) > 0;
        self.held_at_tick = (0..CLIENTS).filter(holds).collect();
        self.ledger.handle_tick(self.now);
    }

    fn hear(&mut self, client: u8) {
        self.heard.insert(client, self.now);
        self.ledger.handle_sign_of_life(self.now, client.into());
    }

    fn map(&mut self, client: u8, place: StripeMember) {
        self.requests_made += 1;
        let others: Vec<bool> = self.windows.iter().map(|w| w.given_up).collect();
        let places = self.places();
        self.is_crowded = !places.contains(&client) && places.len() >= limits().clients_max;
        self.requests.insert(self.requests_made, (client, place));
        for known in &mut self.windows {
            known.given_up |= known.holder == Some((client, place));
        }
        self.ledger
            .handle_map(self.now, client.into(), self.requests_made, place);
        let refused = self.ledger.actions.iter().any(|action| {
            matches!(action, Action::Send { reply: Reply::Refused { request, .. }, .. } if *request == self.requests_made)
        });
        if refused {
            for (known, before) in self.windows.iter_mut().zip(others) {
                known.given_up = before;
            }
        }
        self.settle();
        self.is_crowded = false;
    }

    /// Who holds slabs or waits for some.
    fn places(&self) -> BTreeSet<u8> {
        let waits = |client: &u8| self.requests.values().any(|(asker, _)| asker == client);
        let takes = |client: &u8| self.held_by(*client) > 0 || waits(client);
        (0..CLIENTS).filter(takes).collect()
    }

    /// Whether somebody is gone for so long that its place is anybody's.
    fn is_place_free(&self) -> bool {
        let is_gone = |other: &u8| {
            let is_gone = !self.connected.contains(other) && self.held_at_tick.contains(other);
            // A tick may be late.
            is_gone && self.held_by(*other) > 0 && self.silent(*other) > LEASE + TICK * 4
        };
        (0..CLIENTS).any(|other| is_gone(&other))
    }

    fn unmap(&mut self, client: u8, nth: usize) {
        let window = self.windows[nth].window;
        let held = self.windows[nth]
            .holder
            .is_some_and(|(holder, _)| holder == client);
        self.windows[nth].given_up |= held;
        assert_eq!(
            self.ledger.find(client.into(), window).is_some(),
            held,
            "find of window {nth}"
        );
        self.ledger.handle_unmap(self.now, client.into(), window);
        assert_eq!(self.ledger.find(client.into(), window), None);
    }

    /// Carries out what the ledger wants, judging each action.
    fn settle(&mut self) {
        while let Some(action) = self.ledger.poll_action() {
            match action {
                Action::Prepare { .. } | Action::Retire { .. } => {
                    self.judge_work(&action);
                    if self.prompt {
                        self.finish(action, false)
                    } else {
                        self.work.push(action)
                    }
                }
                Action::Send { client, reply } => {
                    let client = u8::try_from(client).unwrap();
                    self.judge_reply(client, &reply);
                }
                Action::Renew { .. } | Action::CutOff { .. } => panic!("nobody takes over"),
            }
        }
        let counts = self.ledger.counts();
        assert_eq!(counts.total(), SLABS);
        assert_eq!((counts.mapped + counts.orphaned) as usize, self.held());
        assert!(self.requests.len() as u32 <= counts.free + counts.preparing + counts.retired);
        assert!(
            self.requests.is_empty() || counts.prepared == 0,
            "somebody waits beside stock"
        );
        for client in 0..CLIENTS {
            assert!(self.held_by(client) <= CLIENT_SLABS_MAX as usize);
        }
        if self.prompt {
            assert_eq!(self.requests.len(), 0);
            assert_eq!(
                counts.prepared,
                limits().stock.min(SLABS - counts.mapped - counts.orphaned)
            );
        }
    }

    fn judge_work(&mut self, action: &Action) {
        let Action::Retire { window, .. } = action else {
            return;
        };
        let known = self
            .windows
            .iter_mut()
            .find(|w| w.window == *window)
            .expect("a granted window");
        let (holder, _) = known.holder.take().expect("retired once");
        if !known.given_up {
            // A tick may be up to a second late, and lateness below three is not a stop.
            let silent = self.silent(holder);
            assert!(silent > LEASE, "taken from a client silent for {silent:?}");
            let free = self.ledger.counts().available() as usize - 1;
            assert!(
                silent > LIFE || free <= self.requests.len() || self.is_crowded,
                "taken without a want of memory"
            );
        }
    }

    fn judge_reply(&mut self, client: u8, reply: &Reply) {
        match reply {
            Reply::Mapped { request, window } => {
                let asked = self
                    .requests
                    .remove(request)
                    .expect("one answer per request");
                assert_eq!(asked.0, client);
                assert!(
                    self.windows.iter().all(|w| w.window != *window),
                    "a window granted twice"
                );
                let twice = self.windows.iter().any(|w| w.holder == Some(asked));
                assert!(!twice, "two slabs in one place");
                let given_up = self.requests.values().any(|later| *later == asked);
                self.windows.push(Known {
                    window: *window,
                    holder: Some(asked),
                    client,
                    is_closed: false,
                    given_up,
                });
            }
            Reply::Refused { request, reason } => {
                let (asker, place) = self
                    .requests
                    .remove(request)
                    .expect("one answer per request");
                assert_eq!(asker, client);
                if *reason == Refusal::ClientBound && self.is_crowded {
                    return assert!(!self.is_place_free(), "{:?}", self.heard);
                }
                if !self.prompt {
                    return;
                }
                let rival = self.windows.iter().any(|w| {
                    w.holder
                        .is_some_and(|(h, p)| h != client && p.volume == place.volume)
                });
                match reason {
                    Refusal::Owned => assert!(rival),
                    Refusal::ClientBound => {
                        assert_eq!(self.held_by(client), CLIENT_SLABS_MAX as usize);
                    }
                    Refusal::NoMemory => {
                        assert_eq!(self.held(), SLABS as usize);
                        assert_eq!(self.ledger.counts().orphaned, 0);
                    }
                    Refusal::ShuttingDown | Refusal::Superseded | Refusal::NotHeld => {
                        panic!("{reason:?} without a cause")
                    }
                }
            }
            Reply::Unmapped { window } => {
                let is_open = |w: &Known| w.window == *window && w.client == client && !w.is_closed;
                assert!(
                    !self.windows.iter().any(is_open),
                    "unmapped, and still open"
                );
            }
            other => panic!("the ledger does not answer {other:?}"),
        }
    }

    fn finish(&mut self, action: Action, fails: bool) {
        match action {
            Action::Prepare { slab } if fails => self.ledger.handle_prepare_failed(self.now, slab),
            Action::Prepare { slab } => {
                let generation = self.ledger.grants << 32 | self.now.as_millis() as u64;
                let serial = self.windows.len() as u64;
                let window = Window {
                    id: slab,
                    generation: generation << 8 | serial,
                    len_bytes: 1 << 20,
                    rights: 3,
                };
                self.ledger.handle_prepared(self.now, slab, window);
            }
            Action::Retire { slab, window } => {
                let closed = self.windows.iter_mut().filter(|w| w.window == window);
                closed.for_each(|w| w.is_closed = true);
                self.ledger.handle_retired(self.now, slab);
            }
            _ => unreachable!("not slow work"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn with_prompt_work_every_answer_is_the_models(ops in vec(op(), 1..120)) {
        let mut bench = Bench::new(true);
        for op in &ops {
            bench.apply(op);
        }
    }

    #[test]
    fn with_slow_and_failing_work_no_slab_is_lost_or_given_twice(ops in vec(op(), 1..160)) {
        let mut bench = Bench::new(false);
        for op in &ops {
            bench.apply(op);
        }
        // Once the work is done and everybody has given back, every slab is there again.
        while !bench.work.is_empty() {
            let action = bench.work.remove(0);
            bench.finish(action, false);
            bench.settle();
        }
        prop_assert!(bench.requests.is_empty(), "unanswered: {:?}", bench.requests);
    }
}

/// The slab comes to a client that has been silent for longer than its lease, and is gone then.
#[test]
fn a_slab_that_a_silent_client_is_given_is_an_orphan_from_the_next_tick_on() {
    let mut bench = Bench::new(false);
    let map = |client| Op::Map {
        client,
        volume: client,
        extent: 0,
    };
    for client in 0..3 {
        bench.apply(&Op::Connect(client));
        bench.apply(&map(client));
    }
    bench.apply(&Op::Run { seconds: 15 });
    while bench.held_by(2) == 0 {
        bench.apply(&Op::Work {
            nth: 0,
            fails: false,
        });
    }
    bench.apply(&Op::Disconnect(2));
    bench.apply(&Op::Connect(3));
    bench.apply(&map(3));
    assert!(!bench.places().contains(&3), "no lease has run out yet");
    bench.apply(&Op::Run { seconds: 1 });
    bench.apply(&map(3));
    assert!(bench.places().contains(&3));
    assert_eq!(bench.held_by(2), 0);
}

/// A place is asked for again, which ends the slab that it had, and then that slab is given back as well.
#[test]
fn a_slab_that_goes_already_is_given_back_once_its_window_is_closed() {
    let mut bench = Bench::new(false);
    bench.apply(&Op::Connect(1));
    let do_next = Op::Work {
        nth: 0,
        fails: false,
    };
    while !bench.work.is_empty() {
        bench.apply(&do_next);
    }
    bench.map(1, place(0, 2));
    bench.settle();
    let window = bench.windows[0].window;
    bench.map(1, place(0, 2));
    bench.settle();
    let is_its_end =
        |action: &Action| matches!(action, Action::Retire { window: of, .. } if *of == window);
    assert!(bench.work.iter().any(is_its_end), "{:?}", bench.work);
    let is_told = |bench: &Bench| {
        let told = Action::Send {
            client: 1,
            reply: Reply::Unmapped { window },
        };
        bench.ledger.actions.contains(&told)
    };
    bench.ledger.handle_unmap(bench.now, 1, window);
    assert!(!is_told(&bench), "its window is open");
    let at = bench.work.iter().position(is_its_end);
    let action = bench.work.remove(at.expect("it goes"));
    bench.finish(action, false);
    assert!(is_told(&bench));
}

/// A ledger whose slow work is done at once, for stories.
fn prompt(slabs_held: &[(u8, StripeMember)]) -> Bench {
    let mut bench = Bench::new(true);
    for &(client, place) in slabs_held {
        bench.apply(&Op::Connect(client));
        bench.hear(client);
        bench.map(client, place);
        bench.settle();
    }
    bench
}

#[test]
fn a_volume_has_one_live_owner_and_passes_on_when_its_lease_runs_out() {
    let mut bench = prompt(&[(0, place(7, 0))]);
    bench.apply(&Op::Connect(1));
    bench.apply(&Op::Map {
        client: 1,
        volume: 7,
        extent: 0,
    });
    assert_eq!(bench.held_by(1), 0);
    bench.apply(&Op::Disconnect(0));
    for _ in 0..11 {
        bench.apply(&Op::Run { seconds: 1 });
        bench.apply(&Op::Ping(1));
    }
    bench.apply(&Op::Map {
        client: 1,
        volume: 7,
        extent: 0,
    });
    assert_eq!((bench.held_by(0), bench.held_by(1)), (1, 1));
    bench.apply(&Op::Connect(0));
    bench.apply(&Op::Map {
        client: 0,
        volume: 7,
        extent: 1,
    });
    assert_eq!(bench.held_by(0), 1, "the former owner is refused");
    bench.apply(&Op::Unmap { client: 1, nth: 1 });
    bench.apply(&Op::Map {
        client: 0,
        volume: 7,
        extent: 1,
    });
    assert_eq!(
        bench.held_by(0),
        2,
        "a volume that nobody else holds is free again"
    );
}

#[test]
fn shutting_down_refuses_those_who_wait_and_those_who_come() {
    let mut bench = Bench::new(false);
    bench.apply(&Op::Connect(0));
    bench.apply(&Op::Map {
        client: 0,
        volume: 0,
        extent: 0,
    });
    bench.ledger.handle_shutdown();
    bench.ledger.handle_map(bench.now, 0, 99, place(0, 1));
    let refused: Vec<_> = std::iter::from_fn(|| bench.ledger.poll_action())
        .map(|action| match action {
            Action::Send {
                reply: Reply::Refused { request, reason },
                ..
            } => (request, reason),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        refused,
        [(1, Refusal::ShuttingDown), (99, Refusal::ShuttingDown)]
    );
}

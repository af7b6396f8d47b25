//! Threads that stand still, and what each does when it does not.

use cenote_fabric::Time;

use super::{CACHE, Event, MACHINES, MILLISECOND, RUNNING, TOKEN_BITS, Word, World, with};
use crate::executor::{Delivery, Executor, Run};
use crate::{Outcome, Procedures, Request, Table};

/// A look at the clock. Its thread may stand still for long before and behind.
pub(super) fn look() -> Time {
    let host = RUNNING.get().expect("a machine looks");
    perhaps_stand(host);
    let time = with(|world| world.clock(host));
    perhaps_stand(host);
    time
}

fn perhaps_stand(host: usize) {
    let Some(until) = with(|world| {
        let stands = world.below(16) == 0 && world.is_lively() && !world.is_calm;
        let most = if world.below(3) == 0 { 500 } else { 20 };
        let until = world.now + MILLISECOND * (1 + world.below(most) as u64);
        world.stops += u64::from(stands);
        world.hosts[host].still_until = if stands { until } else { 0 };
        stands.then_some(until)
    }) else {
        return;
    };
    while with(|world| world.now < until) {
        turn();
    }
    RUNNING.set(Some(host));
}

/// Its thread may stand still in front of each step.
pub(super) struct Runner(pub(super) Procedures);

impl Run for Runner {
    fn begin(&mut self) {
        self.0.begin();
    }

    fn step(
        &mut self,
        request: &mut Request,
        table: &mut Table,
        addr: u64,
        data: &[u8],
    ) -> Outcome {
        perhaps_stand(RUNNING.get().expect("a machine steps"));
        self.0.step(request, table, addr, data)
    }
}

/// A millisecond of everybody who does not stand still.
pub(super) fn turn() {
    with(World::go_on);
    for host in 0..MACHINES {
        while let Some(event) = with(|world| world.next_event(host)) {
            run(host, |executor, _| match event {
                Event::Request(request) => executor.handle_requests([request]),
                Event::Move(moved) => executor.handle_moved(moved),
                Event::Refuse(refused) => executor.handle_refused(refused),
                Event::Fetch(fetch) => executor.handle_fetch(fetch),
                Event::Data(mut data) => {
                    // Not for the process before.
                    if data.token >> TOKEN_BITS == with(|world| world.hosts[host].process) {
                        data.token &= (1 << TOKEN_BITS) - 1;
                        executor.handle_data(data);
                    }
                }
                Event::Replicate {
                    from,
                    replicate,
                    process,
                    is_lost,
                } => {
                    let end = executor.handle_replicate(&replicate);
                    if !is_lost {
                        with(|world| {
                            world.send(
                                from,
                                Event::Replicated(
                                    process,
                                    replicate.token,
                                    Delivery::Answered(end),
                                ),
                            )
                        });
                    }
                }
                Event::Replicated(process, token, delivery) => {
                    if with(|world| world.hosts[host].process) == process {
                        executor.handle_replicated(token, delivery);
                    }
                }
                Event::Word(word) => hear(host, executor, word),
            });
        }
        run(host, |executor, runner| {
            executor.handle_tick(with(|world| world.clock(host)));
            let most = with(|world| world.below(4));
            executor.run(runner, most);
        });
    }
}

fn hear(host: usize, executor: &mut Executor, word: Word) {
    if executor.is_flying(CACHE, Some(&word.entries)) {
        executor.stop_flights(CACHE, true);
        return with(|world| world.send(host, Event::Word(word)));
    }
    let mut known = Vec::new();
    let is_lease = word.entries.is_empty();
    for (index, slot) in word.entries {
        let generation = slot.generation;
        if executor.handle_map(CACHE, index, slot) {
            known.push((index, generation));
        }
    }
    if let Some(until) = word.until {
        executor.handle_lease(CACHE, until);
    }
    if !is_lease {
        executor.stop_flights(CACHE, false);
    }
    if word.permits {
        executor.handle_permit(CACHE);
    }
    for (region, generation) in word.heard {
        executor.handle_told(CACHE, region, generation);
    }
    let doubts: Vec<_> = executor.doubts(CACHE).collect();
    let state = executor.write_state(CACHE);
    with(|world| world.hear_answer(host, word.connection, &known, (&doubts, state)));
}

/// Has a machine do something, unless it stands still.
fn run(host: usize, act: impl FnOnce(&mut Executor, &mut Runner)) {
    let taken = with(|world| {
        let host = &mut world.hosts[host];
        let is_still = world.now < host.still_until;
        (!is_still).then(|| Some((host.executor.take()?, host.runner.take()?)))
    });
    let Some(Some((mut executor, mut runner))) = taken else {
        return;
    };
    let before = RUNNING.replace(Some(host));
    act(&mut executor, &mut runner);
    RUNNING.set(before);
    with(|world| {
        while let Some(action) = executor.poll_action() {
            world.send_action(host, action);
        }
        let host = &mut world.hosts[host];
        (host.executor, host.runner) = (Some(executor), Some(runner));
    });
}

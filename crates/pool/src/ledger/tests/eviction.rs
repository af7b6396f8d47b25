//! How a host makes room for its machine: what goes, in which order, and what never goes.

mod floor;
mod rules;

use super::*;
use crate::control::SlabActivity;
use crate::ledger::eviction::{ACTIVITY_WAIT, PATIENCE, UNANSWERED};

const START: Duration = Duration::from_secs(1000);

/// A ledger, its clients as they are told to behave, and what it did to them.
struct House {
    ledger: Ledger,
    now: Duration,
    slabs_max: u32,
    slabs_floor: u32,
    extra: usize,
    generation: u64,
    /// Windows and holders of what is lent, the oldest grant first.
    lent: Vec<(u128, Window)>,
    /// What clients were told and have not answered.
    inbox: Vec<(u128, Reply)>,
    taken: Vec<Window>,
    /// Of those, what their clients were told of.
    told: Vec<Window>,
    prepared_retired: u32,
}

fn limits_of(slabs_total: u32) -> Limits {
    Limits {
        slabs_total,
        client_slabs_max: slabs_total,
        clients_max: 8,
        stock: 2,
        ..limits()
    }
}

impl House {
    /// `slabs` for each of the clients 0, 1, ...
    fn new(slabs_total: u32, slabs: &[u32]) -> Self {
        let mut limits = limits_of(slabs_total);
        limits.room = Room::fixed(slabs_total);
        let mut house = Self {
            ledger: Ledger::new(limits, START),
            now: START,
            slabs_max: slabs_total,
            slabs_floor: slabs_total,
            extra: 2,
            generation: 0,
            lent: Vec::new(),
            inbox: Vec::new(),
            taken: Vec::new(),
            told: Vec::new(),
            prepared_retired: 0,
        };
        house.settle();
        for (client, &count) in slabs.iter().enumerate() {
            let client = client as u128;
            house.ledger.handle_connected(START, client, "client");
            for extent in 0..count {
                house.map(client, extent);
            }
        }
        assert_eq!(house.lent.len() as u32, slabs.iter().sum::<u32>());
        house
    }

    fn map(&mut self, client: u128, extent: u32) {
        let place = StripeMember {
            volume: client,
            extent,
            member: 0,
        };
        self.ledger.handle_map(self.now, client, 1, place);
        self.settle();
    }

    fn settle(&mut self) {
        while let Some(action) = self.ledger.poll_action() {
            match action {
                Action::Prepare { slab } => {
                    self.generation += 1;
                    let window = Window {
                        id: slab,
                        generation: self.generation,
                        len_bytes: 1 << 20,
                        rights: 7,
                    };
                    self.ledger.handle_prepared(self.now, slab, window);
                }
                Action::Retire { slab, window } => {
                    if self.lent.iter().any(|(_, lent)| *lent == window) {
                        self.lent.retain(|(_, lent)| *lent != window);
                        self.taken.push(window);
                    } else {
                        self.prepared_retired += 1;
                    }
                    self.ledger.handle_retired(self.now, slab);
                }
                Action::Send { client, reply } => match reply {
                    Reply::Mapped { window, .. } => self.lent.push((client, window)),
                    Reply::Unmapped { window } => self.told.push(window),
                    reply => self.inbox.push((client, reply)),
                },
                Action::Renew { slab, window } => {
                    self.generation += 1;
                    let generation = self.generation;
                    let renewed = Window {
                        generation,
                        ..window
                    };
                    self.lent.retain(|(_, lent)| *lent != window);
                    self.ledger.handle_renewed(slab, renewed);
                }
                Action::CutOff { .. } => panic!("nobody is cut off"),
            }
        }
    }

    /// A second passes. Those who are heard renew their leases.
    fn tick(&mut self, heard: &[u128]) {
        self.now += TICK;
        for &client in heard {
            self.ledger.handle_sign_of_life(self.now, client);
        }
        self.ledger.handle_tick(self.now);
        let room = Room {
            slabs_max: self.slabs_max,
            slabs_floor: self.slabs_floor,
            stocks: true,
        };
        let seed = self.now.as_secs();
        self.ledger.handle_room(self.now, room, self.extra, seed);
        self.settle();
    }

    /// Clients say that a window is the less active the younger it is.
    fn answer_questions(&mut self) -> u32 {
        let mut asked = 0;
        for (client, reply) in std::mem::take(&mut self.inbox) {
            match reply {
                Reply::CheckActivity { request, windows } => {
                    asked += windows.len() as u32;
                    let said = windows.into_iter().map(|window| SlabActivity {
                        window,
                        milli: 1000 - u32::try_from(window.generation).unwrap(),
                    });
                    let said: Vec<_> = said.collect();
                    self.ledger
                        .handle_activity(self.now, client, request, &said);
                    self.settle();
                }
                reply => self.inbox.push((client, reply)),
            }
        }
        asked
    }

    /// Windows that clients were told to give back since this was last called.
    fn evicted(&mut self) -> Vec<(u128, Window)> {
        let mut evicted = Vec::new();
        for (client, reply) in std::mem::take(&mut self.inbox) {
            match reply {
                Reply::Evict { windows } => {
                    evicted.extend(windows.into_iter().map(|window| (client, window)));
                }
                reply => self.inbox.push((client, reply)),
            }
        }
        evicted
    }

    fn give_back(&mut self, client: u128, window: Window) {
        self.lent.retain(|(_, lent)| *lent != window);
        self.ledger.handle_unmap(self.now, client, window);
        self.settle();
    }
}

#[test]
fn what_was_prepared_goes_first_and_clients_are_not_asked_for_it() {
    let mut house = House::new(10, &[4]);
    assert_eq!(house.ledger.counts().prepared, 2);
    house.slabs_max = 5;
    house.tick(&[0]);
    assert_eq!(
        (house.ledger.counts().prepared, house.prepared_retired),
        (1, 1)
    );
    house.slabs_max = 4;
    house.tick(&[0]);
    assert_eq!(
        (house.ledger.counts().prepared, house.prepared_retired),
        (0, 2)
    );
    assert_eq!(house.inbox, []);
    assert_eq!(
        (house.ledger.slabs_free(), house.ledger.slabs_lendable()),
        (0, 0)
    );
    house.map(0, 9);
    let refused = Reply::Refused {
        request: 1,
        reason: Refusal::NoMemory,
    };
    assert_eq!(house.inbox, [(0, refused)]);
    house.inbox.clear();
    house.slabs_max = 6;
    house.tick(&[0]);
    assert_eq!(
        (house.ledger.counts().prepared, house.ledger.slabs_free()),
        (2, 2)
    );
}

#[test]
fn of_a_few_more_than_must_go_the_least_active_are_asked_for() {
    let mut house = House::new(20, &[6, 6]);
    house.slabs_max = 9;
    house.tick(&[0, 1]);
    let looked_at: Vec<Window> = house
        .inbox
        .iter()
        .flat_map(|(_, reply)| match reply {
            Reply::CheckActivity { windows, .. } => windows.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(house.answer_questions(), 5, "three, and two more");
    let mut evicted: Vec<u64> = house.evicted().iter().map(|(_, w)| w.generation).collect();
    evicted.sort_unstable();
    let mut youngest: Vec<u64> = looked_at.iter().map(|w| w.generation).collect();
    youngest.sort_unstable();
    assert_eq!(evicted, youngest[2..]);
    assert_eq!((house.taken.len(), house.ledger.evictions().asked), (0, 3));
}

#[test]
fn what_is_on_its_way_is_not_asked_for_again() {
    let mut house = House::new(20, &[12]);
    house.slabs_max = 9;
    for _ in 0..5 {
        house.tick(&[0]);
        house.answer_questions();
    }
    assert_eq!(house.evicted().len(), 3, "asked in one round");
    assert_eq!(
        house.ledger.wanted_back(house.now, 0, 99).len(),
        3,
        "asked again until they are back"
    );
    let (client, window) = (0, house.ledger.wanted_back(house.now, 0, 1)[0]);
    house.give_back(client, window);
    house.slabs_max = 8;
    house.tick(&[0]);
    house.answer_questions();
    assert_eq!(
        house.evicted().len(),
        1,
        "one more, for there is less room by one"
    );
    assert_eq!(house.ledger.asked_back(), 3);
}

#[test]
fn with_room_again_nothing_stays_asked_for() {
    let mut house = House::new(20, &[12]);
    house.slabs_max = 9;
    house.tick(&[0]);
    house.answer_questions();
    let first = house.evicted();
    house.ledger.handle_declined(0, first[0].1);
    house.slabs_max = 11;
    house.tick(&[0]);
    assert_eq!(
        house.ledger.asked_back(),
        2,
        "the one that is declined, and one that goes"
    );
    house.slabs_max = 12;
    house.tick(&[0]);
    assert_eq!(
        (house.ledger.asked_back(), house.ledger.declined(0)),
        (0, 0)
    );
    assert_eq!(house.ledger.wanted_back(house.now, 0, 99), []);
    assert_eq!(house.ledger.evictions().done, 0);
}

#[test]
fn who_does_not_answer_in_time_counts_as_the_most_active() {
    let mut house = House::new(20, &[3, 3]);
    house.extra = 9;
    house.slabs_max = 3;
    house.tick(&[0, 1]);
    // Client 1 says nothing; the other's three are less active than what is not known.
    house.inbox.retain(|(client, _)| *client == 0);
    house.answer_questions();
    assert_eq!(house.evicted(), [], "there is time to answer");
    house.now += ACTIVITY_WAIT;
    house.tick(&[0, 1]);
    let evicted = house.evicted();
    assert_eq!(evicted.len(), 3);
    assert!(
        evicted.iter().all(|(client, _)| *client == 0),
        "{evicted:?}"
    );
}

#[test]
fn a_slab_that_its_client_leaves_out_is_the_least_active() {
    let mut house = House::new(20, &[6]);
    house.extra = 9;
    house.slabs_max = 3;
    house.tick(&[0]);
    let Some((0, Reply::CheckActivity { request, windows })) = house.inbox.pop() else {
        panic!("not asked");
    };
    let all = windows
        .iter()
        .map(|&window| SlabActivity { window, milli: 1 });
    let (left_out, said): (Vec<_>, Vec<_>) = all.partition(|said| said.window.generation % 2 == 0);
    house.ledger.handle_activity(house.now, 0, request + 1, &[]);
    house.ledger.handle_activity(house.now, 7, request, &[]);
    house.settle();
    assert_eq!(
        house.evicted(),
        [],
        "another question's answer, and another client's"
    );
    house.ledger.handle_activity(house.now, 0, request, &said);
    house.settle();
    let evicted: BTreeSet<u64> = house.evicted().iter().map(|(_, w)| w.generation).collect();
    let expected: BTreeSet<u64> = left_out.iter().map(|l| l.window.generation).collect();
    assert_eq!(evicted, expected);
}

#[test]
fn a_declined_slab_is_replaced_and_asked_for_again_all_the_same() {
    let mut house = House::new(20, &[4]);
    house.slabs_max = 3;
    house.tick(&[0]);
    house.answer_questions();
    let declined = house.evicted()[0].1;
    house.ledger.handle_declined(0, declined);
    house.tick(&[0]);
    house.answer_questions();
    let other = house.evicted();
    assert_eq!(other.len(), 1);
    assert_ne!(other[0].1, declined);
    assert_eq!(
        house.ledger.wanted_back(house.now, 0, 9),
        [other[0].1, declined],
        "declined ones last"
    );
    house.give_back(0, other[0].1);
    house.tick(&[0]);
    assert_eq!(house.ledger.asked_back(), 0);
}

#[test]
fn orphans_go_before_anybody_is_asked_the_oldest_first() {
    let mut house = House::new(20, &[2, 2, 4]);
    house.ledger.handle_disconnected(house.now, 0);
    house.tick(&[1, 2]);
    for _ in 0..5 {
        house.tick(&[2]);
    }
    // The first client's lease ends before the second's.
    for _ in 0..5 {
        house.tick(&[2]);
    }
    assert_eq!(house.ledger.counts().orphaned, 2);
    house.tick(&[2]);
    assert_eq!(house.ledger.counts().orphaned, 4);
    assert_eq!(house.taken, [], "a lease that ran out frees nothing");
    house.slabs_max = 5;
    house.tick(&[2]);
    let generations: Vec<u64> = house.taken.iter().map(|w| w.generation).collect();
    assert_eq!(generations, [1, 2, 3]);
    assert_eq!(house.inbox, [], "nobody is asked");
    assert_eq!(house.ledger.evictions().taken, 0);
    assert_eq!(house.ledger.orphans_taken(), 3);
}

/// Its clients could not answer, and it could not have heard them.
#[test]
fn the_time_that_a_host_was_stopped_counts_against_nobody() {
    let mut house = House::new(20, &[6]);
    (house.slabs_max, house.slabs_floor) = (3, 3);
    house.tick(&[0]);
    house.answer_questions();
    assert_eq!(house.evicted().len(), 3);
    house.now += PATIENCE * 2;
    house.tick(&[]);
    assert_eq!((house.taken.len(), house.inbox.len()), (0, 0));
    for _ in 0..UNANSWERED.as_secs() {
        house.tick(&[]);
    }
    assert_eq!(house.taken.len(), 1, "it had its time again");
}

#[test]
fn who_takes_a_volume_over_was_not_asked_for_what_its_last_owner_was() {
    let mut house = House::new(20, &[3]);
    (house.slabs_max, house.slabs_floor) = (2, 2);
    house.tick(&[0]);
    house.answer_questions();
    assert_eq!(house.evicted().len(), 1);
    house.ledger.handle_disconnected(house.now, 0);
    for _ in 0..UNANSWERED.as_secs() - 1 {
        house.tick(&[]);
    }
    house.ledger.handle_connected(house.now, 2, "next owner");
    house.ledger.handle_own(house.now, 2, 1, 0, 1);
    house.settle();
    for _ in 0..UNANSWERED.as_secs() + 1 {
        house.tick(&[2]);
        assert_eq!(house.ledger.asked_back(), 0);
    }
    assert_eq!(house.ledger.evictions().taken, 0);
}

#[test]
fn orphans_stay_when_what_is_missing_is_on_its_way() {
    let mut house = House::new(20, &[2, 4]);
    house.ledger.handle_disconnected(house.now, 0);
    house.extra = 0;
    for _ in 0..9 {
        house.tick(&[1]);
    }
    house.slabs_max = 5;
    house.tick(&[1]);
    house.answer_questions();
    assert_eq!(house.evicted().len(), 1);
    // The lease of the first ends.
    house.tick(&[1]);
    house.tick(&[1]);
    assert_eq!((house.ledger.counts().orphaned, house.taken.len()), (2, 0));
}

/// Nobody is there to be asked for them.
#[test]
fn a_host_that_drains_gives_up_orphans_that_there_is_no_room_for() {
    let mut house = House::new(20, &[2, 2]);
    house.ledger.handle_disconnected(house.now, 0);
    for _ in 0..12 {
        house.tick(&[1]);
    }
    house.ledger.handle_drain(house.now, true);
    house.settle();
    (house.slabs_max, house.slabs_floor) = (0, 0);
    house.tick(&[1]);
    assert_eq!((house.taken.len(), house.ledger.counts().mapped), (2, 2));
}

#[test]
fn nothing_is_taken_from_a_client_that_was_just_asked_or_that_gives_back() {
    let mut house = House::new(20, &[8]);
    (house.slabs_max, house.slabs_floor) = (2, 2);
    house.tick(&[0]);
    house.answer_questions();
    let asked = house.evicted();
    for (client, window) in asked.into_iter().take(4) {
        for _ in 0..UNANSWERED.as_secs() - 1 {
            house.tick(&[0]);
        }
        assert_eq!(house.taken, []);
        house.give_back(client, window);
    }
    assert_eq!(house.ledger.evictions().done, 4);
}

#[test]
fn a_client_that_never_gives_back_does_not_hold_up_the_rest() {
    let mut house = House::new(20, &[4, 4]);
    house.extra = 0;
    house.slabs_max = 6;
    let mut given_back = 0;
    for _ in 0..6 * PATIENCE.as_secs() {
        house.tick(&[0, 1]);
        house.answer_questions();
        for (client, window) in house.evicted() {
            if client == 1 {
                house.give_back(client, window);
                given_back += 1;
            }
        }
    }
    assert_eq!((given_back, house.taken.len()), (2, 0));
    assert_eq!(
        (house.ledger.counts().mapped, house.ledger.asked_back()),
        (6, 0)
    );
}

#[test]
fn a_slab_that_its_new_owner_may_still_ask_for_is_left_alone() {
    let mut house = House::new(20, &[3, 3]);
    house.ledger.handle_disconnected(house.now, 0);
    house.ledger.handle_connected(house.now, 2, "next owner");
    house.ledger.handle_own(house.now, 2, 1, 0, 1);
    house.settle();
    house.inbox.clear();
    house.slabs_max = 0;
    house.tick(&[1, 2]);
    assert_eq!(house.answer_questions(), 3, "those of client 1");
    assert!(house.evicted().iter().all(|(client, _)| *client == 1));
}

#[test]
fn who_waits_for_a_slab_is_refused_when_there_is_no_room_for_it_any_more() {
    let mut house = House::new(8, &[4]);
    // Three requests; the two prepared slabs serve two of them, the third waits for its memory.
    for extent in 10..13 {
        let place = StripeMember {
            volume: 0,
            extent,
            member: 0,
        };
        let request = extent.into();
        house.ledger.handle_map(house.now, 0, request, place);
    }
    let room = Room {
        slabs_max: 6,
        ..Room::fixed(8)
    };
    house.ledger.handle_room(house.now, room, 2, 0);
    house.settle();
    let refused = Reply::Refused {
        request: 12,
        reason: Refusal::NoMemory,
    };
    assert_eq!((house.lent.len(), &house.inbox), (6, &vec![(0, refused)]));
    assert_eq!(house.ledger.counts().prepared, 0, "its memory goes back");
}

use super::super::{LEASE, Limits, ORPHAN_LIFE};
use super::*;

const VOLUME: u128 = 7;
const A: u128 = 1;
const B: u128 = 2;

/// A ledger whose slow work is done at once.
struct Bench {
    ledger: Ledger,
    now: Duration,
    generations: u64,
    replies: Vec<(u128, Reply)>,
    retired: Vec<Window>,
    cut_off: Vec<u128>,
}

impl Bench {
    fn new() -> Self {
        let limits = Limits {
            slabs_total: 8,
            client_slabs_max: 8,
            clients_max: 4,
            stock: 0,
            lease: LEASE,
            orphan_life: ORPHAN_LIFE,
            room: crate::pressure::Room::fixed(8),
        };
        let now = Duration::from_secs(1);
        let mut bench = Self {
            ledger: Ledger::new(limits, now),
            now,
            generations: 0,
            replies: Vec::new(),
            retired: Vec::new(),
            cut_off: Vec::new(),
        };
        for client in [A, B] {
            bench.ledger.handle_connected(now, client, "client");
        }
        bench
    }

    fn settle(&mut self) {
        while let Some(action) = self.ledger.poll_action() {
            match action {
                Action::Prepare { slab } => {
                    let window = self.window(slab);
                    self.ledger.handle_prepared(self.now, slab, window);
                }
                Action::Renew { slab, window } => {
                    let renewed = self.window(slab);
                    assert!(renewed.generation > window.generation);
                    self.ledger.handle_renewed(slab, renewed);
                }
                Action::Retire { slab, window } => {
                    self.retired.push(window);
                    self.ledger.handle_retired(self.now, slab);
                }
                Action::CutOff { client } => self.cut_off.push(client),
                Action::Send { client, reply } => self.replies.push((client, reply)),
            }
        }
    }

    fn window(&mut self, id: SlabIndex) -> Window {
        self.generations += 1;
        Window {
            id,
            generation: self.generations,
            len_bytes: 1 << 20,
            rights: 3,
        }
    }

    fn answer(&mut self) -> Reply {
        self.settle();
        self.replies.pop().expect("answered at once").1
    }

    fn map(&mut self, client: u128, extent: u32) -> Reply {
        self.ledger.handle_map(self.now, client, 0, place(extent));
        self.answer()
    }

    fn mapped(&mut self, client: u128, extent: u32) -> Window {
        match self.map(client, extent) {
            Reply::Mapped { window, .. } => window,
            other => panic!("{other:?}"),
        }
    }

    fn own(&mut self, client: u128, epoch: u64) -> Reply {
        self.ledger.handle_own(self.now, client, 0, VOLUME, epoch);
        self.answer()
    }

    fn retake(&mut self, client: u128, extent: u32, birth: u64) -> Reply {
        self.ledger
            .handle_retake(self.now, client, 0, place(extent), birth);
        self.answer()
    }
}

fn place(extent: u32) -> StripeMember {
    StripeMember {
        volume: VOLUME,
        extent,
        member: 3,
    }
}

fn refused(reason: Refusal) -> Reply {
    Reply::Refused { request: 0, reason }
}

const fn owned(slabs: u32) -> Reply {
    Reply::Owned { request: 0, slabs }
}

#[test]
fn slabs_pass_to_the_next_owner_under_new_generations() {
    let mut bench = Bench::new();
    assert_eq!(bench.own(A, 1), owned(0));
    let (kept, left) = (bench.mapped(A, 0), bench.mapped(A, 1));
    assert_eq!(
        bench.own(B, 2),
        refused(Refusal::Owned),
        "while the first is alive"
    );
    bench.ledger.handle_disconnected(bench.now, A);
    assert_eq!(bench.own(B, 2), owned(2));
    assert_eq!(bench.ledger.find(A, kept), None);
    assert_eq!(
        bench.ledger.find(B, kept),
        None,
        "an old generation names nothing"
    );

    let Reply::Mapped { window, .. } = bench.retake(B, 0, kept.generation) else {
        panic!("not retaken");
    };
    assert!(window.generation > kept.generation);
    assert_eq!(
        bench.retake(B, 0, window.generation),
        refused(Refusal::NotHeld),
        "a slab is named by its first generation, whoever holds it"
    );
    bench.ledger.handle_leave(bench.now, B, VOLUME);
    bench.settle();
    assert_eq!(bench.retired.len(), 1);
    assert_eq!(bench.retired[0].id, left.id);
    assert_eq!(
        bench.retake(B, 1, left.generation),
        refused(Refusal::NotHeld)
    );
    // What was mapped or retaken by itself stays.
    assert!(matches!(
        bench.retake(B, 0, kept.generation),
        Reply::Mapped { .. }
    ));
    // The third owner names it as the second did.
    bench.ledger.handle_disconnected(bench.now, B);
    bench.ledger.handle_connected(bench.now, 3, "third");
    assert_eq!(bench.own(3, 3), owned(1));
    assert!(matches!(
        bench.retake(3, 0, kept.generation),
        Reply::Mapped { .. }
    ));
}

#[test]
fn an_earlier_owner_that_comes_back_is_refused() {
    let mut bench = Bench::new();
    assert_eq!(bench.own(A, 1), owned(0));
    bench.mapped(A, 0);
    bench.ledger.handle_disconnected(bench.now, A);
    assert_eq!(bench.own(B, 2), owned(1));
    bench.ledger.handle_connected(bench.now, A, "first");
    assert_eq!(bench.own(A, 1), refused(Refusal::Superseded));
    assert_eq!(bench.own(A, 2), refused(Refusal::Superseded));
    assert_eq!(bench.map(A, 5), refused(Refusal::Owned));
    // Even once the new owner holds nothing here, as long as it is connected.
    bench.ledger.handle_leave(bench.now, B, VOLUME);
    bench.settle();
    assert_eq!(bench.map(A, 5), refused(Refusal::Owned));
    assert_eq!(bench.own(B, 2), owned(0), "said again, it changes nothing");
}

#[test]
fn an_owner_whose_lease_ran_out_is_cut_off() {
    let mut bench = Bench::new();
    let window = bench.mapped(A, 0);
    for _ in 0..LEASE.as_secs() + 2 {
        bench.now += Duration::from_secs(1);
        bench.ledger.handle_sign_of_life(bench.now, B);
        bench.ledger.handle_tick(bench.now);
    }
    assert_eq!(bench.own(B, 1), owned(1));
    assert_eq!(bench.cut_off, [A]);
    assert!(matches!(
        bench.retake(B, 0, window.generation),
        Reply::Mapped { .. }
    ));
}

#[test]
fn a_client_retakes_its_own_slab_on_a_later_connection() {
    let mut bench = Bench::new();
    let window = bench.mapped(A, 0);
    bench.ledger.handle_disconnected(bench.now, A);
    bench.ledger.handle_connected(bench.now, A, "again");
    // What it had under way on the earlier one takes no effect any more.
    let Reply::Mapped {
        request: 0,
        window: renewed,
    } = bench.retake(A, 0, window.generation)
    else {
        panic!("not retaken");
    };
    assert!(renewed.generation > window.generation);
    assert_eq!(bench.ledger.find(A, window), None);
    bench.ledger.handle_leave(bench.now, A, VOLUME);
    bench.settle();
    assert_eq!(bench.retired, [], "only what came from another is left");
}

#[test]
fn the_table_of_owners_is_bounded() {
    let mut bench = Bench::new();
    let bound = 8 + 4 * IDLE_VOLUMES_PER_CLIENT as u128;
    for volume in 0..bound {
        bench.ledger.handle_own(bench.now, A, 0, volume, 1);
        assert_eq!(bench.answer(), owned(0));
    }
    bench.ledger.handle_own(bench.now, A, 0, bound, 1);
    assert_eq!(bench.answer(), refused(Refusal::ClientBound));
    bench.ledger.handle_disconnected(bench.now, A);
    bench.ledger.handle_own(bench.now, B, 0, bound, 1);
    assert_eq!(bench.answer(), owned(0));
}

#[test]
fn a_renewed_slab_has_a_new_name_and_is_still_its_clients() {
    let mut bench = Bench::new();
    let window = bench.mapped(A, 0);
    let (now, mut renew) = (bench.now, |client, window| {
        bench.ledger.handle_renew(bench.now, client, 9, window);
        bench.answer()
    });
    let reason = Refusal::NotHeld;
    let refused = Reply::Refused { request: 9, reason };
    assert_eq!(renew(B, window), refused, "another's");
    let Reply::Mapped {
        request: 9,
        window: renewed,
    } = renew(A, window)
    else {
        panic!("not renewed");
    };
    assert!(renewed.generation > window.generation);
    assert_eq!(renew(A, window), refused, "an old name");
    assert_eq!(bench.ledger.find(A, window), None);
    assert!(bench.ledger.find(A, renewed).is_some());
    // It keeps its first generation, by which later owners name it.
    bench.ledger.handle_disconnected(now, A);
    assert_eq!(bench.own(B, 1), owned(1));
    assert!(matches!(
        bench.retake(B, 0, window.generation),
        Reply::Mapped { .. }
    ));
}

#[test]
fn a_slab_that_cannot_be_renewed_is_refused_and_goes() {
    let mut bench = Bench::new();
    let window = bench.mapped(A, 0);
    bench.ledger.handle_renew(bench.now, A, 9, window);
    let Some(Action::Renew { slab, .. }) = bench.ledger.poll_action() else {
        panic!("not to be renewed");
    };
    bench.ledger.handle_renew_failed(slab);
    let reason = Refusal::NotHeld;
    assert_eq!(bench.answer(), Reply::Refused { request: 9, reason });
    assert_eq!(bench.retired, [window]);
}

/// A host reads several messages before it acts.
#[test]
fn a_slab_that_is_given_back_before_it_is_renewed_goes() {
    let reason = Refusal::NotHeld;
    let refused = (A, Reply::Refused { request: 0, reason });
    for fails in [false, true] {
        let mut bench = Bench::new();
        let window = bench.mapped(A, 0);
        bench
            .ledger
            .handle_retake(bench.now, A, 0, place(0), window.generation);
        bench.ledger.handle_unmap(bench.now, A, window);
        if fails {
            let Some(Action::Renew { slab, .. }) = bench.ledger.poll_action() else {
                panic!("not to be renewed");
            };
            bench.ledger.handle_renew_failed(slab);
        }
        bench.settle();
        assert_eq!(bench.retired, [window]);
        assert_eq!(
            bench.replies,
            [refused.clone(), (A, Reply::Unmapped { window })]
        );
    }
}

#[test]
fn a_slab_that_is_asked_for_twice_before_it_is_renewed_has_one_name() {
    let mut bench = Bench::new();
    let window = bench.mapped(A, 0);
    for request in [4, 5] {
        bench
            .ledger
            .handle_retake(bench.now, A, request, place(0), window.generation);
    }
    let Reply::Mapped {
        request: 5,
        window: renewed,
    } = bench.answer()
    else {
        panic!("not retaken");
    };
    assert!(
        bench.ledger.find(A, renewed).is_some(),
        "the name it was told"
    );
    assert_eq!(bench.replies, []);
}

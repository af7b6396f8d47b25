//! The rules of giving slabs up, against whatever hosts, clients and machines do.

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Tick { heard: Vec<bool> },
    Room { slabs_max: u32, below: u32 },
    Answer,
    GiveBack(usize),
    Decline(usize),
    Map(u8),
    Connect(u8, bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => vec(any::<bool>(), 3).prop_map(|heard| Step::Tick { heard }),
        2 => (0_u32..13, 0_u32..4).prop_map(|(slabs_max, below)| Step::Room { slabs_max, below }),
        4 => Just(Step::Answer),
        3 => any::<usize>().prop_map(Step::GiveBack),
        1 => any::<usize>().prop_map(Step::Decline),
        2 => (0_u8..3).prop_map(Step::Map),
        1 => (0_u8..3, any::<bool>()).prop_map(|(client, here)| Step::Connect(client, here)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever happens, memory leaves a client only when it gave it back, when its lease had run
    /// out, or below the floor after it was asked for three seconds; and no more slabs are on
    /// their way than there is too little room for (Z9).
    #[test]
    fn no_slab_goes_but_by_the_rules_and_none_is_asked_for_twice(steps in vec(step(), 1..80)) {
        let mut house = House::new(12, &[4, 3, 2]);
        let mut heard_at = [house.now; 3];
        let mut here = [true; 3];
        let mut asked_at = BTreeMap::new();
        let mut extents = 100;
        for step in steps {
            let before = house.lent.clone();
            match step {
                Step::Tick { heard } => {
                    let heard: Vec<u128> = (0..3).filter(|&c| heard[c] && here[c]).map(|c| c as u128).collect();
                    house.tick(&heard);
                    for client in heard {
                        heard_at[client as usize] = house.now;
                    }
                    let excess = house.lent.len().saturating_sub(house.slabs_max as usize);
                    let going = house.ledger.grants().filter(|(_, g)| {
                        g.asked.is_some_and(|a| !g.declined && house.now - a.since < PATIENCE)
                    });
                    prop_assert!(going.count() <= excess);
                    let counts = house.ledger.counts();
                    let lent = counts.mapped + counts.orphaned;
                    prop_assert!(lent + counts.prepared <= house.slabs_max.max(lent));
                }
                Step::Room { slabs_max, below } => {
                    house.slabs_max = slabs_max;
                    house.slabs_floor = slabs_max + below;
                }
                Step::Answer => { house.answer_questions(); }
                Step::GiveBack(nth) | Step::Decline(nth) => {
                    let wanted: Vec<_> = (0..3).flat_map(|c| {
                        house.ledger.wanted_back(house.now, c, 99).into_iter().map(move |w| (c, w))
                    }).collect();
                    if !wanted.is_empty() {
                        let (client, window) = wanted[nth % wanted.len()];
                        if matches!(step, Step::GiveBack(_)) {
                            house.give_back(client, window);
                        } else {
                            house.ledger.handle_declined(client, window);
                        }
                    }
                }
                Step::Map(client) => if here[client as usize] {
                    extents += 1;
                    heard_at[client as usize] = house.now;
                    let free = house.ledger.slabs_lendable();
                    let held = house.lent.len();
                    house.map(client.into(), extents);
                    let grown = house.lent.len() - held.min(house.lent.len());
                    prop_assert!(free > 0 || grown == 0);
                    prop_assert!(grown == 0 || house.lent.len() as u32 <= house.ledger.room().slabs_max);
                }
                Step::Connect(client, true) => {
                    house.ledger.handle_connected(house.now, client.into(), "client");
                    heard_at[client as usize] = house.now;
                    here[client as usize] = true;
                }
                Step::Connect(client, false) => {
                    house.ledger.handle_disconnected(house.now, client.into());
                    here[client as usize] = false;
                }
            }
            for (client, window) in house.evicted() {
                asked_at.entry(window.generation).or_insert((client, house.now));
            }
            for window in std::mem::take(&mut house.taken) {
                let Some((client, _)) = before.iter().find(|(_, lent)| *lent == window) else {
                    prop_assert!(false, "a slab that nobody held");
                    continue;
                };
                if house.now - heard_at[*client as usize] > LEASE {
                    continue;
                }
                let asked = asked_at.get(&window.generation);
                prop_assert!(asked.is_some_and(|&(_, at)| house.now - at >= UNANSWERED));
                prop_assert!(before.len() as u32 > house.slabs_floor, "above the floor");
            }
        }
    }
}

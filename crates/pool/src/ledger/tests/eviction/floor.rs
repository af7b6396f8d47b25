//! What is taken without its client's answer.

use super::*;

#[test]
fn a_silent_client_keeps_its_slabs_until_the_floor_and_then_loses_one_at_a_time() {
    let mut house = House::new(20, &[6]);
    house.slabs_max = 3;
    house.tick(&[0]);
    house.answer_questions();
    let mut asked = house.evicted();
    assert_eq!(asked.len(), 3);
    for _ in 0..UNANSWERED.as_secs() + 2 {
        house.tick(&[]);
    }
    assert_eq!(house.taken, [], "above the floor nothing is taken");
    house.slabs_floor = 4;
    house.tick(&[]);
    asked.sort_by_key(|(_, window)| std::cmp::Reverse(window.generation));
    assert_eq!(house.taken, [asked[0].1], "the least active");
    house.tick(&[]);
    assert_eq!(house.taken, [asked[0].1, asked[1].1]);
    assert_eq!(
        house.told, house.taken,
        "it may be there, and would miss them late"
    );
    house.tick(&[]);
    assert_eq!(house.taken.len(), 2, "at the floor no more is taken");
    assert_eq!(house.ledger.evictions().taken, 2);
}

/// It may be copying a large slab, unless it says that it cannot.
#[test]
fn below_the_floor_a_client_that_is_heard_of_is_given_longer() {
    let mut house = House::new(20, &[6]);
    (house.slabs_max, house.slabs_floor) = (4, 4);
    house.extra = 0;
    house.tick(&[0]);
    house.answer_questions();
    let asked = house.evicted();
    for _ in 0..PATIENCE.as_secs() - 1 {
        house.tick(&[0]);
        assert_eq!(house.taken, []);
    }
    house.ledger.handle_declined(0, asked[1].1);
    house.tick(&[0]);
    assert_eq!(house.taken.len(), 1);

    let mut house = House::new(20, &[6]);
    (house.slabs_max, house.slabs_floor) = (5, 5);
    house.tick(&[0]);
    house.answer_questions();
    let (_, declined) = house.evicted()[0];
    house.ledger.handle_declined(0, declined);
    for _ in 0..UNANSWERED.as_secs() {
        assert_eq!(house.taken, []);
        house.tick(&[0]);
    }
    assert_eq!(house.taken, [declined]);
}

/// It would be ended by the kernel, with all that it has.
#[test]
fn a_host_that_drains_has_its_floor() {
    let mut house = House::new(20, &[4]);
    house.ledger.handle_drain(house.now, true);
    house.settle();
    (house.slabs_max, house.slabs_floor) = (3, 3);
    for _ in 0..PATIENCE.as_secs() - 1 {
        house.tick(&[0]);
        assert_eq!(house.taken, []);
    }
    for _ in 0..5 {
        house.tick(&[0]);
    }
    assert_eq!((house.taken.len(), house.told.len()), (1, 1));
}

#[test]
fn a_host_that_drains_takes_nothing_from_a_client_that_gives_back() {
    let mut house = House::new(20, &[9]);
    house.ledger.handle_drain(house.now, true);
    house.settle();
    (house.slabs_max, house.slabs_floor) = (3, 3);
    for second in 1..=30 {
        house.tick(&[0]);
        if second % 5 == 0 {
            let (client, window) = house.lent[0];
            house.give_back(client, window);
        }
        assert_eq!(house.taken, [], "after {second} s");
    }
    assert_eq!(house.ledger.evictions().taken, 0);
}

#[test]
fn a_host_that_was_stopped_while_it_drains_takes_nothing_for_it() {
    // One gives a slab back, the other has not come to that.
    let mut house = House::new(20, &[4, 4]);
    house.ledger.handle_drain(house.now, true);
    house.settle();
    (house.slabs_max, house.slabs_floor) = (3, 3);
    house.tick(&[0, 1]);
    let (client, window) = house.lent[0];
    house.give_back(client, window);
    house.now += Duration::from_secs(60);
    for _ in 0..5 {
        house.tick(&[0, 1]);
        assert_eq!(house.taken, []);
    }
}

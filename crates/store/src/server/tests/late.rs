//! Values that come late, by clocks that were read before threads stood still.

use super::*;
use crate::pool::Landing;

/// A thread reads the clock, and does not run for longer than values are waited for: what is asked
/// for then has its whole time.
#[test]
fn a_space_is_waited_for_from_when_it_was_asked_for_not_from_when_its_turn_began() {
    let mut bench = Bench::new(new_pool(1 << 20, MEMORY, 64), EFactory);
    let began = bench.now;
    bench.now = began.after(PATIENCE * 2);
    let request = Request::Space {
        condition: Condition::Absent,
        value_bytes: 5,
        checksum: Model::checksum(b"key", b"value"),
        key: b"key",
    };
    assert_eq!(bench.ask(ONE, 5, request), None);
    let asked = bench.now;
    for now in [began, asked, asked] {
        bench.now = now;
        bench.step();
    }
    assert_eq!(bench.shard.lock().pool.backlog(), 1, "it was given up");
    bench.now = asked.after(PATIENCE);
    bench.turn();
    assert_eq!(bench.shard.lock().pool.backlog(), 0);
}

/// A value that comes behind the first look at it, as the store begins to stop.
struct AfterOneLook {
    shard: Arc<Shard<ModelMedium>>,
    is_there: bool,
}

impl Landing for AfterOneLook {
    fn read(&mut self, out: &mut [u8]) {
        if !std::mem::replace(&mut self.is_there, true) {
            self.shard.stop();
            return out.fill(0);
        }
        out.copy_from_slice(b"value");
    }
}

/// As many others wait as are looked at in two turns, with it.
#[test]
fn a_value_that_comes_behind_its_last_look_but_before_the_end_is_looked_at_once_more() {
    for unit in [MEMORY, DISK] {
        let bench = Bench::new(new_pool(8 << 20, unit, 4096), EFactory);
        let Bench {
            shard, persister, ..
        } = bench;
        let allocate = |key: &[u8], landing: Box<dyn Landing>| {
            let (sum, source) = (Model::checksum(key, b"value"), Source::Landing(landing));
            let mut state = shard.lock();
            let given = (state.pool).allocate(key, 5, sum, source, Condition::Always);
            given.unwrap();
        };
        let is_there = false;
        let landing = Box::new(AfterOneLook {
            shard: Arc::clone(&shard),
            is_there,
        });
        allocate(b"key", landing);
        for number in 1..2048_u32 {
            allocate(&number.to_le_bytes(), Box::new(b"never".to_vec()));
        }
        persister.run().unwrap();
        let found = shard.lock().pool.locate(b"key", u64::MAX).unwrap();
        assert!(matches!(found, Located::Durable(_)), "{found:?}");
    }
}

//! Values that come late, by clocks that were read before threads stood still.

use super::*;

/// A thread reads the clock, and does not run for longer than values are waited for: what is asked for then
/// has its whole time.
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

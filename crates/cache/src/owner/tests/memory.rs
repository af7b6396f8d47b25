//! Memory that is slow to come, or that does not help.

use super::*;

#[test]
fn a_host_that_makes_memory_slowly_makes_all_of_it_for_somebody() {
    let settings = Settings {
        slabs_per_region: 1,
        ..settings(1)
    };
    let mut owner = Owner::new(settings, 0, &[0], Time(0));
    owner.handle_host_up(Time(0), 0, 300, &[]);
    owner.handle_resize(Time(0), 200);
    let (mut now, mut made) = (Time(0), 0);
    let mut asked = VecDeque::new();
    for _ in 0..600 {
        now = now.after(Duration::from_millis(100));
        owner.handle_tick(now);
        while let Some(action) = owner.poll_action() {
            assert!(!matches!(action, Action::Unmap { .. }), "made for nobody");
            if let Action::Map { request, .. } = action {
                asked.push_back(request);
            }
        }
        if let Some(request) = asked.pop_front() {
            made += 1;
            let window = Window {
                id: made,
                generation: 1,
                len_bytes: 2 * MIB,
                rights: 7,
            };
            owner.handle_granted(now, 0, request, window);
        }
    }
    assert!(owner.is_settled());
    assert_eq!(made, 200);
}

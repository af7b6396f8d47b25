//! Any order of events.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Kill(usize),
    Start(usize),
    Silence(usize),
    Notice(usize, bool),
    Refuse,
    Obey(u8),
    Pass(u16),
    Resize(u32),
    Join,
    Stop(u64),
    Mute(usize),
    Speak(usize),
    Books(usize),
    TakeBack(usize),
    Doubt(u64, usize),
    Take,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_usize..4).prop_map(Step::Kill),
        (0_usize..4).prop_map(Step::Start),
        (0_usize..4).prop_map(Step::Silence),
        (0_usize..4, any::<bool>()).prop_map(|(host, on)| Step::Notice(host, on)),
        Just(Step::Refuse),
        (1_u8..40).prop_map(Step::Obey),
        (1_u16..5000).prop_map(Step::Pass),
        (0_u32..6).prop_map(Step::Resize),
        Just(Step::Join),
        (0_u64..4).prop_map(Step::Stop),
        (0_usize..4).prop_map(Step::Mute),
        (0_usize..4).prop_map(Step::Speak),
        (0_usize..4).prop_map(Step::Books),
        (0_usize..4).prop_map(Step::TakeBack),
        ((0_u64..4), (0_usize..3)).prop_map(|(client, region)| Step::Doubt(client, region)),
        Just(Step::Take),
    ]
}

impl World {
    fn take(&mut self, step: Step, joined: &mut u64) {
        let now = self.now;
        match step {
            Step::Kill(host) => self.kill(host),
            Step::Start(host) if !self.up[host] => self.start(host),
            Step::Start(_) => {}
            Step::Silence(host) => {
                self.owner.handle_host_silent(now, host);
                self.up[host] = false;
            }
            Step::Notice(host, true) => self.owner.handle_notice(now, host, Some(now)),
            Step::Notice(host, false) => self.owner.handle_notice_withdrawn(now, host),
            Step::Refuse => match self.owner.poll_action() {
                Some(Action::Map { host, request, .. }) => {
                    let reason = Refusal::NoMemory;
                    self.owner.handle_refused(now, host, request, reason);
                }
                other => other.into_iter().for_each(|action| self.carry_out(action)),
            },
            Step::Obey(count) => {
                for _ in 0..count {
                    let Some(action) = self.owner.poll_action() else {
                        return;
                    };
                    self.carry_out(action);
                }
            }
            Step::Pass(millis) => self.pass(Duration::from_millis(millis.into())),
            Step::Resize(regions) => self.owner.handle_resize(now, regions),
            Step::Join => {
                *joined += 1;
                self.join(*joined);
            }
            Step::Stop(client) => self.stopped.push(client),
            Step::Mute(host) => self.mute.push(host),
            Step::Speak(host) => self.mute.retain(|&mute| mute != host),
            Step::Books(host) if self.up[host] => self.tell_books(host),
            Step::Books(_) => {}
            Step::TakeBack(host) => drop(self.held[host].pop()),
            Step::Doubt(client, region) => {
                self.owner.handle_doubt(now, client, region, u64::MAX);
            }
            Step::Take => self.succeed(),
        }
    }
}

proptest! {
    /// The audit runs after each event; and whatever happened, it is whole once hosts are there.
    #[test]
    fn any_order_of_events_keeps_the_invariants_and_ends_whole(
        copies in 1_usize..3,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(copies, 3, 4);
        let mut joined = 0;
        for step in steps {
            world.take(step, &mut joined);
        }
        world.mute.clear();
        for host in 0..4 {
            world.owner.handle_notice_withdrawn(world.now, host);
            if !world.up[host] {
                world.start(host);
            }
        }
        for _ in 0..200 {
            world.run();
            world.pass(Duration::from_millis(500));
            for host in 0..4 {
                world.owner.handle_room(world.now, host, 100);
                world.tell_books(host);
            }
        }
        world.run();
        prop_assert!(world.owner.is_settled(), "{:?}", world.owner);
    }
}

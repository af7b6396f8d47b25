//! Two owners at once: one is stopped for so long that another follows, and then goes on.

use std::time::Duration;

use cenote_cache::manager::Manager;
use cenote_fabric::Time;
use cenote_fabric::sim::{NodeId, SimConnector};

use super::{Repair, World};
use crate::cache::member::Whose;

/// How long the lock of an owner holds that does not renew it.
pub const REIGN: Duration = Duration::from_secs(5);

/// Longer than a host believes in a silent owner: then it passes to the next.
const STOP: Duration = Duration::from_secs(12);

/// One that goes on looks at the lock so much later.
const LOOK: Duration = Duration::from_secs(1);

/// An owner that another followed.
pub struct Former {
    manager: Manager,
    connector: SimConnector,
    /// It is stopped until then.
    back_at: Time,
    /// When it looks at the lock, and finds another's.
    looks_at: Time,
}

impl Former {
    pub fn node(&self) -> NodeId {
        self.connector.node()
    }
}

impl World {
    /// The owner is stopped; another takes over once the lock is free.
    pub(super) fn stop_owner_for_long(&mut self) {
        let now = self.net.now();
        self.note(format!("the owner stops for {STOP:?}"));
        self.net.pause(self.owner_connector.node());
        self.owner_paused_until = now.after(STOP);
        self.repairs.push((now.after(REIGN), Repair::TakeOver));
    }

    /// Another owner begins. It does not reach one host, where the former one still has its
    /// session, and some clients do not hear of it.
    pub(super) fn take_over(&mut self) {
        let Some(manager) = self.manager.take() else {
            return;
        };
        self.note("another owner follows".to_owned());
        let next = self.net.client("next owner");
        let back_at = std::mem::replace(&mut self.owner_paused_until, Time(0));
        self.former = Some(Former {
            manager,
            connector: std::mem::replace(&mut self.owner_connector, next),
            back_at,
            looks_at: back_at.after(LOOK),
        });
        let (host, owner) = (self.hosts[0].node, self.owner_connector.node());
        self.net.cut(host, owner);
        self.net.cut(owner, host);
        self.later(20_000, 20_001, Repair::Heal(host, owner));
        for (index, member) in self.members.iter_mut().enumerate() {
            if index % 2 == 0 {
                member.owner = Whose::Former;
            } else {
                member.forget_owner();
            }
        }
        self.start_owner();
    }

    pub(super) fn turn_former(&mut self) {
        let now = self.net.now();
        let Some(mut former) = self.former.take() else {
            return;
        };
        if now >= former.back_at {
            if former.back_at != Time(0) {
                former.back_at = Time(0);
                self.net.resume(former.node());
                self.note("the former owner goes on".to_owned());
            }
            if now >= former.looks_at {
                former.manager.owner.handle_superseded();
            }
            self.hear_all(&mut former.manager, Whose::Former, now);
            former.manager.step(now);
            while let Some(news) = former.manager.take_news() {
                self.pass_on(&mut former.manager, news, now);
            }
        }
        self.former = Some(former);
    }
}

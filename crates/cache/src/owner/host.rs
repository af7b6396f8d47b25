//! What the owner knows of one host.

use cenote_fabric::Time;

/// Index of a host in the cluster's list.
pub type HostIndex = usize;

/// One host.
#[derive(Debug)]
pub struct Host {
    pub domain: u32,
    /// Of one that an earlier owner knew, and this one's driver does not.
    pub name: Option<String>,
    reach: Reach,
    slabs_free: u32,
    /// As an operator said, or who buys machines.
    leaving: Option<Leaving>,
    /// As the host itself said: it says so in each session.
    notice: Option<Leaving>,
    /// The cluster has it no more, as its file says to each owner.
    is_unlisted: bool,
    /// Nothing more is placed there.
    pub is_kept_out: bool,
    /// It refused a slab, or a fill there failed: nothing is asked of it before this.
    pub avoid_until: Time,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Reach {
    /// Nothing of the cache is there.
    Ended,
    Up,
    /// What is there may come back.
    Silent {
        since: Time,
    },
}

#[derive(Clone, Copy, Debug)]
struct Leaving {
    deadline: Option<Time>,
}

impl Host {
    pub fn new(domain: u32) -> Self {
        Self {
            domain,
            name: None,
            reach: Reach::Ended,
            slabs_free: 0,
            leaving: None,
            notice: None,
            is_unlisted: false,
            is_kept_out: false,
            avoid_until: Time(0),
        }
    }

    /// One that an earlier owner knew, and this one's driver does not.
    pub fn absent(domain: u32, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::new(domain)
        }
    }

    pub fn is_kept_out(&self) -> bool {
        self.is_kept_out
    }

    pub fn come_up(&mut self, slabs_free: u32) {
        self.reach = Reach::Up;
        self.slabs_free = slabs_free;
    }

    pub fn set_free(&mut self, slabs_free: u32) {
        self.slabs_free = slabs_free;
    }

    /// Slabs that it could lend at once.
    pub fn slabs_free(&self) -> u32 {
        self.slabs_free
    }

    /// One more of its slabs was asked for.
    pub fn count_asked(&mut self) {
        self.slabs_free = self.slabs_free.saturating_sub(1);
    }

    /// Whether that is news.
    pub fn fall_silent(&mut self, now: Time) -> bool {
        let is_news = !matches!(self.reach, Reach::Silent { .. });
        if is_news {
            self.reach = Reach::Silent { since: now };
        }
        is_news
    }

    /// Shifts the time since when it is silent.
    pub fn shift_silence(&mut self, shift: impl Fn(&mut Time)) {
        if let Reach::Silent { since } = &mut self.reach {
            shift(since);
        }
    }

    /// It answered, and is out of reach all the same.
    pub fn note_answer(&mut self, now: Time) {
        self.shift_silence(|since| *since = now);
    }

    pub fn end(&mut self) {
        self.reach = Reach::Ended;
        self.leaving = None;
        self.notice = None;
        self.is_unlisted = false;
    }

    pub fn leave(&mut self, deadline: Option<Time>) {
        self.leaving = Some(Leaving { deadline });
    }

    pub fn stay(&mut self) {
        self.leaving = None;
    }

    /// The host itself says whether it leaves, and when.
    pub fn say_notice(&mut self, deadline: Option<Time>) {
        self.notice = deadline.map(|at| Leaving { deadline: Some(at) });
    }

    /// Whether the cluster has it no more.
    pub fn set_unlisted(&mut self, is_unlisted: bool) {
        self.is_unlisted = is_unlisted;
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some() || self.notice.is_some() || self.is_unlisted
    }

    /// Whether somebody said so who will not say it again: the next owner is to know.
    pub fn is_told_to_leave(&self) -> bool {
        self.leaving.is_some()
    }

    /// When it goes; the end of time if nobody said.
    pub fn deadline(&self) -> Time {
        let said = self.leaving.iter().chain(&self.notice);
        let deadline = said.filter_map(|leaving| leaving.deadline).min();
        deadline.unwrap_or(Time(u64::MAX))
    }

    pub fn is_up(&self) -> bool {
        self.reach == Reach::Up
    }

    pub fn has_ended(&self) -> bool {
        self.reach == Reach::Ended
    }

    pub fn is_silent_for(&self, now: Time, patience: std::time::Duration) -> bool {
        matches!(self.reach, Reach::Silent { since } if now.since(since) >= patience)
    }
}

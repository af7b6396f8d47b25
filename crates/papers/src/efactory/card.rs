//! The server's card and link: what passes them, one after the other, each way.

/// Picoseconds of `ns`.
#[must_use]
pub fn picoseconds(ns: f64) -> u64 {
    (ns * 1000.0).round() as u64
}

/// One way of a link, which takes connections in turn, packet by packet.
///
/// Messages of more than a packet pass in the order of arrival. One of a packet at most waits for
/// the packet that is passing and for others of its kind, not for all of a value: it has its own
/// turn.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    packet_ps: u64,
    /// When all that has come will have passed.
    free_ps: u64,
    /// When all short messages that have come will.
    short_free_ps: u64,
    busy_ps: u64,
}

impl Way {
    /// A packet takes so long.
    #[must_use]
    pub fn new(packet_ps: u64) -> Self {
        Self {
            packet_ps,
            free_ps: 0,
            short_free_ps: 0,
            busy_ps: 0,
        }
    }

    /// When what arrives at `now_ps` and takes `service_ps` has passed.
    pub fn pass(&mut self, now_ps: u64, service_ps: u64) -> u64 {
        if service_ps > self.packet_ps {
            return self.pass_in_order(now_ps, service_ps);
        }
        let packet_ps = self.free_ps.saturating_sub(now_ps).min(self.packet_ps);
        let free_ps = self.short_free_ps.max(now_ps + packet_ps);
        self.short_free_ps = free_ps + service_ps;
        self.pass_in_order(now_ps, service_ps);
        self.short_free_ps
    }

    /// The same of what must not overtake anything: it follows something on its connection.
    pub fn pass_in_order(&mut self, now_ps: u64, service_ps: u64) -> u64 {
        self.free_ps = self.free_ps.max(now_ps) + service_ps;
        self.busy_ps += service_ps;
        self.free_ps
    }

    /// Time that it was in use.
    #[must_use]
    pub fn busy_ps(&self) -> u64 {
        self.busy_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_early_waits_and_who_comes_late_does_not() {
        let mut way = Way::new(10);
        assert_eq!(way.pass(100, 50), 150);
        assert_eq!(way.pass(110, 50), 200);
        assert_eq!(way.pass(1000, 50), 1050);
        assert_eq!(way.busy_ps(), 150);
    }

    #[test]
    fn a_short_message_waits_for_a_packet_and_takes_its_time_all_the_same() {
        let mut way = Way::new(10);
        assert_eq!(way.pass(100, 500), 600);
        assert_eq!(way.pass(100, 4), 114);
        assert_eq!(way.pass(100, 4), 118, "behind the one before");
        assert_eq!(way.pass(100, 500), 1108);
        assert_eq!(way.pass_in_order(100, 4), 1112);
    }

    #[test]
    fn short_messages_alone_pass_in_order() {
        let mut way = Way::new(10);
        let passed: Vec<u64> = (0..4).map(|_| way.pass(100, 5)).collect();
        assert_eq!(passed, [105, 110, 115, 120]);
    }
}

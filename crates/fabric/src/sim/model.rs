//! How long things take: latency of links, service and load of network cards, stragglers.
//!
//! A message waits for its sender's card, is under way for its link's latency, and waits for its
//! receiver's card. Latencies are those of an idle network, cards included, so an unloaded verb
//! takes exactly what its curve says and load only adds. All arithmetic is on integers.

use super::random::{Random, mix};
use crate::Time;

/// Round-trip time by payload: a line through two points, in bytes and nanoseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Curve {
    from: (u64, u64),
    to: (u64, u64),
}

impl Curve {
    /// The line through two points, (bytes, nanoseconds) each.
    ///
    /// # Panics
    /// If the second is not of more bytes, or takes less time.
    #[must_use]
    pub const fn through(from: (u64, u64), to: (u64, u64)) -> Self {
        assert!(to.0 > from.0 && to.1 >= from.1);
        Self { from, to }
    }

    /// Nanoseconds of the round trip with `len_bytes` of payload.
    #[inline]
    #[must_use]
    pub const fn round_trip_ns(&self, len_bytes: u64) -> u64 {
        let (bytes, time) = (self.to.0 - self.from.0, self.to.1 - self.from.1);
        if len_bytes >= self.from.0 {
            self.from.1 + (len_bytes - self.from.0) * time / bytes
        } else {
            let less = (self.from.0 - len_bytes) * time / bytes;
            self.from.1.saturating_sub(less)
        }
    }

    /// The leg that carries the payload.
    #[inline]
    pub(super) const fn laden_ns(&self, len_bytes: u64) -> u64 {
        self.round_trip_ns(len_bytes)
            .saturating_sub(self.empty_ns())
    }

    /// The other leg.
    #[inline]
    pub(super) const fn empty_ns(&self) -> u64 {
        self.round_trip_ns(0) / 2
    }
}

/// One direction of a pair of nodes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LinkModel {
    /// One-sided READ.
    pub read: Curve,
    /// One-sided WRITE.
    pub write: Curve,
    /// SEND.
    pub send: Curve,
    /// Compare-and-swap, fetch-and-add.
    pub atomic: Curve,
    /// Messages of sessions; twice the way of one message.
    pub control: Curve,
    /// Messages that take much longer.
    pub stragglers: Stragglers,
}

impl Default for LinkModel {
    /// One-sided verbs over RDMA: 512 bytes in 1.5 us, 4 KiB in 4 us.
    fn default() -> Self {
        const ONE_SIDED: Curve = Curve::through((512, 1_500), (4096, 4_000));
        // Two-sided: the receiver's CPU takes part. 20 us for an exchange over TCP is usual.
        const TWO_SIDED: Curve = Curve::through((512, 3_000), (4096, 5_500));
        const CONTROL: Curve = Curve::through((512, 20_000), (4096, 25_000));
        Self {
            read: ONE_SIDED,
            write: ONE_SIDED,
            send: TWO_SIDED,
            atomic: ONE_SIDED,
            control: CONTROL,
            stragglers: Stragglers::NONE,
        }
    }
}

/// Extra delays with a long tail: `scale_ns` or more, each doubling half as likely as the one before.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stragglers {
    /// Messages that are late, of a million.
    pub chance_ppm: u32,
    /// The least extra delay.
    pub scale_ns: u64,
    /// Most doublings.
    pub doublings_max: u32,
}

impl Stragglers {
    /// No message is late.
    pub const NONE: Self = Self {
        chance_ppm: 0,
        scale_ns: 0,
        doublings_max: 0,
    };

    /// The extra delay of one message.
    #[inline]
    pub(super) fn draw_ns(&self, random: &mut Random) -> u64 {
        if !random.happens(self.chance_ppm) || self.scale_ns == 0 {
            return 0;
        }
        let doublings = random.next().trailing_zeros().min(self.doublings_max);
        let floor = self.scale_ns << doublings;
        floor + random.below(floor)
    }
}

/// A network card: it serves messages one after the other, in each direction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Nic {
    /// What every message costs.
    pub per_message_ns: u64,
    /// What every byte of payload costs: 1000 is 1 GB/s.
    pub per_byte_ps: u64,
    /// Load by others.
    pub background: Option<Background>,
}

impl Default for Nic {
    /// 56 Gb/s, 20 million messages a second.
    fn default() -> Self {
        Self {
            per_message_ns: 50,
            per_byte_ps: 143,
            background: None,
        }
    }
}

impl Nic {
    /// How long the card is busy with a message: at least 1 ns, so that none overtakes another.
    #[inline]
    #[must_use]
    pub const fn service_ns(&self, len_bytes: u64) -> u64 {
        let service = self.per_message_ns + len_bytes * self.per_byte_ps / 1000;
        if service == 0 { 1 } else { service }
    }
}

/// A card that others keep busy in bursts: one burst per period, anywhere in it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Background {
    /// Length of a burst.
    pub burst_ns: u64,
    /// From one period to the next; at least as long as a burst.
    pub period_ns: u64,
}

impl Background {
    /// The first time from `time` on at which the card is free of `seed`'s bursts.
    #[inline]
    fn free_at(&self, time: u64, seed: u64) -> u64 {
        let period = self.period_ns.max(self.burst_ns).max(1);
        let number = time / period;
        let room = period - self.burst_ns;
        let offset = mix(seed ^ number) % (room + 1);
        let start = number * period + offset;
        if (start..start + self.burst_ns).contains(&time) {
            start + self.burst_ns
        } else {
            time
        }
    }
}

/// A card at work.
#[derive(Clone, Debug)]
pub(super) struct Card {
    pub(super) nic: Nic,
    seed: u64,
    sends_from: u64,
    receives_from: u64,
}

impl Card {
    pub(super) fn new(nic: Nic, seed: u64) -> Self {
        Self {
            nic,
            seed,
            sends_from: 0,
            receives_from: 0,
        }
    }

    /// When the message's first byte leaves.
    #[inline]
    pub(super) fn send(&mut self, now: Time, len_bytes: u64) -> u64 {
        let start = self.free_at(now.0.max(self.sends_from));
        self.sends_from = start + self.nic.service_ns(len_bytes);
        start
    }

    /// When a message that would arrive `now` on an idle card is received.
    #[inline]
    pub(super) fn receive(&mut self, now: Time, len_bytes: u64) -> Time {
        let service = self.nic.service_ns(len_bytes);
        let start = now.0.saturating_sub(service).max(self.receives_from);
        self.receives_from = self.free_at(start) + service;
        Time(self.receives_from)
    }

    #[inline]
    fn free_at(&self, time: u64) -> u64 {
        match &self.nic.background {
            None => time,
            Some(background) => background.free_at(time, self.seed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_curve_has_the_published_points() {
        let read = LinkModel::default().read;
        assert_eq!(read.round_trip_ns(512), 1500);
        assert_eq!(read.round_trip_ns(4096), 4000);
        assert_eq!(read.round_trip_ns(2304), 2750, "halfway between");
        assert_eq!(read.round_trip_ns(7680), 6500, "as far beyond");
        assert_eq!(read.laden_ns(512) + read.empty_ns(), 1500);
    }

    #[test]
    fn stragglers_halve_with_every_doubling() {
        let stragglers = Stragglers {
            chance_ppm: 1_000_000,
            scale_ns: 1000,
            doublings_max: 10,
        };
        let mut random = Random::new(3);
        let delays: Vec<u64> = (0..100_000)
            .map(|_| stragglers.draw_ns(&mut random))
            .collect();
        for doublings in 0..6 {
            let share = delays.iter().filter(|&&delay| delay >= 1000 << doublings);
            let expected = 100_000 >> doublings;
            let count = share.count();
            assert!(
                count * 10 >= expected * 9 && count * 10 <= expected * 11,
                "{count} of {expected} with {doublings} doublings"
            );
        }
        assert!(delays.iter().all(|&delay| delay < 2000 << 10));
    }

    #[test]
    fn bursts_take_their_share_of_the_time() {
        let background = Background {
            burst_ns: 300,
            period_ns: 1000,
        };
        let busy = (0..100_000).filter(|&time| background.free_at(time, 5) != time);
        assert_eq!(busy.count(), 30_000);
    }

    #[test]
    fn a_busy_card_serves_one_message_after_the_other() {
        let nic = Nic {
            per_message_ns: 100,
            per_byte_ps: 1000,
            background: None,
        };
        let mut card = Card::new(nic, 0);
        let sent = [(); 3].map(|()| card.send(Time(1000), 500));
        assert_eq!(sent, [1000, 1600, 2200]);
        let received = [(); 3].map(|()| card.receive(Time(5000), 500).0);
        assert_eq!(received, [5000, 5600, 6200]);
    }
}

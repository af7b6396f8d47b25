//! What the simulation's checks see of a client's directory.

use std::collections::BTreeSet;

use cenote_fabric::ClientId;
use cenote_volume::{Health, Relocation, Seat, Stepped};

use super::super::estate::Estate;
use super::Client;

impl Client {
    /// Who it is to hosts.
    pub fn id(&self) -> ClientId {
        self.id
    }

    /// What its volume is to hosts.
    pub fn volume_id(&self) -> u128 {
        self.volume_id
    }

    /// What it leaves to the next owner, unless a disk is behind its volume.
    pub fn estate(&self) -> Option<&Estate> {
        (!self.plan.is_backed).then_some(&self.estate)
    }

    /// Whether its directory has changed since the last call.
    pub fn has_moved(&mut self) -> bool {
        let epoch = self.volume.as_ref().map_or(0, Stepped::epoch);
        std::mem::replace(&mut self.epoch, epoch) != epoch
    }

    /// Where its slabs are now.
    pub fn seats(&self) -> Vec<Seat> {
        self.volume.as_ref().map_or_else(Vec::new, Stepped::seats)
    }

    /// And where they were when they were checked.
    pub fn known_seats(&self) -> &[Seat] {
        &self.seats
    }

    pub fn know_seats(&mut self, seats: Vec<Seat>) {
        let place = |seat: &Seat| (seat.extent, seat.split, seat.host, seat.birth);
        let before: BTreeSet<_> = self.seats.iter().map(place).collect();
        let news = seats
            .iter()
            .map(place)
            .filter(|slab| !before.contains(slab));
        let news: Vec<_> = news.collect();
        let returned = news.iter().filter(|slab| self.known.contains(slab));
        self.tally.slabs_returned += returned.count() as u64;
        self.known.extend(news);
        self.seats = seats;
    }

    /// Pages that its owners brought to another cut.
    pub fn pages_moved(&self) -> u64 {
        let volume = self.volume.as_ref();
        let now = volume.map_or(0, |volume| volume.status().counters.pages_moved);
        self.moved_before + now
    }

    /// Hosts that an extent is read from.
    pub fn live_hosts(&self, extent: usize) -> Vec<usize> {
        let seats = self.seats();
        let live = seats.iter().filter(|seat| seat.extent == extent);
        live.filter(|seat| seat.is_live)
            .map(|seat| seat.host)
            .collect()
    }

    pub fn relocations(&self) -> Vec<Relocation> {
        self.volume
            .as_ref()
            .map_or_else(Vec::new, Stepped::relocations)
    }

    /// Whether the slab that a relocation was about is read from now.
    pub fn is_published(&self, relocation: &Relocation) -> bool {
        self.seats().iter().any(|seat| {
            let place = (seat.extent, seat.split, seat.host);
            place == (relocation.extent, relocation.split, relocation.target) && seat.is_live
        })
    }

    /// For people: what it waits for.
    pub fn state(&mut self) -> String {
        let running = self.running();
        let Some(volume) = &mut self.volume else {
            return format!("{} is down", self.name);
        };
        let status = volume.status();
        let away: Vec<&str> = status
            .hosts
            .iter()
            .filter(|host| !host.connected)
            .map(|host| host.name.as_str())
            .collect();
        let ill = status
            .extents
            .iter()
            .filter(|extent| extent.health != Health::Healthy);
        let ill: Vec<String> = ill
            .map(|extent| {
                format!(
                    "extent {} {:?} {:?}",
                    extent.index, extent.health, extent.hosts
                )
            })
            .collect();
        format!(
            "{}: {running} running, not connected {away:?}, {ill:?}, {:?}, {:?}",
            self.name,
            volume.relocations(),
            status.change
        )
    }
}

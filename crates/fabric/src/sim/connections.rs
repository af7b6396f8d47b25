//! The table of connections: places are used again, names are not.
//!
//! A connection is over when both ends are closed, its handle is dropped and no message of it is
//! under way; its place then goes to a later one. Events that name one that is gone find nothing.

use super::connection::{Connection, ConnectionId};
use super::message::Messages;

/// All connections that somebody may still ask for.
#[derive(Default)]
pub(super) struct Connections {
    places: Vec<ConnectionSlot>,
    free: Vec<u32>,
    made: u64,
    /// Places in use at which the next sweep is due.
    sweep_at: usize,
}

#[derive(Default)]
struct ConnectionSlot {
    /// How many connections had it before.
    uses: u32,
    connection: Option<Connection>,
}

/// Fewer places than this are not worth a sweep.
const SWEEP_MIN: usize = 64;

impl Connections {
    /// Adds a connection, and drops those that are over when their number has doubled.
    pub(super) fn add(&mut self, connection: Connection, messages: &Messages) -> ConnectionId {
        if self.len() >= self.sweep_at {
            self.sweep(messages);
            self.sweep_at = (self.len() * 2).max(SWEEP_MIN);
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(ConnectionSlot::default());
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 connections")
        });
        self.made += 1;
        let place = &mut self.places[index as usize];
        place.connection = Some(Connection {
            number: self.made,
            ..connection
        });
        ConnectionId::new(index, place.uses)
    }

    fn sweep(&mut self, messages: &Messages) {
        for (index, place) in (0..).zip(&mut self.places) {
            let id = ConnectionId::new(index, place.uses);
            let is_over = |connection: &Connection| {
                let is_open = connection.client_open || connection.host_open;
                !is_open && connection.is_dropped && messages.of(id) == 0
            };
            if place.connection.as_ref().is_some_and(is_over) {
                place.connection = None;
                place.uses += 1;
                self.free.push(index);
            }
        }
    }

    /// Connections in the table.
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    #[inline]
    pub(super) fn find(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        let place = &mut self.places[id.place()];
        (place.uses == id.uses())
            .then_some(place.connection.as_mut())
            .flatten()
    }

    /// One that is known to be in the table: it has a handle or a message, or an open end.
    #[inline]
    pub(super) fn at(&self, id: ConnectionId) -> &Connection {
        let place = &self.places[id.place()];
        debug_assert_eq!(place.uses, id.uses(), "{id:?} is gone");
        place.connection.as_ref().expect("a connection in use")
    }

    /// As [`Connections::at`].
    #[inline]
    pub(super) fn at_mut(&mut self, id: ConnectionId) -> &mut Connection {
        let place = &mut self.places[id.place()];
        debug_assert_eq!(place.uses, id.uses(), "{id:?} is gone");
        place.connection.as_mut().expect("a connection in use")
    }

    /// Those that are open at either end, oldest first.
    pub(super) fn open(&self) -> Vec<ConnectionId> {
        let mut open: Vec<(u64, ConnectionId)> = (0..)
            .zip(&self.places)
            .filter_map(|(index, place)| {
                let connection = place.connection.as_ref()?;
                let is_open = connection.client_open || connection.host_open;
                let id = ConnectionId::new(index, place.uses);
                is_open.then_some((connection.number, id))
            })
            .collect();
        open.sort_unstable();
        open.into_iter().map(|(_, id)| id).collect()
    }
}

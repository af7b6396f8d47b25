//! Who looks at every verb that takes effect, and at the order of every connection.
//!
//! It keeps books of its own: of the windows that hosts open and close, and of what was sent. It
//! asks neither the window table nor what is injected, so that it notices when those are wrong.

use std::collections::HashMap;

use super::connection::ConnectionId;
use super::message::{Body, Leg, Message};
use super::net::NodeId;
use crate::{ClientId, Generation, WindowDescriptor, WindowId};

/// What was seen, and what it is held against.
#[derive(Default)]
pub(super) struct Witness {
    /// The generation of each window that stands, by node and id.
    windows: Vec<Vec<Option<Generation>>>,
    /// Windows that were given back, by node, and by whom.
    given_back: HashMap<(u32, Generation), ClientId>,
    broken: Vec<String>,
}

/// Most violations kept; the first is what counts.
const BROKEN_MAX: usize = 16;

impl Witness {
    pub(super) fn register(&mut self, host: NodeId, descriptor: WindowDescriptor) {
        let (node, id) = (host.0 as usize, descriptor.id.0 as usize);
        if self.windows.len() <= node {
            self.windows.resize_with(node + 1, Vec::new);
        }
        let windows = &mut self.windows[node];
        if windows.len() <= id {
            windows.resize(id + 1, None);
        }
        windows[id] = Some(descriptor.generation);
    }

    pub(super) fn revoke(&mut self, host: NodeId, window: WindowId) {
        let windows = self.windows.get_mut(host.0 as usize);
        if let Some(standing) = windows.and_then(|windows| windows.get_mut(window.0 as usize)) {
            *standing = None;
        }
    }

    /// A host's process ended, and its windows with it.
    pub(super) fn forget(&mut self, host: NodeId) {
        if let Some(windows) = self.windows.get_mut(host.0 as usize) {
            windows.clear();
        }
        self.given_back.retain(|(node, _), _| *node != host.0);
    }

    /// A client needs a window no more.
    pub(super) fn give_back(&mut self, host: NodeId, generation: Generation, by: ClientId) {
        self.given_back.insert((host.0, generation), by);
    }

    /// A verb that changes memory has arrived, whatever becomes of it. Who has given a window back has ended
    /// its writes there, and those of others that it gave the window to; reads may still be under way for
    /// nobody. `has_left`: the writer has closed its end of the connection, which the host has not heard of.
    /// What it had under way then it can end no more: it tells the giver that it may land late, who sees to
    /// it that this is of no consequence. One that gives back by itself has nobody to tell.
    #[inline]
    pub(super) fn receive(
        &mut self,
        host: NodeId,
        message: &Message,
        writer: Option<ClientId>,
        has_left: bool,
    ) {
        if !message.is_change() {
            return;
        }
        let by = self.given_back.get(&(host.0, message.generation));
        if by.is_some_and(|by| !has_left || writer == Some(*by)) {
            self.complain(format!(
                "a {:?} arrives in window {} of node {}, which its client has given back",
                message.body, message.window.0, host.0
            ));
        }
    }

    /// A verb on memory took effect.
    #[inline]
    pub(super) fn see(&mut self, host: NodeId, message: &Message) {
        let windows = self.windows.get(host.0 as usize);
        let standing = windows.and_then(|windows| *windows.get(message.window.0 as usize)?);
        if standing != Some(message.generation) {
            self.complain(format!(
                "a {:?} of generation {:x} took effect in window {} of node {}, whose generation is {:x?}",
                message.body, message.generation.0, message.window.0, host.0, standing.map(|generation| generation.0)
            ));
        }
    }

    /// A message was taken after one that was sent later.
    pub(super) fn overtaken(&mut self, message: &Message, last: u64) {
        let (id, leg, body): (ConnectionId, Leg, Body) =
            (message.connection, message.leg, message.body);
        self.complain(format!(
            "message {} of {id:?}, {leg:?}, a {body:?}, was taken after message {last}",
            message.sequence
        ));
    }

    pub(super) fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.broken)
    }

    fn complain(&mut self, what: String) {
        if self.broken.len() < BROKEN_MAX {
            self.broken.push(what);
        }
    }
}

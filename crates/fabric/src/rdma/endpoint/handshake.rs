//! The TCP connection beside the pair: making a pair with the host, credits, the host's end.

use cenote_verbs::Pair;

use super::{RdmaEndpoint, WORK_COUNT_MAX};
use crate::frame::Frame;
use crate::{CompletionQueue, Error, Result, Status, Time};

impl RdmaEndpoint {
    /// Makes a pair and asks the host for its own; [`RdmaEndpoint::hear`] connects them.
    pub(super) fn join(&mut self) -> Result<()> {
        let os = |e| Error::os("make a queue pair", e);
        // First the old one, so that its requests leave the ring.
        self.pair = None;
        self.works.clear();
        self.ring.clear();
        self.is_connected = false;
        self.is_joined = false;
        // What the old pair left behind would take the new one's places.
        let mut left = Vec::new();
        while self.completions.take(&mut left).map_err(os)? > 0 {}
        let pair = Pair::new(&self.completions, WORK_COUNT_MAX, 1).map_err(os)?;
        self.channel
            .queue(&Frame::Join(pair.address().into()), None)?;
        self.pair = Some(pair);
        self.system_calls += 1;
        self.channel.flush()
    }

    /// Takes what the host says beside the pair.
    pub(super) fn hear(&mut self) -> Result<()> {
        self.channel.flush()?;
        loop {
            match self.channel.next()? {
                Some(Frame::Credits(count)) => {
                    self.credits = self.credits.saturating_add(count).min(CREDITS_MAX);
                    // The first ones may come later than the pair's name; without them a first
                    // message would be turned away.
                    self.is_joined = self.is_connected;
                }
                Some(Frame::Join(host)) if !self.is_connected => {
                    let pair = self.pair.as_ref().ok_or(Error::Closed)?;
                    pair.connect(&host.into())
                        .map_err(|e| Error::os("connect a queue pair", e))?;
                    self.is_connected = true;
                    self.credits = 0;
                    self.heard_at = None;
                }
                Some(_) => return Err(Error::Protocol("not on a data connection")),
                None => {
                    self.system_calls += 1;
                    if !self.channel.fill()? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Looks beside the pair: a host that is gone has closed the connection.
    pub(super) fn look(&mut self, now: Time, queue: &mut CompletionQueue) {
        self.looked_at = now;
        if let Err(error) = self.hear() {
            tracing::debug!(%error, "the connection beside a queue pair ended");
            self.reap(queue);
            if self.dead.is_none() {
                self.fail(
                    match error {
                        Error::Protocol(_) => Status::Protocol,
                        _ => Status::Disconnected,
                    },
                    queue,
                );
            }
        }
    }
}

/// More than any host offers.
const CREDITS_MAX: u32 = 1 << 16;

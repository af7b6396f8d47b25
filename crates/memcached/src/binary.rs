//! One client that speaks the binary protocol: what its messages do, and who it is.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::backend::Backend;
use super::core::Core;
use super::session::Session;
use super::stats;
use cenote_kv::engine::Reply;
use cenote_kv::protocol::Request;
use cenote_kv::protocol::authentication::Credentials;
use cenote_kv::protocol::binary::{
    Command, Head, Message, Refusal, Seconds, Status, delete, reply, sasl,
};

/// Whether a client has said who it is.
#[derive(Debug)]
pub(super) enum Gate {
    /// It need not.
    Open,
    /// Not yet.
    Shut(Arc<Credentials>),
    /// It has, and may again in the binary protocol.
    Passed(Arc<Credentials>),
}

impl Gate {
    pub(super) fn new(credentials: Option<Arc<Credentials>>) -> Self {
        credentials.map_or(Self::Open, Self::Shut)
    }

    pub(super) fn is_passed(&self) -> bool {
        !matches!(self, Self::Shut(_))
    }

    fn credentials(&self) -> Option<&Arc<Credentials>> {
        match self {
            Self::Open => None,
            Self::Shut(credentials) | Self::Passed(credentials) => Some(credentials),
        }
    }
}

impl Session {
    /// Serves a message, whose bytes are `bytes`.
    pub(super) fn message<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        message: &Message<'_>,
        bytes: &[u8],
        gate: &mut Gate,
    ) {
        let head = message.head;
        self.asked = Some(head);
        match message.command {
            Command::Flush(exptime) => self.flush(core, message, exptime),
            Command::Noop => reply::done(self.replies.tail(), message, 0),
            Command::Quit => {
                reply::done(self.replies.tail(), message, 0);
                self.has_quit = true;
            }
            Command::Version => {
                let version = core.shared.settings.version.as_bytes();
                reply::text(self.replies.tail(), head, Status::Done, version);
            }
            Command::Verbosity(level) => {
                let level = u8::try_from(level).unwrap_or(u8::MAX);
                core.shared.verbosity.store(level, Ordering::Relaxed);
                reply::done(self.replies.tail(), message, 0);
            }
            Command::Stat => match message.key.strip_prefix(b"detail") {
                Some(words) => self.detail_message(core, head, words),
                None => stats::write_binary(self.replies.tail(), core, head, message.key),
            },
            Command::Mechanisms if gate.credentials().is_some() => {
                let text = sasl::MECHANISMS.as_bytes();
                reply::text(self.replies.tail(), head, Status::Done, text);
            }
            Command::Authenticate(said) => self.authenticate(core, message, said, gate),
            // PLAIN is one step: nothing is under way that could go on.
            Command::AuthenticateFurther(_) => self.authenticate(core, message, b"", gate),
            Command::Mechanisms => reply::error(self.replies.tail(), head, Status::Unknown),
            Command::Get { .. }
            | Command::Touch(_)
            | Command::Store { .. }
            | Command::Delete
            | Command::Count { .. } => self.serve(core, &Request::Binary(*message), bytes),
        }
    }

    /// Turns the counters by prefix on or off, or tells them.
    fn detail_message<B: Backend>(&mut self, core: &Core<B>, head: Head, words: &[u8]) {
        let details = &core.shared.details;
        let out = self.replies.tail();
        match words {
            b" on" => details.set(true),
            b" off" => details.set(false),
            b" dump" => {
                let mut dump = Vec::new();
                details.dump(&mut dump);
                dump.extend_from_slice(b"END\r\n");
                reply::stat(out, head, b"detailed", &dump);
            }
            _ => return reply::error(out, head, Status::NotFound),
        }
        reply::stat(out, head, b"", b"");
    }

    fn authenticate<B: Backend>(
        &mut self,
        core: &Core<B>,
        message: &Message<'_>,
        said: &[u8],
        gate: &mut Gate,
    ) {
        let out = self.replies.tail();
        let Some(credentials) = gate.credentials().cloned() else {
            return reply::error(out, message.head, Status::Unknown);
        };
        let traffic = core.traffic();
        traffic.auth_cmds.count();
        *gate = if sasl::is_admitted(&credentials, message.key, said) {
            reply::text(out, message.head, Status::Done, sasl::WELCOME);
            Gate::Passed(credentials)
        } else {
            traffic.auth_errors.count();
            reply::error(out, message.head, Status::AuthenticationError);
            Gate::Shut(credentials)
        };
    }

    fn flush<B: Backend>(&mut self, core: &mut Core<B>, message: &Message<'_>, exptime: Seconds) {
        if !core.shared.settings.may_flush {
            let out = self.replies.tail();
            return reply::error(out, message.head, Status::AuthenticationError);
        }
        self.spread_flush(core, exptime.flush_at(core.now), false, |out| {
            reply::done(out, message, 0);
        });
    }

    /// Answers what is no message, or none that is served.
    pub(super) fn refuse_message<B: Backend>(&mut self, core: &mut Core<B>, refusal: &Refusal<'_>) {
        self.asked = Some(refusal.head);
        if refusal.is_of_large_item() {
            core.engine.counters().store_too_large.count();
        }
        if let Some(key) = refusal.forget {
            self.forget(core, &delete(key));
        }
        reply::error(self.replies.tail().text(), refusal.head, refusal.status);
        self.has_quit |= refusal.is_end;
    }
}

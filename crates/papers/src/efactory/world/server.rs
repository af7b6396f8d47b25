//! The server's end of a run.

use super::{
    Answer, Background, Durable, Event, Fallback, Outcome, Request, Seen, Version, Work, World,
    picoseconds,
};

impl World<'_> {
    /// A request has passed the card: one-sided verbs are done, the others wait for a core.
    pub(super) fn arrive(&mut self, client: u32, request: Request) {
        let costs = &self.setup.parameters;
        let work = match request {
            Request::ReadEntry { key } => {
                let version = self.versions.newest(key);
                let must_call = self.must_call(key, version);
                let entry_bytes = costs.entry_bytes;
                return self.answer(client, Answer::Entry { version, must_call }, entry_bytes);
            }
            Request::ReadObject { version } => {
                let seen = Seen {
                    is_whole: self.versions.is_whole(version),
                    is_durable: self.versions.is_durable(version),
                };
                let bytes = costs.header_bytes + self.setup.value_bytes;
                return self.answer(client, Answer::Object(seen), bytes);
            }
            Request::Write {
                version,
                is_awaited,
            } => {
                self.versions.land(version);
                if is_awaited {
                    self.answer(client, Answer::Done, 0);
                }
                return;
            }
            Request::WriteImmediate { version } => {
                self.versions.land(version);
                Work::Noticed { version }
            }
            Request::Send { version } => Work::Told { version },
            Request::CallForSpace { key } => Work::Space { key },
            Request::CallWithValue { key } => Work::Value { key },
            Request::CallForPlace { key } => Work::Place { key },
        };
        self.cores.arrive(client, work);
        self.begin_work();
    }

    /// Whether an entry's object may go away while it is read.
    fn must_call(&self, key: u32, newest: Version) -> bool {
        let (Some(fallback), Some(cleaning)) = (self.setup.cleaning, self.background.cleaning())
        else {
            return false;
        };
        match fallback {
            Fallback::WhileCleaning => true,
            Fallback::UntilMoved => !cleaning.is_moved(key, newest),
        }
    }

    pub(super) fn begin_work(&mut self) {
        while let Some((client, work)) = self.cores.begin() {
            let priced = self.prices.of(work, &self.versions, self.is_full());
            let operation = &mut self.clients[client as usize].operation;
            operation.check_ns += priced.check_ns;
            operation.persist_ns += priced.persist_ns;
            let took_ps = picoseconds(priced.ns);
            let served = Event::Served(client, priced.outcome, took_ps);
            self.schedule(self.now_ps + took_ps, served);
        }
    }

    /// Whether no more may wait to be durable.
    fn is_full(&self) -> bool {
        let costs = &self.setup.parameters;
        let backlog = self.tally.backlog();
        let is_above = backlog >= costs.backlog_versions_max
            || backlog * self.setup.value_bytes >= costs.landing_bytes_max;
        self.setup.is_bounded && is_above
    }

    pub(super) fn serve(&mut self, client: u32, outcome: Outcome) {
        let answer = match outcome {
            Outcome::Refused => {
                self.tally.refuse();
                Answer::Refused
            }
            Outcome::Space { key } => {
                let version = self.versions.allocate(key);
                if self.scheme.durable() == Durable::InBackground {
                    self.tally.wait();
                    self.background.wait(version, self.now_ps);
                    self.begin_background();
                }
                Answer::Space { version }
            }
            Outcome::Put { key } => {
                let version = self.versions.allocate(key);
                self.versions.land(version);
                self.versions.make_durable(version);
                Answer::Done
            }
            Outcome::Persisted { version } => {
                self.settle(version);
                Answer::Done
            }
            Outcome::Place { version } => {
                self.settle(version);
                Answer::Place { version }
            }
        };
        let answer_bytes = self.setup.parameters.answer_bytes;
        self.answer(client, answer, answer_bytes);
    }

    /// A version is durable from now on.
    pub(super) fn settle(&mut self, version: Version) {
        let is_new = self.versions.make_durable(version);
        if is_new && self.scheme.durable() == Durable::InBackground {
            self.tally.settle();
        }
    }

    pub(super) fn begin_background(&mut self) {
        let background: &mut Background = &mut self.background;
        if let Some(unit) = background.begin(&self.versions, &self.prices) {
            let took_ps = picoseconds(unit.ns);
            self.schedule(self.now_ps + took_ps, Event::Background(unit.job, took_ps));
        }
    }
}

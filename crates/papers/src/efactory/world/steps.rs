//! The clients' end of a run: the steps of a scheme, taken one after the other.

use super::{
    Answer, Event, Fallback, GetStep, Kind, PutStep, Request, Taken, Version, World, is_pipelined,
    picoseconds,
};

impl World<'_> {
    /// A client goes on where it is.
    pub(super) fn ready(&mut self, client: u32) {
        let state = &mut self.clients[client as usize];
        if std::mem::take(&mut state.is_checking) {
            let operation = &mut state.operation;
            match (operation.seen.is_whole, operation.version) {
                (false, Some(version)) => {
                    let older = self.versions.older(version);
                    operation.again(older.expect("the first version of a key is whole"));
                }
                _ => operation.next(),
            }
        }
        self.go_on(client);
    }

    /// An answer is there: what it says, and the next step.
    pub(super) fn answered(&mut self, client: u32, answer: Answer, is_cleaning: bool) {
        let state = &mut self.clients[client as usize];
        let operation = &mut state.operation;
        match answer {
            Answer::Refused => {
                let retry_ps = picoseconds(self.setup.parameters.retry_ns);
                let at_ps = self.now_ps + retry_ps;
                return self.schedule(at_ps, Event::Ready(client));
            }
            Answer::Entry { version, must_call } => {
                state.knows_cleaning = is_cleaning;
                operation.version = Some(version);
                match must_call {
                    true => operation.skip_to_call(self.scheme),
                    false => operation.next(),
                }
            }
            Answer::Space { version } | Answer::Place { version } => {
                state.knows_cleaning = is_cleaning;
                operation.version = Some(version);
                operation.next();
            }
            Answer::Object(seen) => {
                operation.seen = seen;
                operation.next();
            }
            Answer::Done => operation.next(),
        }
        self.go_on(client);
    }

    /// Takes steps until one has to be waited for.
    fn go_on(&mut self, client: u32) {
        loop {
            let operation = &self.clients[client as usize].operation;
            let Some(step) = operation.step(self.scheme) else {
                self.end(client);
                continue;
            };
            let waits = match step {
                Taken::Put(step) => self.put_step(client, step),
                Taken::Get(step) => self.get_step(client, step),
            };
            if waits {
                return;
            }
        }
    }

    /// Ends an operation and draws the next.
    fn end(&mut self, client: u32) {
        let ended = self.clients[client as usize].operation.ended(self.now_ps);
        self.tally.end(self.now_ps, ended);
        let mut operation = self.draw(self.now_ps);
        self.tally.begin();
        let state = &mut self.clients[client as usize];
        let calls_at_once =
            state.knows_cleaning && self.setup.cleaning == Some(Fallback::WhileCleaning);
        if calls_at_once {
            operation.skip_to_call(self.scheme);
        }
        state.operation = operation;
    }

    /// Takes a step of a PUT; whether it has to be waited for.
    fn put_step(&mut self, client: u32, step: PutStep) -> bool {
        self.tally.take(Taken::Put(step));
        let operation = &mut self.clients[client as usize].operation;
        let key = operation.key;
        let version = || -> Version { operation.version.expect("there is space for it") };
        let is_awaited = {
            let mut following = *operation;
            following.next();
            !is_pipelined(step, following.step(self.scheme))
        };
        let request = match step {
            PutStep::CallForSpace => Request::CallForSpace { key },
            PutStep::CallWithValue => Request::CallWithValue { key },
            PutStep::Write => Request::Write {
                version: version(),
                is_awaited,
            },
            PutStep::WriteImmediate => Request::WriteImmediate { version: version() },
            PutStep::Send => Request::Send { version: version() },
            PutStep::AwaitAck => return true,
        };
        // What follows a WRITE on its connection is posted behind it.
        let after_ns = match step {
            PutStep::Send => self.setup.parameters.post_ns,
            _ => 0.0,
        };
        if !is_awaited {
            operation.next();
        }
        self.post(client, request, after_ns);
        is_awaited
    }

    /// Takes a step of a GET; whether it has to be waited for.
    fn get_step(&mut self, client: u32, step: GetStep) -> bool {
        self.tally.take(Taken::Get(step));
        let state = &mut self.clients[client as usize];
        let operation = &mut state.operation;
        debug_assert_eq!(operation.kind, Kind::Get);
        let key = operation.key;
        let request = match step {
            GetStep::ReadEntry => Request::ReadEntry { key },
            GetStep::ReadObject => Request::ReadObject {
                version: operation.version.expect("an entry or a call named it"),
            },
            GetStep::CallForPlace => {
                operation.note_call();
                Request::CallForPlace { key }
            }
            GetStep::UnlessDurable => {
                match operation.seen.is_durable {
                    true => operation.finish(),
                    false => operation.next(),
                }
                return false;
            }
            GetStep::CheckValue => {
                let check_ns = self.setup.parameters.crc_ns(self.setup.value_bytes);
                operation.check_ns += check_ns;
                state.is_checking = true;
                let at_ps = self.now_ps + picoseconds(check_ns);
                self.schedule(at_ps, Event::Ready(client));
                return true;
            }
        };
        self.post(client, request, 0.0);
        true
    }
}

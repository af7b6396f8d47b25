//! How far a host's process is with writing to two copies, as it says, and what follows.
//!
//! A process stores nothing before the owner knows that it does. One that follows another has its
//! memory and knows nothing of what that had sent: it does not say that it writes.

use cenote_proc::service::WriteState;

/// A speaker's life, and which of its connections.
pub(super) type Connection = (u64, u64);

/// Of one host.
#[derive(Default)]
pub(super) struct Writer {
    /// The owner knows that procedures write there, in the process at the end of this connection.
    since: Option<Connection>,
    /// Regions to be fenced before they may, each with its generation.
    fences: Option<Vec<(usize, u64)>>,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// The owner is to note that hosts write, and the process that it may.
    Permit,
    /// What an earlier process was writing is in doubt; [`Writer::wait_for`] its fences.
    Fence,
}

impl Writer {
    /// The process at the end of a connection says how far it is. `doubtful`: the regions that are
    /// doubtful on the host. `are_fenced`: whether such regions were fenced since.
    pub fn note(
        &mut self,
        connection: Connection,
        state: WriteState,
        doubtful: impl FnOnce() -> Vec<(usize, u64)>,
        are_fenced: impl FnOnce(&[(usize, u64)]) -> bool,
    ) -> Next {
        match (self.since, state) {
            (Some(since), WriteState::Writes) if since == connection => return Next::Nothing,
            // It goes on, over another connection or with another manager.
            (_, WriteState::Writes) => {}
            (None, WriteState::Idle) => return Next::Nothing,
            (None, WriteState::Wants) => {
                if !are_fenced(self.fences.get_or_insert_with(doubtful)) {
                    return Next::Nothing;
                }
            }
            // It has not heard yet that it may.
            (Some(since), WriteState::Wants) if since == connection => return Next::Nothing,
            // It is another process, or had the cache closed: it knows of no stores.
            (Some(_), WriteState::Wants | WriteState::Idle) => {
                self.since = None;
                return Next::Fence;
            }
        }
        (self.since, self.fences) = (Some(connection), None);
        Next::Permit
    }

    /// No process is to write before these are fenced.
    pub fn wait_for(&mut self, fences: Vec<(usize, u64)>) {
        self.fences = Some(fences);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Connection = (1, 0);
    const SECOND: Connection = (1, 1);

    fn note(writer: &mut Writer, connection: Connection, state: WriteState) -> Next {
        writer.note(connection, state, Vec::new, |_| true)
    }

    #[test]
    fn a_process_may_write_once_it_said_that_it_wants_to_and_goes_on_over_other_connections() {
        let mut writer = Writer::default();
        assert_eq!(note(&mut writer, FIRST, WriteState::Idle), Next::Nothing);
        assert_eq!(note(&mut writer, FIRST, WriteState::Wants), Next::Permit);
        // It has not heard it, and then has.
        assert_eq!(note(&mut writer, FIRST, WriteState::Wants), Next::Nothing);
        assert_eq!(note(&mut writer, FIRST, WriteState::Writes), Next::Nothing);
        // Over another connection it is told again.
        assert_eq!(note(&mut writer, SECOND, WriteState::Writes), Next::Permit);
        assert_eq!(note(&mut writer, SECOND, WriteState::Writes), Next::Nothing);
        // A manager that follows hears of it first.
        let mut follower = Writer::default();
        assert_eq!(note(&mut follower, FIRST, WriteState::Writes), Next::Permit);
    }

    #[test]
    fn another_process_and_a_cache_that_was_closed_are_fenced_before_anything_is_stored() {
        for (connection, state) in [
            (SECOND, WriteState::Idle),
            (SECOND, WriteState::Wants),
            // The same process, which had the cache closed.
            (FIRST, WriteState::Idle),
        ] {
            let mut writer = Writer::default();
            assert_eq!(note(&mut writer, FIRST, WriteState::Wants), Next::Permit);
            assert_eq!(note(&mut writer, connection, state), Next::Fence);
            writer.wait_for(vec![(7, 3)]);
            let wants = |writer: &mut Writer, fenced: bool| {
                let doubtful = || unreachable!("it waits for others");
                writer.note(connection, WriteState::Wants, doubtful, |regions| {
                    assert_eq!(regions, [(7, 3)]);
                    fenced
                })
            };
            assert_eq!(wants(&mut writer, false), Next::Nothing);
            assert_eq!(wants(&mut writer, false), Next::Nothing);
            assert_eq!(wants(&mut writer, true), Next::Permit);
        }
    }

    #[test]
    fn the_first_to_write_waits_for_what_an_earlier_manager_left_in_doubt() {
        let mut writer = Writer::default();
        let left = || vec![(2, 9)];
        let is_fenced = |regions: &[(usize, u64)]| regions.is_empty();
        let next = writer.note(FIRST, WriteState::Wants, left, is_fenced);
        assert_eq!(next, Next::Nothing);
        // What became doubtful later is not waited for.
        let later = || unreachable!("it was asked before");
        let next = writer.note(FIRST, WriteState::Wants, later, |regions| {
            regions == [(2, 9)]
        });
        assert_eq!(next, Next::Permit);
    }
}

//! What is asked, and what comes of it.

use cenote_proc_sdk::STATE_MAX;
use smallvec::SmallVec;

/// An argument, a state between steps, or an answer; [`STATE_MAX`] bytes at most. Most are a few
/// words, and so many are under way that memory of its own would cost each as much as a step.
pub type State = SmallVec<[u8; 16]>;

/// A cache, by its number on this cluster: that of the volume that its slabs are lent for.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct CacheId(pub u128);

/// A client, by its number on this cluster.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ClientId(pub u64);

/// One version of a procedure, the same on all machines of a cluster.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ProcedureId(pub u32);

/// A procedure to run, or one that is on its way.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Request {
    /// Who gets the answer.
    pub client: ClientId,
    /// The client's own, echoed in the answer.
    pub number: u64,
    /// On whose bytes.
    pub cache: CacheId,
    /// What runs.
    pub procedure: ProcedureId,
    /// Steps that were taken.
    pub steps: u32,
    /// How often, on this machine, its stores were refused by a second copy, or its procedure was
    /// not compiled yet.
    pub refusals: u32,
    /// The argument, or the state after some steps; [`STATE_MAX`] bytes at most.
    pub state: State,
}

/// How a step ended, with what the executor has to do.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The answer is the request's state.
    Done,
    /// INACTIVE until these bytes are here.
    DataNeeded {
        /// Of the first byte.
        addr: u64,
        /// 1 to [`cenote_proc_sdk::DATA_MAX`].
        size: u32,
    },
    /// To go on where these bytes begin.
    Forward {
        /// Of the first byte.
        addr: u64,
        /// 1 to [`cenote_proc_sdk::DATA_MAX`].
        size: u32,
    },
    /// To go on after others.
    Again,
    /// The client goes on from the state.
    Stop,
    /// It was not taken: the procedure is being compiled.
    Coming,
    /// It made a mistake, and is over.
    Trap(Trap),
}

/// Why a request was ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trap {
    /// The procedure says so, with a number of its own.
    Failed(u32),
    /// A step took longer than it may.
    TooLong,
    /// It wanted more memory or stack than it may have, or did what the machine forbids.
    Crashed,
    /// It does not keep to the interface: a verdict or a length that cannot be.
    BadVerdict,
    /// No such procedure is here.
    Unknown,
    /// The procedure may not be run on this cache.
    Denied,
    /// It has run, and was taken away before it ended, or is not there, or not granted, on the
    /// machine where it was to go on.
    Gone,
}

/// How a request ended, for its client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Status {
    /// The answer is whole.
    Done,
    /// The client may go on from the answer.
    Stopped,
    /// The client has too much under way, or the procedure is being compiled; try again in a while.
    Busy,
    /// The procedure was ended.
    Trapped(Trap),
    /// It took more steps, or moved more often, than a request may.
    TooManySteps,
    /// Bytes, or the machine's time with the cache, did not come in time; or a store came too late
    /// to be known to count; or the procedure was not compiled in time where the request was to go on.
    /// Trying again makes sense.
    TimedOut,
    /// An address is in no region of the cache, or the cache is not here.
    OutOfBounds,
    /// It went to another machine, which was not heard of again: it may have run, or run still.
    Lost,
}

impl Status {
    /// Whether the same request may end otherwise a little later.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::Busy | Self::TimedOut | Self::Lost)
    }

    /// Whether steps of the request may have been taken, so that one that writes may have written.
    /// Who repeats it then has it done once or twice.
    #[must_use]
    pub fn may_have_run(self) -> bool {
        !matches!(
            self,
            Self::Busy | Self::Trapped(Trap::Unknown | Trap::Denied)
        )
    }
}

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Response {
    /// The request's.
    pub number: u64,
    /// How it ended.
    pub status: Status,
    /// The answer, or the state to go on from.
    pub state: State,
}

impl Request {
    /// A request that was not run yet.
    ///
    /// # Panics
    /// If the argument is longer than [`STATE_MAX`].
    #[must_use]
    pub fn new(
        client: ClientId,
        number: u64,
        cache: CacheId,
        procedure: ProcedureId,
        argument: &[u8],
    ) -> Self {
        assert!(argument.len() <= STATE_MAX, "an argument is a state");
        Self {
            client,
            number,
            cache,
            procedure,
            steps: 0,
            refusals: 0,
            state: State::from_slice(argument),
        }
    }

    /// The answer to it, with its state.
    #[must_use]
    pub fn into_response(self, status: Status) -> Response {
        let keeps = matches!(status, Status::Done | Status::Stopped);
        Response {
            number: self.number,
            status,
            state: if keeps { self.state } else { State::new() },
        }
    }
}

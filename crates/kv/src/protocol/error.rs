//! Error lines, in memcached's words.

/// What is answered to a request that cannot be carried out. What it displays is the
/// line that a client sees.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such command, or too few or too many words for it.
    #[error("ERROR")]
    Unknown,
    /// A number that is none, a key that is too long, a length out of range.
    #[error("CLIENT_ERROR bad command line format")]
    BadFormat,
    /// `stats cachedump` without its arguments.
    #[error("CLIENT_ERROR bad command line")]
    BadLine,
    /// `delete` with a word that it does not know.
    #[error("CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]")]
    BadDelete,
    /// A data block without a line end where its length says.
    #[error("CLIENT_ERROR bad data chunk")]
    BadChunk,
    /// An expiry time that is no number.
    #[error("CLIENT_ERROR invalid exptime argument")]
    InvalidExptime,
    /// A delta that is no number.
    #[error("CLIENT_ERROR invalid numeric delta argument")]
    InvalidDelta,
    /// A value that cannot be counted with.
    #[error("CLIENT_ERROR cannot increment or decrement non-numeric value")]
    NonNumeric,
    /// An item above the limit.
    #[error("SERVER_ERROR object too large for cache")]
    TooLarge,
    /// No memory for an item.
    #[error("SERVER_ERROR out of memory storing object")]
    OutOfMemory,
    /// Nobody may shut this down from here.
    #[error("ERROR: shutdown not enabled")]
    NoShutdown,
    /// `mg` with more than 17 flags.
    #[error("CLIENT_ERROR options flags are too long")]
    TooManyFlagsGet,
    /// Another meta command with more than 17 flags; of `ms` the length counts as one.
    #[error("CLIENT_ERROR options flags too long")]
    TooManyFlags,
    /// A meta flag twice, or one that is not ASCII.
    #[error("CLIENT_ERROR duplicate flag")]
    DuplicateFlag,
    /// A meta flag that does not exist.
    #[error("CLIENT_ERROR invalid flag")]
    InvalidFlag,
    /// What `md` and `ma` say of all faulty flags.
    #[error("CLIENT_ERROR invalid or duplicate flag")]
    FaultyFlag,
    /// A number after a meta flag that is none.
    #[error("CLIENT_ERROR bad token in command line format")]
    BadToken,
    /// A key that is not base64, with the flag `b`.
    #[error("CLIENT_ERROR error decoding key")]
    BadBase64,
    /// A mode that is not one character.
    #[error("CLIENT_ERROR incorrect length for M token")]
    ModeLength,
    /// A mode that `ms` does not have.
    #[error("CLIENT_ERROR invalid mode for ms M token")]
    ModeSet,
    /// A mode that `ma` does not have.
    #[error("CLIENT_ERROR invalid mode for ma M token")]
    ModeArithmetic,
    /// `J` with no number.
    #[error("CLIENT_ERROR invalid numeric initial value")]
    BadInitial,
    /// `D` with no number.
    #[error("CLIENT_ERROR invalid numeric delta value")]
    BadDelta,
    /// More than 31 bytes after `O`.
    #[error("CLIENT_ERROR opaque token too long")]
    OpaqueLength,
    /// A command before a client has said who it is.
    #[error("CLIENT_ERROR unauthenticated")]
    Unauthenticated,
    /// User and password without a line end where their length says.
    #[error("CLIENT_ERROR bad command line termination")]
    TokenEnd,
    /// No password.
    #[error("CLIENT_ERROR bad authentication token format")]
    TokenFormat,
    /// No such user, or not with this password.
    #[error("CLIENT_ERROR authentication failure")]
    AuthenticationFailure,
}

//! Why a host does not start, or stops.

/// Result of starting or running a host.
pub type Result<T> = std::result::Result<T, Error>;

/// A failure of the daemon as a whole; a client's troubles are answered to the client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration contradicts itself.
    #[error("{what} {value}: {rule}")]
    Config {
        /// The setting.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it must be.
        rule: &'static str,
    },
    /// The machine does not have the memory that it was told to lend.
    #[error("cannot lend {asked_bytes} bytes: only {available_bytes} bytes are available")]
    OutOfMemory {
        /// What it was told to lend.
        asked_bytes: u64,
        /// What the system says can be had without swapping, or the control group allows.
        available_bytes: u64,
    },
    /// Memory was to be locked in any case, and may not be.
    #[error(
        "cannot lock {asked_bytes} bytes of memory: the limit is {limit_bytes} bytes; raise it \
         (ulimit -l, LimitMEMLOCK=) or grant CAP_IPC_LOCK"
    )]
    CannotLock {
        /// What it was told to lend.
        asked_bytes: u64,
        /// `RLIMIT_MEMLOCK`.
        limit_bytes: u64,
    },
    /// What an earlier process handed over contradicts itself.
    #[error("handover from the host's previous process: {0}")]
    Inheritance(String),
    /// Listening failed; an address that is in use says so.
    #[error(transparent)]
    Fabric(#[from] cenote_fabric::Error),
    /// The operating system refused; `what` was being done.
    #[error("{what}: {source}")]
    Os {
        /// The action.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

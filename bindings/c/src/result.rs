//! How calls end.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a call ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CenoteResult {
    /// It is done.
    Ok = 0,
    /// A pointer is null, or a text is no UTF-8.
    InvalidArgument = 1,
    /// A file, a key or an option makes no sense.
    Configuration = 2,
    /// Too few hosts, or no manager of the cache, answer. May succeed later.
    Unreachable = 3,
    /// Hosts or the manager refuse. Trying again is no use.
    Refused = 4,
    /// A part of a cache was out of reach for too long. A write may have happened in part: try again.
    Unavailable = 5,
    /// More hosts are gone, or do not answer, than the scheme survives.
    Lost = 6,
    /// What hosts hold disagrees, and nothing tells which of it is right.
    Corrupt = 7,
    /// Too few hosts have memory left. May succeed later.
    NoSpace = 8,
    /// The range passes the end.
    OutOfRange = 9,
    /// The cache was deleted or its time is over, or the volume has ended.
    Gone = 10,
    /// It was opened by the process that this one was forked from.
    Forked = 11,
    /// A bug of the library, which has written to the standard error stream what happened.
    Bug = 12,
}

/// Why a call ended early.
pub(crate) struct Failure(pub CenoteResult, pub String);

impl Failure {
    pub fn argument(said: &str) -> Self {
        Self(CenoteResult::InvalidArgument, said.to_owned())
    }
}

impl From<cenote::Error> for Failure {
    fn from(error: cenote::Error) -> Self {
        let result = match &error {
            cenote::Error::Access(error) => return (*error).into(),
            cenote::Error::TooFewHosts(_) => CenoteResult::Unreachable,
            cenote::Error::Open(_) => CenoteResult::Refused,
            _ => CenoteResult::Configuration,
        };
        Self(result, error.to_string())
    }
}

impl From<cenote::AccessError> for Failure {
    fn from(error: cenote::AccessError) -> Self {
        use cenote::AccessError;
        let result = match error {
            AccessError::Corrupt => CenoteResult::Corrupt,
            AccessError::NoSpace => CenoteResult::NoSpace,
            AccessError::OutOfRange => CenoteResult::OutOfRange,
            AccessError::Closed => CenoteResult::Gone,
            _ => CenoteResult::Lost,
        };
        Self(result, error.to_string())
    }
}

impl From<cenote::cache::Error> for Failure {
    fn from(error: cenote::cache::Error) -> Self {
        use cenote::cache::Error;
        let result = match &error {
            Error::Options(_) => CenoteResult::Configuration,
            Error::NoManager(_) => CenoteResult::Unreachable,
            Error::OutOfRange { .. } => CenoteResult::OutOfRange,
            Error::Unavailable(_) => CenoteResult::Unavailable,
            Error::Gone => CenoteResult::Gone,
            _ => CenoteResult::Refused,
        };
        Self(result, error.to_string())
    }
}

thread_local! {
    static SAID: RefCell<CString> = RefCell::default();
}

/// Makes a call, and keeps in words what went wrong.
pub(crate) fn call(work: impl FnOnce() -> Result<(), Failure>) -> CenoteResult {
    let ended = catch_unwind(AssertUnwindSafe(work));
    let Failure(result, said) = match ended {
        Ok(Ok(())) => return CenoteResult::Ok,
        Ok(Err(failure)) => failure,
        Err(_) => Failure(CenoteResult::Bug, "a bug of the library".to_owned()),
    };
    let said = CString::new(said.replace('\0', " ")).unwrap_or_default();
    // A thread that is ending has no place for it any more.
    SAID.try_with(|last| *last.borrow_mut() = said)
        .unwrap_or_default();
    result
}

/// What went wrong in the last call of this thread that failed, as a text that is valid until the next
/// call that fails. Empty if none did.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_last_error() -> *const c_char {
    let said = SAID.try_with(|last| last.borrow().as_ptr());
    said.unwrap_or(c"".as_ptr())
}

/// Whether the same call may succeed later.
#[unsafe(no_mangle)]
pub extern "C" fn cenote_is_retryable(result: CenoteResult) -> bool {
    matches!(
        result,
        CenoteResult::Unreachable | CenoteResult::Unavailable | CenoteResult::NoSpace
    )
}

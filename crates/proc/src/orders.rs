//! Procedures put on a host, listed and taken away, by whoever holds the cluster's key.

use std::time::{Duration, Instant};

use cenote_fabric::Status as Fault;
use cenote_fabric::calls::Caller;

use crate::ProcedureId;
use crate::message::NoMessage;
use crate::remote::exchange;
use crate::service::{Label, Order, PIECE_MAX, Row, Told};

/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to check and compile a module.
const COMPILING: Duration = Duration::from_secs(120);
/// Between two questions whether it has.
const PAUSE: Duration = Duration::from_millis(5);

/// Why a host did not do as it was told.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The call did not end with an answer.
    #[error("the host does not answer: {0:?}")]
    Unanswered(Fault),
    /// The host's reason.
    #[error("{0}")]
    Refused(String),
    /// The module is still being compiled, after two minutes.
    #[error("the module is not compiled yet")]
    Late,
    /// The answer is to something else.
    #[error("an answer to something else: {0:?}")]
    Unexpected(Box<Told>),
    /// The answer is none.
    #[error(transparent)]
    Malformed(#[from] NoMessage),
}

/// Brings a module to a host, and waits until it is there. Whether the host has it after a restart, too.
///
/// # Errors
/// The host's reason, or it does not answer.
pub fn put(caller: &mut dyn Caller, label: Label, module: &[u8]) -> Result<bool, OrderError> {
    going(ask(caller, &Order::Begin(label))?)?;
    let mut offset = 0;
    for bytes in module.chunks(PIECE_MAX) {
        let bytes = bytes.to_vec();
        let next = offset + PIECE_MAX as u32;
        going(ask(caller, &Order::Piece { offset, bytes })?)?;
        offset = next;
    }
    let deadline = Instant::now() + COMPILING;
    loop {
        match ask(caller, &Order::Ask)? {
            Told::Loaded => return Ok(false),
            Told::Kept => return Ok(true),
            Told::Going if Instant::now() < deadline => std::thread::sleep(PAUSE),
            Told::Going => return Err(OrderError::Late),
            told => going(told)?,
        }
    }
}

/// The procedures that a host has.
///
/// # Errors
/// It does not answer.
pub fn list(caller: &mut dyn Caller) -> Result<Vec<Row>, OrderError> {
    let mut rows = Vec::new();
    loop {
        let skip = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        match ask(caller, &Order::List { skip })? {
            Told::List { total, rows: more } => {
                let is_last = more.is_empty();
                rows.extend(more);
                if is_last || rows.len() >= total as usize {
                    return Ok(rows);
                }
            }
            other => return Err(OrderError::Unexpected(Box::new(other))),
        }
    }
}

/// Takes a procedure away. Whether it was there.
///
/// # Errors
/// The host's reason, or it does not answer.
pub fn remove(caller: &mut dyn Caller, procedure: ProcedureId) -> Result<bool, OrderError> {
    match ask(caller, &Order::Remove(procedure))? {
        Told::Removed(was_there) => Ok(was_there),
        other => Err(OrderError::Unexpected(Box::new(other))),
    }
}

fn going(told: Told) -> Result<(), OrderError> {
    match told {
        Told::Going => Ok(()),
        other => Err(OrderError::Unexpected(Box::new(other))),
    }
}

fn ask(caller: &mut dyn Caller, order: &Order) -> Result<Told, OrderError> {
    let mut bytes = Vec::new();
    order.write(&mut bytes);
    let answer = exchange(caller, &bytes, PATIENCE).map_err(OrderError::Unanswered)?;
    match Told::read(&answer)? {
        Told::Refused(why) => Err(OrderError::Refused(why)),
        told => Ok(told),
    }
}

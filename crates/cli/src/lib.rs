//! Command-line code shared by our programs: parsing of arguments ([`size`], [`span`], [`number`]),
//! layout of help ([`help`]), progress ([`progress`]), tables ([`table`]), how commands end
//! ([`failure`], [`role`], [`signals`]), the log ([`log`]), results ([`stdout`]), lines of servers
//! ([`stderr`]) and OpenTelemetry spans (`traces`, a feature).
//!
//! Results go to stdout, everything else to stderr.

#![deny(unsafe_code)]

pub mod child;
pub mod failure;
pub mod help;
pub mod log;
pub mod number;
pub mod pin;
pub mod program;
pub mod progress;
pub mod role;
pub mod signals;
pub mod size;
pub mod span;
pub mod stderr;
pub mod stdout;
pub mod table;
#[cfg(feature = "traces")]
pub mod traces;
pub mod transport;

pub use log::Common;

use std::process::ExitCode;

use role::Role;

/// Runs a command in its role, and says what went wrong; `hint` knows the way out of errors that name
/// none. The exit code is the command's.
pub fn run(
    role: Role,
    hint: impl FnOnce(&anyhow::Error) -> Option<String>,
    command: impl FnOnce() -> anyhow::Result<u8>,
) -> ExitCode {
    role.take();
    match role::run(command) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(error)) => {
            role::ended_by_the_reader(&error).unwrap_or_else(|| failure::report(&error, hint))
        }
        Err(code) => code,
    }
}

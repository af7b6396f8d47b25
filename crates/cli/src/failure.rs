//! How a command ends: exit codes, and errors that say what to do.
//!
//! An error reads "what happened, to what"; where there is a way out, a second
//! line names it. Log lines and errors go to stderr, results to stdout.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

/// Done.
pub const DONE: u8 = 0;
/// Not done; stderr says why.
pub const FAILED: u8 = 1;
/// The arguments make no sense (clap's own choice of number).
pub const USAGE: u8 = 2;
/// `status` and `volume status`: an answer was given, and something is not whole. `cache search` and
/// `cache plan`: nothing does what was asked.
pub const NOT_WHOLE: u8 = 3;
/// `kv node`: another process runs under this one's name. To start it again would end that one.
pub const REPLACED: u8 = 4;

/// An error together with the way out of it.
#[derive(Debug)]
pub struct Failure {
    what: String,
    remedy: String,
    code: u8,
}

impl Failure {
    /// "What happened to what", and what the reader can do about it.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            remedy: remedy.into(),
            code: FAILED,
        }
    }

    /// The arguments are at fault.
    pub fn usage(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            ..Self::new(what, remedy)
        }
    }

    /// Another process has the place of this one.
    pub fn replaced(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            code: REPLACED,
            ..Self::new(what, remedy)
        }
    }

    /// The way out; empty where there is none.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

/// Prints the error and its way out, which `hint` knows where the error names none; the exit code it asks
/// for.
pub fn report(
    error: &anyhow::Error,
    hint: impl FnOnce(&anyhow::Error) -> Option<String>,
) -> ExitCode {
    let failure = error.downcast_ref::<Failure>();
    let said = failure.map(|failure| failure.remedy.clone());
    let remedy = said.filter(|said| !said.is_empty());
    let remedy = remedy.or_else(|| hint(error));
    let (bold, plain) = if colours() {
        ("\x1b[1;31m", "\x1b[0m")
    } else {
        ("", "")
    };
    let mut out = std::io::stderr().lock();
    let mut text = format!("{bold}error:{plain} {}\n", chain(error));
    if let Some(remedy) = remedy {
        text.push_str(&format!("  try: {remedy}\n"));
    }
    if out.write_all(text.as_bytes()).is_err() {
        return ExitCode::from(FAILED);
    }
    ExitCode::from(failure.map_or(FAILED, |failure| failure.code))
}

/// The error and its causes in one line. A cause that an error repeats in its own words
/// is not said twice.
pub fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Whether stderr is a terminal that wants colours.
pub fn colours() -> bool {
    std::io::stderr().is_terminal() && wants_colours()
}

/// Whether stdout is one.
pub fn colours_of_results() -> bool {
    std::io::stdout().is_terminal() && wants_colours()
}

fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|said| said.is_empty())
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let inner = anyhow!("refused");
        let error = Err::<(), _>(inner)
            .context("connect: refused")
            .context("host h00");
        assert_eq!(chain(&error.unwrap_err()), "host h00: connect: refused");
    }
}

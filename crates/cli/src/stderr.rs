//! Lines on standard error of programs that others live on.

use std::fmt;
use std::io::{self, Write as _};

/// Writes a line, and ignores that it cannot be written. `eprintln` panics when nobody reads stderr or
/// its disk is full, and neither may end a server.
pub fn say(line: impl fmt::Display) {
    // In one write, so that lines of threads do not mix.
    let line = format!("{line}\n");
    drop(io::stderr().write_all(line.as_bytes()));
}

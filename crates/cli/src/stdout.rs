//! Standard output, which its errors name: "No space left on device" alone leaves open of which.

use std::io::{self, StdoutLock, Write};

/// Locked standard output.
#[derive(Debug)]
pub struct Stdout(StdoutLock<'static>);

/// Locks standard output for a command that prints its result.
#[must_use]
pub fn lock() -> Stdout {
    Stdout(io::stdout().lock())
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

/// Of the same kind, as a reader that went away is told from other errors by it.
fn named(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("write to standard output: {error}"))
}

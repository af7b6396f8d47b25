//! A journal in a file.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use super::Log;

/// A journal in a file, which is made where there is none.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    /// For appending; opened when it is first needed.
    file: Option<File>,
}

impl JournalFile {
    /// The journal at `path`. Nothing is touched yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
        }
    }
}

impl Log for JournalFile {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match File::open(&self.path) {
            Ok(mut file) => file.read_to_end(&mut bytes).map(|_| bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(bytes),
            Err(error) => Err(error),
        }
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            None => self
                .file
                .insert(OpenOptions::new().append(true).open(&self.path)?),
        };
        file.write_all(bytes)?;
        file.sync_data()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file = None;
        cenote_durable::replace(&self.path, bytes, 0o600)
    }
}

//! Where the lines of a benchmark go as they are measured: to standard output, and to a file.

use std::fmt::Display;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// See the [module](self).
pub struct Lines {
    /// JSON on standard output as well, and not text.
    json: bool,
    saved: Option<(PathBuf, File)>,
}

impl Lines {
    /// # Errors
    /// The file cannot be made: that is told before anything is measured.
    pub fn to(json: bool, save: Option<&Path>) -> Result<Self> {
        let create = |path: &Path| {
            let file = File::create(path).with_context(|| path.display().to_string())?;
            anyhow::Ok((path.to_owned(), file))
        };
        let saved = save.map(create).transpose()?;
        Ok(Self { json, saved })
    }

    /// # Errors
    /// A line cannot be written.
    pub fn extend(&mut self, lines: &[impl Serialize + Display]) -> Result<()> {
        lines.iter().try_for_each(|line| self.push(line))
    }

    /// # Errors
    /// As [`Lines::extend`].
    pub fn push(&mut self, line: &(impl Serialize + Display)) -> Result<()> {
        let json = serde_json::to_string(line)?;
        if let Some((path, file)) = &mut self.saved {
            writeln!(file, "{json}").with_context(|| path.display().to_string())?;
        }
        let mut out = std::io::stdout().lock();
        match self.json {
            true => writeln!(out, "{json}")?,
            false => writeln!(out, "{line}")?,
        }
        Ok(())
    }
}

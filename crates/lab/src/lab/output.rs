//! Where the results of an experiment go: text or JSON, and files beside.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_measure::figure::{Csv, Plot};
use serde::Serialize;

/// What every experiment may be asked for.
#[derive(clap::Args, Debug)]
pub struct Output {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Also write the figures as a CSV table
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Also plot the figures
    #[arg(long, visible_alias = "plot", value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Output {
    /// Whether a table or a picture is wanted, which may cost more than the text does.
    pub fn wants_files(&self) -> bool {
        self.csv.is_some() || self.svg.is_some()
    }

    /// Whether standard output is for programs.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes the files that were asked for.
    ///
    /// # Errors
    /// One of them cannot be written.
    pub fn write_files(&self, csv: &Csv, plot: &Plot) -> Result<()> {
        if let Some(path) = &self.csv {
            write(path, csv.text())?;
        }
        if let Some(path) = &self.svg {
            write(path, &plot.svg()?)?;
        }
        Ok(())
    }

    /// Prints JSON, one line for each of `lines`, or what `text` prints.
    ///
    /// # Errors
    /// Standard output is closed.
    pub fn print<T: Serialize>(
        &self,
        lines: &[T],
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            for line in lines {
                serde_json::to_writer(&mut out, line)?;
                writeln!(out)?;
            }
        } else {
            text(&mut out)?;
        }
        Ok(())
    }
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).with_context(|| path.display().to_string())
}

//! `cenote man`: the manual pages, made of what `--help` is made of.

use std::path::PathBuf;

use anyhow::{Context, Result};
use cenote_cli::failure::DONE;
use clap::CommandFactory;

/// `man` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote man /usr/local/share/man/man1")]
pub struct Args {
    /// Folder for the pages, one for each command; existing pages are overwritten
    folder: PathBuf,
}

pub fn run(args: &Args) -> Result<u8> {
    let shown = || format!("write manual pages to {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(shown)?;
    clap_mangen::generate_to(crate::Cli::command(), &args.folder).with_context(shown)?;
    Ok(DONE)
}

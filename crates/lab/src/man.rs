//! Manual pages and completions, made of what `--help` is made of.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cenote_cli::failure::DONE;
use clap::CommandFactory as _;

/// `man` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:
  cenote-lab man /usr/local/share/man/man1")]
pub struct Args {
    /// Folder for the pages, one for each command; existing pages are overwritten
    folder: PathBuf,
}

/// Writes the pages as those of `cenote`, whose own page is not among them.
pub fn run(args: &Args) -> Result<u8> {
    let shown = || format!("write manual pages to {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(shown)?;
    let mut root = crate::Cli::command();
    root.build();
    for command in root.get_subcommands().filter(|one| !one.is_hide_set()) {
        if command.get_name() != "help" {
            clap_mangen::generate_to(command.clone(), &args.folder).with_context(shown)?;
        }
    }
    Ok(DONE)
}

/// Completions for a shell, to standard output.
pub fn completions(shell: clap_complete::Shell) -> Result<u8> {
    let mut command = crate::Cli::command();
    let name = cenote_cli::program::LAB;
    // It panics where its writer fails, which memory does not.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    cenote_cli::stdout::lock().write_all(&script)?;
    Ok(DONE)
}

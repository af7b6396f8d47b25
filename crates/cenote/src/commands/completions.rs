//! `cenote completions`: what a shell needs to complete our commands.

use std::io::Write as _;

use anyhow::Result;
use cenote_cli::failure::DONE;
use cenote_cli::stdout;
use clap::CommandFactory;
use clap_complete::Shell;

/// `completions` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote completions bash > /etc/bash_completion.d/cenote
  cenote completions zsh > ~/.zfunc/_cenote")]
pub struct Args {
    /// Shell
    shell: Shell,
}

pub fn run(args: &Args) -> Result<u8> {
    let mut command = crate::Cli::command();
    // It panics where its writer fails, which memory does not.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "cenote", &mut script);
    let mut out = stdout::lock();
    out.write_all(&script)?;
    out.flush()?;
    Ok(DONE)
}

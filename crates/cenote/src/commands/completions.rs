//! `cenote completions`: what a shell needs to complete our commands.

use anyhow::Result;
use cenote_cli::failure::DONE;
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
    clap_complete::generate(args.shell, &mut command, "cenote", &mut std::io::stdout());
    Ok(DONE)
}

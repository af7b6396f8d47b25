//! `cenote lab`, `bench` and `demo`: commands of the program `cenote-lab`, which lies beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use anyhow::{Context as _, Result};
use cenote_cli::failure::Failure;
use cenote_cli::log::Format;
use cenote_cli::{Common, program};

/// What follows the command; `cenote-lab` reads it.
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of the command; see its own --help
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "ARGUMENT"
    )]
    words: Vec<OsString>,
}

/// Becomes that program.
///
/// # Errors
/// It is not there, or does not start.
pub fn run(command: &[&str], args: &Args, common: Common) -> Result<u8> {
    let path = program::this()?.with_file_name(program::LAB);
    if !path.is_file() {
        let what = format!(
            "{}: no such program; it provides this command",
            path.display()
        );
        return Err(Failure::new(what, "make build, which builds it beside cenote").into());
    }
    let mut lab = Command::new(&path);
    // Its help names the command as it was given.
    lab.arg0("cenote").args(command);
    if common.quiet {
        lab.arg("--quiet");
    }
    if common.log_format == Format::Json {
        lab.args(["--log-format", "json"]);
    }
    let error = lab.args(&args.words).exec();
    Err(error).with_context(|| format!("start {}", path.display()))
}

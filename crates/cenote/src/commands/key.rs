//! `cenote key`: the secret that the members of a cluster prove to each other.

use std::path::PathBuf;

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure};
use cenote_fabric::ClusterKey;

use crate::protection::make_key;

/// `key` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  cenote key new --out cluster.key")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Write a new random key to a file that only you can read
    ///
    /// Every host and client of a cluster holds the same key. Copy it to the other
    /// machines by a channel you trust, and keep its mode 0600: a key that others
    /// can read is refused.
    #[command(after_help = "Example:\n  cenote key new --out cluster.key")]
    New {
        /// File to make; one that is there is never overwritten
        #[arg(long, value_name = "FILE", default_value = "cluster.key")]
        out: PathBuf,
    },
    /// Write a new random key that a volume's pages are sealed with
    ///
    /// It stays with the clients that serve the volume; hosts never see it. Without it what the
    /// volume holds cannot be read by anybody.
    #[command(
        after_help = "Example:\n  cenote key seal --out v0.key\n  cenote volume create v0 --size 2G --seal v0.key --dir ~/.cenote/well"
    )]
    Seal {
        /// File to make; one that is there is never overwritten
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

pub fn run(args: &Args) -> Result<u8> {
    let (Action::New { out } | Action::Seal { out }) = &args.action;
    if out.exists() {
        return Err(Failure::new(
            format!("{} is there already and stays as it is", out.display()),
            "another name by --out, or remove the file if nothing uses it",
        )
        .into());
    }
    match &args.action {
        Action::New { .. } => {
            make(out)?;
        }
        Action::Seal { .. } => make_key(out)?,
    }
    println!("{}", out.display());
    Ok(DONE)
}

/// Generates a key and writes it, mode 0600.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn make(path: &std::path::Path) -> Result<ClusterKey> {
    let key = ClusterKey::generate()?;
    key.save(path)?;
    Ok(key)
}

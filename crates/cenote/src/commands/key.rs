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
    /// Generate a cluster key, in a file that only you can read
    ///
    /// All hosts and clients of a cluster share one key. Copy it to the other machines over a
    /// channel you trust, and keep its mode at 0600: a key that others can read is refused.
    #[command(after_help = "Example:\n  cenote key new --out cluster.key")]
    New {
        /// File to create; an existing one is never overwritten
        #[arg(long, value_name = "FILE", default_value = "cluster.key")]
        out: PathBuf,
    },
    /// Generate a key that encrypts a volume's pages
    ///
    /// The key stays with the clients that serve the volume; hosts never see it. Without the key
    /// nobody can read the volume.
    #[command(
        after_help = "Example:\n  cenote key seal --out v0.key\n  cenote volume create v0 --size 2G --seal v0.key --dir ~/.cenote/well"
    )]
    Seal {
        /// File to create; an existing one is never overwritten
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
    },
}

pub fn run(args: &Args) -> Result<u8> {
    let (Action::New { out } | Action::Seal { out }) = &args.action;
    if out.exists() {
        return Err(Failure::new(
            format!("{} already exists and is not changed", out.display()),
            "use another --out, or remove the file if nothing uses it",
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

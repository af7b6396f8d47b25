//! The secret of a store's folder: what tells headers of its logs from bytes that clients wrote.
//!
//! It is a file beside the pools, since clients read the memory that holds a pool's file.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use cenote_cli::failure::{Failure, chain};
use cenote_store::Secret;

use crate::ask::random_u128;
use crate::folder::Folder;
use crate::shell::quoted;

/// The file: 32 hexadecimal digits.
const NAME: &str = "secret";
const DIGITS: usize = 32;

/// The secret of a store that is to be written, whose folder is locked. One that has none gets it,
/// durable when this returns; `None`: the disk has no room for it, and the store works without, as
/// it did before.
///
/// # Errors
/// The file is damaged, or others can read it or change the folder.
pub fn of_store(folder: &Folder, shown: &str) -> Result<Option<Secret>> {
    if let Some(secret) = load(folder, shown)? {
        return Ok(Some(secret));
    }
    let made = make(folder);
    let told = |error: &anyhow::Error| {
        let error = chain(error);
        tracing::warn!(
            store = shown,
            error,
            "make the file secret: values are not told from objects after a crash or damage"
        );
    };
    Ok(made.inspect_err(told).ok())
}

/// The same of a store that is looked at only, for which it makes no difference what is wrong.
pub fn of_look(folder: &Folder, shown: &str) -> Option<Secret> {
    let told = |error: &anyhow::Error| tracing::warn!("{}", chain(error));
    load(folder, shown).inspect_err(told).ok().flatten()
}

/// The same for a store that is being made.
///
/// # Errors
/// The folder has another file of that name, or cannot be written to.
pub fn of_new_store(folder: &Folder, dir: &Path) -> Result<()> {
    let shown = format!("store {}", dir.display());
    let there = load(folder, &shown).map_err(|error| {
        let what = format!("{}: has a file {NAME} that is no store's", dir.display());
        tracing::debug!(error = chain(&error), "read it");
        Failure::new(what, "use another folder")
    });
    if there?.is_none() {
        make(folder).context(shown)?;
    }
    Ok(())
}

fn load(folder: &Folder, shown: &str) -> Result<Option<Secret>> {
    let file = folder.existing_file(NAME);
    let Some(file) = file.with_context(|| shown.to_owned())? else {
        return Ok(None);
    };
    let what = |what: &str| format!("{shown}: its file {NAME} {what}");
    let mode = file.metadata().with_context(|| what("cannot be read"))?;
    if mode.mode() & 0o077 != 0 {
        let remedy = format!("chmod 600 {}", quoted(&folder.join(NAME)));
        return Err(Failure::new(what("is readable by others"), remedy).into());
    }
    let mut text = Vec::new();
    let read = file.take(2 * DIGITS as u64).read_to_end(&mut text);
    read.with_context(|| what("cannot be read"))?;
    let secret = parse(text.trim_ascii_end()).ok_or_else(|| {
        let remedy =
            format!("restore {NAME}, or remove it: the next command that writes makes another");
        Failure::new(what("is damaged"), remedy)
    })?;
    Ok(Some(secret))
}

fn parse(digits: &[u8]) -> Option<Secret> {
    let is_one = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_one)?;
    let number = u128::from_str_radix(digits, 16).ok()?;
    Some(Secret::new(number.to_be_bytes()))
}

fn make(folder: &Folder) -> Result<Secret> {
    let number = random_u128()?;
    let made = || {
        folder.remove_drafts(NAME)?;
        folder.write(NAME, &format!("{number:032x}\n"))
    };
    made().with_context(|| format!("make its file {NAME}"))?;
    Ok(Secret::new(number.to_be_bytes()))
}

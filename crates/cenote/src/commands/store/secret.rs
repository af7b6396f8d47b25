//! The secret of a store's folder: what tells headers of its logs from bytes that clients wrote.
//!
//! It is a file beside the pools, since clients read the memory that holds a pool's file.

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_store::Secret;

use crate::ask::random_u128;
use crate::folder::Folder;

/// The file: 32 hexadecimal digits.
pub const NAME: &str = "secret";

/// The secret of a folder that is locked, if it has one.
///
/// # Errors
/// The file is none, or others may change the folder.
pub fn load(folder: &Folder, shown: &str) -> Result<Option<Secret>> {
    let text = folder.read(NAME).with_context(|| shown.to_owned())?;
    let Some(text) = text else {
        return Ok(None);
    };
    let digits = text.trim_end();
    let number = u128::from_str_radix(digits, 16)
        .ok()
        .filter(|_| digits.len() == 32 && digits.bytes().all(|one| one.is_ascii_hexdigit()));
    let number = number.ok_or_else(|| {
        let what = format!("{shown}: its file {NAME} is damaged");
        let remedy = format!("restore {NAME}, or remove it: the next command makes another");
        Failure::new(what, remedy)
    })?;
    Ok(Some(Secret::new(number.to_be_bytes())))
}

/// The same, and a new one where there is none, durable when this returns.
///
/// # Errors
/// As [`load`]; the folder cannot be written to.
pub fn load_or_make(folder: &Folder, shown: &str) -> Result<Secret> {
    if let Some(secret) = load(folder, shown)? {
        return Ok(secret);
    }
    folder.remove_drafts(NAME)?;
    let number = random_u128()?;
    let made = folder.write(NAME, &format!("{number:032x}\n"));
    made.with_context(|| format!("{shown}: make its file {NAME}"))?;
    Ok(Secret::new(number.to_be_bytes()))
}

//! What a mapped file of a volume says in front: what it is, of whom, and of which life of the
//! machine.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{COVERED, HEADER_WORDS, MarksError};

/// Says in front of a file what it is, and of whom; the first word last, for without it there is
/// nothing.
pub fn begin_file(header: &[AtomicU64], magic: u64, volume: u128) -> io::Result<()> {
    for (word, value) in header[1..].iter().zip(description(volume)?) {
        word.store(value, Ordering::Relaxed);
    }
    header[0].store(magic, Ordering::Release);
    Ok(())
}

/// Whether a file was begun so, in this life of the machine. A file that is not takes no room by
/// it.
///
/// # Errors
/// [`MarksError`].
pub fn begun_by(file: &File, magic: u64, volume: u128) -> Result<(), MarksError> {
    let header = header_of(file)?.ok_or(MarksError::Foreign)?;
    let [low, high, boot_low, boot_high] = description(volume)?;
    if header[..3] != [magic, low, high] {
        return Err(MarksError::Foreign);
    }
    if header[3..5] != [boot_low, boot_high] {
        return Err(MarksError::Restarted);
    }
    Ok(())
}

/// The first words of a file that begins with a header, or `None` where it is shorter than that.
/// They are read: a look at a map may need room where files are in memory (tmpfs).
pub fn header_of(file: &File) -> io::Result<Option<[u64; COVERED + 1]>> {
    if file.metadata()?.len() < (HEADER_WORDS * 8) as u64 {
        return Ok(None);
    }
    let mut bytes = [0; (COVERED + 1) * 8];
    file.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks();
    // As a map of the file has them.
    Ok(Some(std::array::from_fn(|at| {
        u64::from_ne_bytes(words[at])
    })))
}

/// Whose marks they are, and in which life of the machine.
pub fn description(volume: u128) -> io::Result<[u64; 4]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let boot = u128::from_str_radix(&digits, 16)
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "boot_id is no number"))?;
    let halves = |value: u128| [value as u64, (value >> 64) as u64];
    let ([a, b], [c, d]) = (halves(volume), halves(boot));
    Ok([a, b, c, d])
}

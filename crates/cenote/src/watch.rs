//! `--watch`: a status again and again, for every command that shows one.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::chain;
use cenote_cli::span;
use cenote_cli::stdout;

/// Whether a status is shown once, or again and again.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Watch {
    /// Repeat at this interval until Ctrl-C [default without a value: 2s]
    #[arg(long, value_name = "DURATION", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "2s", value_parser = span::within("100ms", "1h"))]
    watch: Option<Duration>,
}

impl Watch {
    /// Writes what `show` makes: once, and then the code is its own; or again and again. On a terminal
    /// each page replaces the one before; elsewhere an empty line parts them; with `is_json` each is an
    /// object on a line. An error after the first page is shown in place of a page: what is watched
    /// may come back.
    ///
    /// # Errors
    /// Those of `show`; standard output is closed.
    pub fn show(
        self,
        is_json: bool,
        mut show: impl FnMut(&mut Vec<u8>) -> Result<u8>,
    ) -> Result<u8> {
        let mut page = Vec::new();
        let mut shown = show(&mut page);
        let Some(interval) = self.watch else {
            // What it wrote before it failed is its as well.
            stdout::lock().write_all(&page)?;
            return shown;
        };
        let is_terminal = std::io::stdout().is_terminal() && !is_json;
        shown = Ok(shown?);
        if is_terminal {
            stdout::lock().write_all(CLEAR)?;
        }
        loop {
            if let Err(error) = &shown {
                page.clear();
                match is_json {
                    true => serde_json::to_writer(
                        &mut page,
                        &serde_json::json!({"error": chain(error)}),
                    )?,
                    false => writeln!(page, "error: {}", chain(error))?,
                }
            }
            let mut out = stdout::lock();
            out.write_all(&framed(&page, is_json, is_terminal))?;
            out.flush()?;
            drop(out);
            std::thread::sleep(interval);
            page.clear();
            shown = show(&mut page);
        }
    }
}

/// Clears the terminal.
const CLEAR: &[u8] = b"\x1b[2J";

/// A page as it is written.
fn framed(page: &[u8], is_json: bool, is_terminal: bool) -> Vec<u8> {
    if is_json {
        // A page in many lines is for people.
        let value = serde_json::from_slice::<serde_json::Value>(page);
        let line = value.map_or_else(|_| page.to_vec(), |value| value.to_string().into_bytes());
        return [line, b"\n".to_vec()].concat();
    }
    if !is_terminal {
        return [page, b"\n"].concat();
    }
    // From the top; what was longer before is cleared line by line, so that nothing flickers.
    let mut out = b"\x1b[H".to_vec();
    for line in page.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n") {
            Some(line) => out.extend_from_slice(&[line, b"\x1b[K\n"].concat()),
            None => out.extend_from_slice(line),
        }
    }
    out.extend_from_slice(b"\x1b[J");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_a_line_of_json_or_replaces_the_one_before() {
        let pretty = b"{\n  \"b\": 1,\n  \"a\": [2]\n}\n";
        let line = String::from_utf8(framed(pretty, true, false)).unwrap();
        assert_eq!(line.lines().count(), 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value, serde_json::json!({"a": [2], "b": 1}));
        assert_eq!(framed(b"x\ny\n", false, false), b"x\ny\n\n");
        assert_eq!(
            framed(b"x\ny\n", false, true),
            b"\x1b[Hx\x1b[K\ny\x1b[K\n\x1b[J"
        );
    }

    #[test]
    fn once_is_the_answer_and_its_error() {
        let once = Watch { watch: None };
        assert_eq!(once.show(false, |_| Ok(3)).unwrap(), 3);
        assert!(once.show(false, |_| anyhow::bail!("no")).is_err());
        // A mistake in the arguments is not watched.
        let often = Watch {
            watch: Some(Duration::from_millis(100)),
        };
        assert!(
            often
                .show(false, |_| anyhow::bail!("no such folder"))
                .is_err()
        );
    }
}

//! Progress of long work, on a terminal only.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `total` steps on stderr; nothing is drawn where stderr is no terminal.
pub fn steps(total: u64, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}")
        .expect("the template is a literal that parses");
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// A spinner with a message; nothing is drawn where stderr is no terminal.
pub fn line() -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}")
        .expect("the template is a literal that parses");
    ProgressBar::no_length().with_style(style)
}

//! Paths in lines that are given to a shell, whatever is in them.

use std::path::Path;

/// The path as a shell takes it for one word: in quotes unless it is plain.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_takes_it_for_one_word() {
        for (path, word) in [
            ("/mnt/a-b_c.d", "/mnt/a-b_c.d"),
            ("/mnt/$(id)", "'/mnt/$(id)'"),
            ("/mnt/a b", "'/mnt/a b'"),
            ("/it's", "'/it'\\''s'"),
            ("~", "'~'"),
            ("", "''"),
        ] {
            assert_eq!(quoted(Path::new(path)), word);
        }
    }
}

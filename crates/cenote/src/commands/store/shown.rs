//! Keys on a terminal: one line each, whatever clients put into them.

use cenote_store::Condition;

/// A key as it is, or as a shell takes it in `$'...'` where it has bytes that would be more than
/// text to a terminal, or might be read as another key.
pub fn shown(key: &[u8]) -> String {
    let text = str::from_utf8(key).ok();
    if let Some(text) = text.filter(|text| !text.starts_with("$'") && text.chars().all(is_text)) {
        return text.to_owned();
    }
    let mut shown = "$'".to_owned();
    for chunk in key.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => shown += "\\n",
                '\r' => shown += "\\r",
                '\t' => shown += "\\t",
                '\\' | '\'' => shown.extend(['\\', c]),
                c if is_text(c) => shown.push(c),
                c => escape(&mut shown, c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        escape(&mut shown, chunk.invalid());
    }
    shown + "'"
}

/// Why a change was not made whose condition does not hold of the newest version, `found`.
pub fn unmet(condition: Condition, found: Option<u64>) -> String {
    match (condition, found) {
        (_, None) => "there is no such object".to_owned(),
        (Condition::Absent, Some(version)) => format!("it exists already, with version {version}"),
        (_, Some(version)) => format!("its version is {version}"),
    }
}

fn escape(shown: &mut String, bytes: &[u8]) {
    // In octal, since a shell reads on in hexadecimal digits that follow.
    bytes
        .iter()
        .for_each(|byte| *shown += &format!("\\{byte:03o}"));
}

/// Whether a character takes its place in a line, and changes no other.
fn is_text(c: char) -> bool {
    let changes_order = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}')
        || matches!(c, '\u{2066}'..='\u{2069}' | '\u{061c}');
    let is_unseen = matches!(c, '\u{200b}'..='\u{200d}' | '\u{2060}' | '\u{feff}');
    let ends_line = matches!(c, '\u{2028}' | '\u{2029}');
    !(c.is_control() || changes_order || is_unseen || ends_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_one_line_of_text_and_a_shell_reads_it_back() {
        for (key, line) in [
            (&b"user/17"[..], "user/17"),
            ("gr\u{fc}n \\ 'a'".as_bytes(), "gr\u{fc}n \\ 'a'"),
            (b"a\nb", "$'a\\nb'"),
            (b"\x1b[2J\\'\t", "$'\\033[2J\\\\\\'\\t'"),
            (b"\xff1", "$'\\3771'"),
            ("\u{202e}x".as_bytes(), "$'\\342\\200\\256x'"),
            // Not to be taken for the one above.
            (b"$'a\\nb'", "$'$\\'a\\\\nb\\''"),
        ] {
            assert_eq!(shown(key), line);
        }
    }
}

//! What never leaves in a bundle: everything goes through a [`Redactor`], whatever it is.
//!
//! Secrets are known by their bytes (keys and passwords of the cluster's folder, of this process's
//! environment) and by where they stand: behind a name that says so, in a URL in front of the host,
//! behind `Bearer`, between the lines of a PEM file. Whether a word is secret is decided in favour
//! of leaving it out. Deliberately not here: which files are looked at at all, see `files.rs`.

/// What stands where something was left out.
const LEFT_OUT: &str = "[left out]";
/// A secret that is shorter is no secret, and taking it out would riddle the text.
const SECRET_BYTES_MIN: usize = 6;
/// Parts of names whose values are left out, lower case, without `-` and `_`.
const NAMES: [&str; 9] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "privatekey",
    "authorization",
];

/// Takes secrets out of text.
#[derive(Debug, Default)]
pub struct Redactor {
    known: Vec<String>,
}

impl Redactor {
    /// Learns the content of a file with a secret: each line of it, and all of it.
    pub fn learn(&mut self, content: &[u8]) {
        let text = String::from_utf8_lossy(content);
        let lines = text.lines().chain([&*text]).map(str::trim);
        // Of a file of users the passwords alone, too.
        let behind_names = text.lines().filter_map(|line| line.split_once(':'));
        let all = lines.chain(behind_names.map(|(_, secret)| secret.trim()));
        for line in all {
            if line.len() >= SECRET_BYTES_MIN && !line.starts_with('#') {
                self.known.push(line.to_owned());
                // As a key is written where it is no file.
                if line.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    self.known.push(line.to_uppercase());
                    self.known.push(line.to_lowercase());
                }
            }
        }
        // A part of another must not be taken out first: the rest of the other would stay.
        self.known
            .sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        self.known.dedup();
    }

    /// The text without secrets.
    pub fn clean(&self, text: &str) -> String {
        let mut clean = text.to_owned();
        for secret in &self.known {
            if clean.contains(secret.as_str()) {
                clean = clean.replace(secret.as_str(), LEFT_OUT);
            }
        }
        let clean = without_pem(&clean);
        let mut out = String::with_capacity(clean.len());
        for line in clean.split_inclusive('\n') {
            let line = without_user_of_urls(line);
            let line = without_schemes(&line);
            out.push_str(&without_named(&line));
        }
        out
    }
}

/// Without what is between `-----BEGIN` and the end of `-----END ...-----`.
fn without_pem(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("-----BEGIN ") {
        out.push_str(&rest[..begin]);
        out.push_str(LEFT_OUT);
        let inside = &rest[begin..];
        let end = inside.find("-----END ").and_then(|end| {
            let behind = end + "-----END ".len();
            let dashes = inside[behind..].find("-----")?;
            Some(behind + dashes + "-----".len())
        });
        rest = end.map_or("", |end| &inside[end..]);
    }
    out.push_str(rest);
    out
}

/// Without `USER:PASSWORD@` in URLs.
fn without_user_of_urls(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let behind = at + "://".len();
        out.push_str(&rest[..behind]);
        rest = &rest[behind..];
        let is_end = |c: char| c.is_whitespace() || "/?#\"'<>,\\".contains(c);
        let end = rest.find(is_end).unwrap_or(rest.len());
        if let Some(user) = rest[..end].rfind('@') {
            out.push_str(LEFT_OUT);
            rest = &rest[user..];
        }
    }
    out.push_str(rest);
    out
}

/// Without what follows `Bearer` and `Basic`.
fn without_schemes(line: &str) -> String {
    const SCHEMES: [&str; 2] = ["bearer", "basic"];
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    // Word by word: a look for a scheme that is not there costs no pass over the line.
    while let Some(space) = rest.find(' ') {
        let (word, behind) = rest.split_at(space + 1);
        out.push_str(word);
        rest = behind;
        let word = word.trim_end().as_bytes();
        let ends_so = |scheme: &&str| {
            let at = word.len().checked_sub(scheme.len());
            at.is_some_and(|at| word[at..].eq_ignore_ascii_case(scheme.as_bytes()))
        };
        if SCHEMES.iter().any(ends_so) {
            rest = rest.trim_start_matches(' ');
            let end = value_end(rest, None);
            if end > 0 {
                out.push_str(LEFT_OUT);
            }
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    out
}

/// Without the values of names that say that they are secret: `name = value`, `"name": "value"`,
/// `--name value`, `NAME=value`.
fn without_named(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    while let Some(begin) = rest.find(is_of_name) {
        out.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        let name = &rest[..end];
        out.push_str(name);
        rest = &rest[end..];
        let Some(secrecy) = secrecy_of(name) else {
            continue;
        };
        let Some((between, quote)) = between_name_and_value(rest, name.starts_with("--")) else {
            continue;
        };
        let value = &rest[between..];
        let length = value_end(value, quote);
        if length == 0 || secrecy == Secrecy::Key && is_figure(&value[..length], quote) {
            continue;
        }
        out.push_str(&rest[..between]);
        out.push_str(LEFT_OUT);
        rest = &value[length..];
    }
    out.push_str(rest);
    out
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Secrecy {
    /// Whatever its value is.
    Sure,
    /// Counters have such names as well: a bare number is none.
    Key,
}

fn secrecy_of(name: &str) -> Option<Secrecy> {
    let plain: String = name
        .chars()
        .filter(char::is_ascii_alphanumeric)
        .map(|c| c.to_ascii_lowercase())
        .collect();
    if NAMES.iter().any(|secret| plain.contains(secret)) {
        return Some(Secrecy::Sure);
    }
    plain.ends_with("key").then_some(Secrecy::Key)
}

/// Bytes from the end of a name to its value, and the quote that the value is in.
fn between_name_and_value(rest: &str, is_flag: bool) -> Option<(usize, Option<char>)> {
    let mut behind = rest.strip_prefix("\\\"").unwrap_or(rest);
    behind = behind.strip_prefix(['"', '\'']).unwrap_or(behind);
    behind = behind.trim_start_matches([' ', '\t']);
    let named = behind.strip_prefix(['=', ':']);
    let value = match named {
        Some(value) => value.trim_start_matches([' ', '\t']),
        None if is_flag && rest.starts_with([' ', '\t']) => behind,
        None => return None,
    };
    let escaped = value.strip_prefix("\\\"");
    let (value, quote) = match (escaped, value.chars().next()) {
        (Some(inner), _) => (inner, Some('"')),
        (None, Some(quote @ ('"' | '\''))) => (&value[1..], Some(quote)),
        _ => (value, None),
    };
    Some((rest.len() - value.len(), quote))
}

/// Bytes of a value.
fn value_end(value: &str, quote: Option<char>) -> usize {
    let mut is_escaped = false;
    for (at, c) in value.char_indices() {
        let is_end = match quote {
            // An escaped quote may close a string within a string: what follows is left out too.
            Some(quote) => c == quote && !is_escaped || c == '\n',
            None => c.is_whitespace() || ",;&\"'}])".contains(c),
        };
        if is_end {
            return at;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    value.len()
}

fn is_figure(value: &str, quote: Option<char>) -> bool {
    let is_word = matches!(value, "true" | "false" | "null");
    quote.is_none() && (is_word || value.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleaned(text: &str) -> String {
        Redactor::default().clean(text)
    }

    #[test]
    fn what_a_name_calls_secret_is_left_out_and_the_rest_stays() {
        for (text, expected) in [
            (
                "password = \"hunter 2\" # x\n",
                "password = \"[left out]\" # x\n",
            ),
            (
                "a=1 etcd_password=123456, b=2",
                "a=1 etcd_password=[left out], b=2",
            ),
            (
                "{\"api_token\": \"abc\", \"n\": 5}",
                "{\"api_token\": \"[left out]\", \"n\": 5}",
            ),
            (
                "{\"m\":\"{\\\"secret\\\":\\\"a b\\\"}\"}",
                "{\"m\":\"{\\\"secret\\\":\\\"[left out]\"}",
            ),
            (
                "cenote kv node --auth-token abc --name n",
                "cenote kv node --auth-token [left out] --name n",
            ),
            ("KEY=0123abcd\nNAME=n00\n", "KEY=[left out]\nNAME=n00\n"),
            (
                "Authorization: Basic YWJjOmRlZg==",
                "Authorization: [left out] [left out]",
            ),
            (
                "sent bearer abc.def-1 to it",
                "sent bearer [left out] to it",
            ),
            (
                "http://root:pw@10.0.0.1:2379/x?a@b",
                "http://[left out]@10.0.0.1:2379/x?a@b",
            ),
            (
                "{\"wrong_key\": 7, \"key\": null}",
                "{\"wrong_key\": 7, \"key\": null}",
            ),
            (
                "strangers{outcome=\"wrong_key\"} 3",
                "strangers{outcome=\"wrong_key\"} 3",
            ),
            ("the password was wrong", "the password was wrong"),
            ("keys: 3, hosts=4", "keys: 3, hosts=4"),
        ] {
            assert_eq!(cleaned(text), expected, "{text}");
        }
    }

    #[test]
    fn pem_is_left_out_also_cut_off_and_in_json() {
        let begin = "-----BEGIN PRIVATE KEY-----";
        let end = "-----END PRIVATE KEY-----";
        let text = format!("a\n{begin}\nMIIE\n{end}\nb {begin}\\nMIIF\\n{end}\" c {begin}\nMIIG");
        assert_eq!(cleaned(&text), "a\n[left out]\nb [left out]\" c [left out]");
    }

    #[test]
    fn known_secrets_are_left_out_wherever_they_stand() {
        let mut redactor = Redactor::default();
        redactor.learn(b"0123456789abcdef0123456789abcdef\n");
        redactor.learn(b"# users\nalice:opensesame\nbob:x\n");
        redactor.learn(b"short");
        let text = "k0123456789ABCDEF0123456789ABCDEFk alice:opensesame (opensesame) short";
        assert_eq!(
            redactor.clean(text),
            "k[left out]k [left out] ([left out]) short"
        );
    }

    #[test]
    fn any_text_is_taken() {
        for text in [
            "",
            "password",
            "password=",
            "--token",
            "://",
            "://@",
            "\"key\":\"",
            "\u{e9}key=\u{e9}",
            "-----BEGIN ",
        ] {
            let once = cleaned(text);
            assert!(
                once.len() <= text.len() + 2 * LEFT_OUT.len(),
                "{text}: {once}"
            );
        }
    }
}

//! What never leaves in a bundle: everything goes through a [`Redactor`], whatever it is.
//!
//! Secrets are known by their bytes (keys and passwords of the cluster's folder, of this process's
//! environment) and by where they stand: behind a name that says so, in a URL in front of the host,
//! behind `Bearer`, between the lines of a PEM file. Whether a word is secret is decided in favour
//! of leaving it out. Deliberately not here: which files are looked at at all, see `files.rs`.

use std::ops::Range;

/// What stands where something was left out.
const LEFT_OUT: &str = "[left out]";
/// A secret that is shorter is no secret, and taking it out would riddle the text.
const SECRET_BYTES_MIN: usize = 6;
/// Parts of names whose values are left out, lower case, without `-` and `_`.
const NAMES: [&str; 11] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "apikey",
    "privatekey",
    "authorization",
    // OpenTelemetry's, which have tokens for collectors.
    "otlpheaders",
    "tracesheaders",
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
        self.sort();
    }

    /// Learns the values that a file of configuration has for names that say that they are secret, which
    /// may stand elsewhere without them.
    pub fn learn_named(&mut self, text: &str) {
        for named in Named::all(text) {
            let value = &text[named.value];
            let is_place = ["file", "path", "dir"]
                .iter()
                .any(|end| named.name.to_lowercase().ends_with(end));
            // Other keys name things.
            let is_secret = match named.secrecy {
                Secrecy::Sure => !is_place && !matches!(value, "true" | "false" | "null"),
                Secrecy::Key => value.bytes().all(|byte| byte.is_ascii_hexdigit()),
            };
            if !is_secret {
                continue;
            }
            // Of a list each of its strings.
            let is_list = value.starts_with(BRACKETS);
            let strings = value.split(['"', '\'']).skip(1).step_by(2);
            let words: Vec<&str> = match is_list {
                true => strings.collect(),
                false => value.lines().chain([value]).map(str::trim).collect(),
            };
            let long = words
                .into_iter()
                .filter(|word| word.len() >= SECRET_BYTES_MIN);
            self.known.extend(long.map(str::to_owned));
        }
        self.sort();
    }

    /// A part of another must not be taken out first: the rest of the other would stay.
    fn sort(&mut self) {
        self.known
            .sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
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
            out.push_str(&without_schemes(&line));
        }
        without_named(&out)
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
        // A password may have a comma or a quote in it.
        let is_end = |c: char| c.is_whitespace() || "/?#\"<>\\".contains(c);
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
            let end = value_end(rest, Written::Word);
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
fn without_named(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut kept = 0;
    for named in Named::all(text) {
        out.push_str(&text[kept..named.value.start]);
        out.push_str(LEFT_OUT);
        kept = named.value.end;
    }
    out.push_str(&text[kept..]);
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

/// A name that says that its value is secret, and where that value is in the text.
struct Named<'a> {
    name: &'a str,
    secrecy: Secrecy,
    value: Range<usize>,
}

impl<'a> Named<'a> {
    /// All of a text, in order.
    fn all(text: &'a str) -> Vec<Self> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let (mut all, mut at) = (Vec::new(), 0);
        while let Some(begin) = text[at..].find(is_of_name).map(|begin| at + begin) {
            let rest = &text[begin..];
            let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
            let (name, before) = (&rest[..end], &text[..begin]);
            at = begin + end;
            let Some(secrecy) = secrecy_of(name) else {
                continue;
            };
            let Some((between, written)) = written_behind(before, name, &text[at..], secrecy)
            else {
                continue;
            };
            let start = at + between;
            let value = start..start + value_end(&text[start..], written);
            let is_quoted = matches!(written, Written::Quoted(..));
            let is_counter =
                secrecy == Secrecy::Key && !is_quoted && is_figure(&text[value.clone()]);
            if !value.is_empty() && !is_counter {
                at = value.end;
                all.push(Self {
                    name,
                    secrecy,
                    value,
                });
            }
        }
        all
    }
}

/// How a value is written, which says where it ends.
#[derive(Clone, Copy)]
enum Written<'a> {
    /// In quotes of this kind; `true`: they may close in a later line.
    Quoted(&'a str, bool),
    /// Without, to the next separator; brackets that open in it close in it.
    Word,
    /// Without, to the end of the line, of a line that is nothing but this name and its value; a bracket
    /// that it begins with may close in a later one.
    Line,
}

/// Bytes from the end of a name to its value, and how that is written.
fn written_behind<'a>(
    before: &'a str,
    name: &str,
    behind: &'a str,
    secrecy: Secrecy,
) -> Option<(usize, Written<'a>)> {
    let blanks = [' ', '\t'];
    // `"NAME=value of words"`: the quote is around both.
    if behind.starts_with('=') && before.ends_with(['"', '\'']) {
        let quote = &before[before.len() - 1..];
        return Some((1, Written::Quoted(quote, false)));
    }
    let mut rest = behind.strip_prefix("\\\"").unwrap_or(behind);
    rest = rest.strip_prefix(['"', '\'']).unwrap_or(rest);
    rest = rest.trim_start_matches(blanks);
    let value = match rest.strip_prefix(['=', ':']) {
        Some(value) => value.trim_start_matches(blanks),
        None if name.starts_with("--") && behind.starts_with(blanks) => rest,
        None => return None,
    };
    let line = before.rsplit('\n').next().unwrap_or_default();
    let is_alone = matches!(line.trim(), "" | "export" | "#" | "-");
    let is_sure_line = secrecy == Secrecy::Sure && is_alone;
    let quotes = ["\"\"\"", "'''", "\\\"", "\"", "'"];
    let quote = quotes.into_iter().find(|quote| value.starts_with(quote));
    let written = match quote {
        // What is escaped once ends at whatever quote: what follows is left out too.
        Some("\\\"") => Written::Quoted("\"", false),
        Some(quote) => Written::Quoted(quote, quote.len() == 3 || is_sure_line),
        None if is_sure_line => Written::Line,
        None => Written::Word,
    };
    let value = &value[quote.map_or(0, str::len)..];
    Some((behind.len() - value.len(), written))
}

const BRACKETS: [char; 3] = ['[', '{', '('];

/// Bytes of a value.
fn value_end(value: &str, written: Written<'_>) -> usize {
    let mut is_escaped = false;
    let mut closed = 0;
    for (at, c) in value.char_indices() {
        if at < closed {
            continue;
        }
        let is_end = match written {
            Written::Quoted(_, false) if c == '\n' => true,
            // An escaped quote may close a string within a string: what follows is left out too.
            Written::Quoted(quote, _) => value[at..].starts_with(quote) && !is_escaped,
            Written::Line if at > 0 || !BRACKETS.contains(&c) => c == '\n' && !is_escaped,
            Written::Line | Written::Word if BRACKETS.contains(&c) => {
                closed = at + bracket_end(&value[at..]);
                false
            }
            Written::Line | Written::Word => c.is_whitespace() || ",;&\"'}])".contains(c),
        };
        if is_end {
            return at;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    value.len()
}

/// Bytes to behind the bracket that closes the first one, which those in strings do not; all if none
/// does.
fn bracket_end(text: &str) -> usize {
    // In a string of JSON that is JSON itself, each quote is escaped once more.
    let is_nested = text[1..].trim_start().starts_with("\\\"");
    let (mut depth, mut quote, mut backslashes) = (0, None, 0);
    for (at, c) in text.char_indices() {
        let is_quote = match (c, is_nested) {
            ('"', true) => backslashes % 4 == 1,
            ('"' | '\'', false) => backslashes % 2 == 0,
            _ => false,
        };
        match quote {
            Some(opened) if is_quote && c == opened => quote = None,
            Some(_) => {}
            None if is_quote => quote = Some(c),
            None if BRACKETS.contains(&c) => depth += 1,
            None if matches!(c, ']' | '}' | ')') => depth -= 1,
            None => {}
        }
        if depth == 0 {
            return at + c.len_utf8();
        }
        backslashes = if c == '\\' { backslashes + 1 } else { 0 };
    }
    text.len()
}

fn is_figure(value: &str) -> bool {
    let is_word = matches!(value, "true" | "false" | "null");
    is_word || value.bytes().all(|byte| byte.is_ascii_digit())
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
                "CENOTE_ETCD_PASSWORD=correct horse,battery;9\nNAME=n00\n",
                "CENOTE_ETCD_PASSWORD=[left out]\nNAME=n00\n",
            ),
            (
                "Environment=\"CENOTE_ETCD_PASSWORD=correct horse\" A=b",
                "Environment=\"CENOTE_ETCD_PASSWORD=[left out]\" A=b",
            ),
            (
                "OTEL_EXPORTER_OTLP_HEADERS=x-api=abc,y=d\nOTEL_EXPORTER_OTLP_TRACES_HEADERS=z\nA=b\n",
                "OTEL_EXPORTER_OTLP_HEADERS=[left out]\n\
                 OTEL_EXPORTER_OTLP_TRACES_HEADERS=[left out]\nA=b\n",
            ),
            (
                "{\"tokens\": [\"abc]123\", [\"d\"]], \"n\": 5}",
                "{\"tokens\": [left out], \"n\": 5}",
            ),
            (
                "passwords = [\n  \"abc123\",\n  'd]ef'\n]\nn = 5",
                "passwords = [left out]\nn = 5",
            ),
            (
                "password = \"\"\"\nhunter\" 2\n\"\"\"\nn = 5",
                "password = \"\"\"[left out]\"\"\"\nn = 5",
            ),
            (
                "opened: token: Some(\"abc\"), n: 5",
                "opened: token: [left out], n: 5",
            ),
            ("http://root:pa,s's@h/", "http://[left out]@h/"),
            (
                "http://a:1,http://root:pw@b:1/ 'http://c:1/'",
                "http://a:1,http://[left out]@b:1/ 'http://c:1/'",
            ),
            (
                "cenote kv node --auth-token abc --name n",
                "cenote kv node --auth-token [left out] --name n",
            ),
            ("KEY=0123abcd\nNAME=n00\n", "KEY=[left out]\nNAME=n00\n"),
            (
                "Authorization: Basic YWJjOmRlZg==",
                "Authorization: [left out]",
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
    fn values_of_configuration_are_left_out_of_logs_too() {
        let mut redactor = Redactor::default();
        redactor.learn_named("A=b\nCENOTE_ETCD_PASSWORD=correct horse,battery;9\n");
        redactor.learn_named("tokens = [\"abc123\", 'def456']\ntoken_file = \"/etc/tokens\"\n");
        let log = "refused correct horse,battery;9, abc123 and def456 of /etc/tokens";
        let clean = "refused [left out], [left out] and [left out] of /etc/tokens";
        assert_eq!(redactor.clean(log), clean);
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
            "token: [\u{e9}",
            "token=\"",
            "\"token=\u{e9}",
        ] {
            let once = cleaned(text);
            assert!(
                once.len() <= text.len() + 2 * LEFT_OUT.len(),
                "{text}: {once}"
            );
        }
    }
}

//! Who may ask: memcached's `-Y`, a file of users and passwords; or the file for SASL that
//! `MEMCACHED_SASL_PWDB` names, which may say more behind a password.
//!
//! Until a client has said who it is, its bytes go to [`gate`] and not to a parser. It says so by
//! a `set` whose value is `USER PASSWORD`; key, flags and time do not matter.
//! Over an open network both can be read by anybody on the way.

use super::error::Error;
use super::numbers::unsigned_low;
use super::words::Words;

/// Entries of a file at most.
pub const ENTRIES_MAX: usize = 8;
/// The same of a file for SASL, where memcached reads all lines. A client's password is compared
/// with all of them.
pub const SASL_ENTRIES_MAX: usize = 1024;
/// Longest line of a file.
pub const ENTRY_BYTES_MAX: usize = 254;
/// Longest line of a client before it is known, and longest value.
const GATE_BYTES_MAX: usize = 2048;

/// The users of a file, and their passwords.
#[derive(Clone, Eq, PartialEq)]
pub struct Credentials(Vec<Entry>);

#[derive(Clone, Eq, PartialEq)]
struct Entry {
    user: Vec<u8>,
    password: Vec<u8>,
}

/// What is wrong with a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A line has no colon.
    #[error("line {line} is not USER:PASSWORD")]
    Malformed {
        /// From 1.
        line: usize,
    },
    /// A line is longer than [`ENTRY_BYTES_MAX`].
    #[error("line {line} is longer than {ENTRY_BYTES_MAX} bytes")]
    TooLong {
        /// From 1.
        line: usize,
    },
    /// There are more than [`ENTRIES_MAX`] lines, which memcached passes over silently; or more
    /// than [`SASL_ENTRIES_MAX`].
    #[error("more than {most} lines")]
    TooMany {
        /// So many may be there.
        most: usize,
    },
    /// Nobody could get in.
    #[error("no line")]
    Empty,
}

impl Credentials {
    /// Reads the content of a file: lines of `USER:PASSWORD`. The password goes from the first
    /// colon to the end of the line.
    ///
    /// # Errors
    /// Where a line is none of these, and where there are too many lines or none.
    pub fn parse(content: &[u8]) -> Result<Self, CredentialsError> {
        let mut entries = Vec::new();
        for entry in lines(content, ENTRIES_MAX)? {
            let (user, password) = entry?;
            entries.push(Entry::new(user, password));
        }
        Ok(Self(entries))
    }

    /// Reads the content of a file for SASL: lines of `USER:PASSWORD`, which may go on with `:` and
    /// anything. As a password may have colons, too, it is what is before any of them, or all. Of
    /// a user's lines the first counts.
    ///
    /// # Errors
    /// As [`Credentials::parse`].
    pub fn parse_for_sasl(content: &[u8]) -> Result<Self, CredentialsError> {
        let mut entries: Vec<Entry> = Vec::new();
        for entry in lines(content, SASL_ENTRIES_MAX)? {
            let (user, rest) = entry?;
            if entries.iter().any(|entry| entry.user == user) {
                continue;
            }
            let colons = rest.iter().enumerate().filter(|(_, byte)| **byte == b':');
            let ends = colons.map(|(at, _)| at).chain([rest.len()]);
            entries.extend(ends.map(|end| Entry::new(user, &rest[..end])));
        }
        Ok(Self(entries))
    }

    /// Whether there is such a user with such a password. How long it takes depends on the lengths
    /// alone: all entries are compared to their ends.
    pub fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        self.0.iter().fold(false, |is_admitted, entry| {
            let is_user = is_equal(&entry.user, user);
            let is_password = is_equal(&entry.password, password);
            is_admitted | (is_user & is_password)
        })
    }
}

impl Entry {
    fn new(user: &[u8], password: &[u8]) -> Self {
        Self {
            user: user.to_vec(),
            password: password.to_vec(),
        }
    }
}

/// A line: what is before its first colon, and what is behind it.
type Line<'a> = Result<(&'a [u8], &'a [u8]), CredentialsError>;

/// The lines of a file, which may be up to `most`.
fn lines(content: &[u8], most: usize) -> Result<impl Iterator<Item = Line<'_>>, CredentialsError> {
    let content = content.strip_suffix(b"\n").unwrap_or(content);
    if content.is_empty() {
        return Err(CredentialsError::Empty);
    }
    let lines = content.split(|byte| *byte == b'\n').enumerate();
    Ok(lines.map(move |(index, text)| {
        let line = index + 1;
        if line > most {
            return Err(CredentialsError::TooMany { most });
        }
        if text.len() > ENTRY_BYTES_MAX {
            return Err(CredentialsError::TooLong { line });
        }
        let colon = text.iter().position(|byte| *byte == b':');
        let colon = colon.ok_or(CredentialsError::Malformed { line })?;
        let rest = &text[colon + 1..];
        let end = rest.iter().position(|byte| matches!(byte, b'\r' | 0));
        Ok((&text[..colon], &rest[..end.unwrap_or(rest.len())]))
    }))
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Credentials({} entries)", self.0.len())
    }
}

/// Compares without stopping at the first difference.
fn is_equal(left: &[u8], right: &[u8]) -> bool {
    let difference = left
        .iter()
        .zip(right)
        .fold(0, |difference, (left, right)| difference | (left ^ right));
    (left.len() == right.len()) & (std::hint::black_box(difference) == 0)
}

/// What the front of an unknown client's bytes is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GateStep {
    /// Not whole yet.
    More,
    /// The client is known: `STORED` is answered, and what follows goes to a parser.
    Admitted {
        /// Bytes.
        taken: usize,
    },
    /// It is not, and may try again.
    Refused {
        /// The line to answer.
        error: Error,
        /// Bytes.
        taken: usize,
    },
    /// A line or a value that is too long for this: the connection is closed.
    Close,
}

/// Reads what a client says before it is known: `buffer` is all bytes that were received and not
/// taken. A line is taken together with its value, or alone if it is refused.
pub fn gate(buffer: &[u8], credentials: &Credentials) -> GateStep {
    let end = buffer.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(buffer.len()) > GATE_BYTES_MAX {
        return GateStep::Close;
    }
    let Some(end) = end else {
        return GateStep::More;
    };
    let start = end + 1;
    let Some(length) = token_bytes(&buffer[..end]) else {
        return GateStep::Refused {
            error: Error::Unauthenticated,
            taken: start,
        };
    };
    if length > GATE_BYTES_MAX {
        return GateStep::Close;
    }
    let taken = start + length + 2;
    if buffer.len() < taken {
        return GateStep::More;
    }
    match check(&buffer[start..taken], credentials) {
        Ok(()) => GateStep::Admitted { taken },
        Err(error) => GateStep::Refused { error, taken },
    }
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> Words<'_> {
    let end = bytes.iter().position(|byte| *byte == 0);
    Words::new(&bytes[..end.unwrap_or(bytes.len())])
}

/// The length of user and password, of a line that is a `set`.
fn token_bytes(line: &[u8]) -> Option<usize> {
    let mut words = text(line);
    if words.next() != Some(b"set") {
        return None;
    }
    usize::try_from(unsigned_low(words.nth(3)?)?).ok()
}

fn check(value: &[u8], credentials: &Credentials) -> Result<(), Error> {
    let token = value.strip_suffix(b"\r\n").ok_or(Error::TokenEnd)?;
    let mut words = text(token);
    match (words.next(), words.next()) {
        (Some(user), Some(password)) if credentials.admit(user, password) => Ok(()),
        (Some(_), Some(_)) => Err(Error::AuthenticationFailure),
        _ => Err(Error::TokenFormat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Credentials {
        Credentials::parse(b"ada:secret\nbob:with:colon\r\n").unwrap()
    }

    #[test]
    fn a_file_is_lines_of_user_and_password() {
        let credentials = credentials();
        assert!(credentials.admit(b"ada", b"secret"));
        assert!(credentials.admit(b"bob", b"with:colon"));
        for (user, password) in [
            (&b"ada"[..], &b"secre"[..]),
            (b"ada", b"secreT"),
            (b"ada", b"with:colon"),
            (b"ad", b"secret"),
            (b"", b""),
        ] {
            assert!(!credentials.admit(user, password));
        }
        assert_eq!(format!("{credentials:?}"), "Credentials(2 entries)");
    }

    #[test]
    fn a_faulty_file_is_refused() {
        let refused = |content: &[u8]| Credentials::parse(content).unwrap_err();
        assert_eq!(refused(b""), CredentialsError::Empty);
        let malformed = CredentialsError::Malformed { line: 2 };
        assert_eq!(refused(b"a:b\nab\n"), malformed);
        assert_eq!(refused(b"a:b\n\n"), malformed);
        let many = CredentialsError::TooMany { most: ENTRIES_MAX };
        assert_eq!(refused(&b"a:b\n".repeat(9)), many);
        assert!(Credentials::parse(&b"a:b\n".repeat(8)).is_ok());
        let long = [&b"a:"[..], &[b'x'; 253]].concat();
        assert_eq!(refused(&long), CredentialsError::TooLong { line: 1 });
    }

    #[test]
    fn a_file_for_sasl_may_say_more_behind_a_password() {
        let content = b"ada:secret:::::::\nbob:with:colon\r\nada:other\n";
        let credentials = Credentials::parse_for_sasl(content).unwrap();
        let admits = |user: &[u8], password: &[u8]| credentials.admit(user, password);
        assert!(admits(b"ada", b"secret") && admits(b"bob", b"with:colon"));
        for password in [&b"secre"[..], b"secret:x", b"other", b""] {
            assert!(!admits(b"ada", password));
        }
        assert!(Credentials::parse_for_sasl(&b"a:b\n".repeat(SASL_ENTRIES_MAX)).is_ok());
        let many = Credentials::parse_for_sasl(&b"a:b\n".repeat(SASL_ENTRIES_MAX + 1));
        let most = SASL_ENTRIES_MAX;
        assert_eq!(many.unwrap_err(), CredentialsError::TooMany { most });
    }

    #[test]
    fn a_client_says_who_it_is_in_a_set() {
        let known = b"set any 7 7 10\r\nada secret\r\n";
        for (said, expected) in [
            (&known[..], GateStep::Admitted { taken: 28 }),
            (
                b"set a 0 0 12\nada secret x\r\n",
                GateStep::Admitted { taken: 27 },
            ),
            (b"get a\r\n", refused(Error::Unauthenticated, 7)),
            (b"set a 0 0\r\n", refused(Error::Unauthenticated, 11)),
            (b"set a 0 0 x\r\n", refused(Error::Unauthenticated, 13)),
            (b"set a 0 0 3\r\nada\r\n", refused(Error::TokenFormat, 18)),
            (
                b"set a 0 0 5\r\nada x\r\n",
                refused(Error::AuthenticationFailure, 20),
            ),
            (b"set a 0 0 4\r\nada x\r\n", refused(Error::TokenEnd, 19)),
            (b"set a 0 0 9999\r\n", GateStep::Close),
        ] {
            let step = gate(said, &credentials());
            assert_eq!(step, expected, "{}", String::from_utf8_lossy(said));
        }
        for length in 0..known.len() {
            assert_eq!(gate(&known[..length], &credentials()), GateStep::More);
        }
        assert_eq!(gate(&[b'x'; 2049], &credentials()), GateStep::Close);
    }

    fn refused(error: Error, taken: usize) -> GateStep {
        GateStep::Refused { error, taken }
    }
}

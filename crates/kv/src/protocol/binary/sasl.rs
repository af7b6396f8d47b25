//! How a client says who it is: SASL's mechanism `PLAIN`, against the file of users.
//!
//! Over an open network the password can be read by anybody on the way, as in text.

use crate::protocol::authentication::Credentials;

/// The mechanisms that there are.
pub const MECHANISMS: &str = "PLAIN";
/// What is answered to who is let in.
pub const WELCOME: &[u8] = b"Authenticated";

/// Whether what was said in a mechanism lets its client in: `[AS] NUL USER NUL PASSWORD`. Whom the
/// user wants to act as does not matter, as all may do the same.
pub fn is_admitted(credentials: &Credentials, mechanism: &[u8], said: &[u8]) -> bool {
    if mechanism != MECHANISMS.as_bytes() {
        return false;
    }
    let mut parts = said.split(|byte| *byte == 0).skip(1);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(user), Some(password), None) => credentials.admit(user, password),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_is_the_only_way_in() {
        let credentials = Credentials::parse(b"ada:secret\n").unwrap();
        for (mechanism, said, is_in) in [
            (&b"PLAIN"[..], &b"\0ada\0secret"[..], true),
            (b"PLAIN", b"bob\0ada\0secret", true),
            (b"PLAIN", b"\0ada\0Secret", false),
            (b"PLAIN", b"\0ada\0secret\0", false),
            (b"PLAIN", b"ada\0secret", false),
            (b"PLAIN", b"ada secret", false),
            (b"PLAIN", b"", false),
            (b"CRAM-MD5", b"\0ada\0secret", false),
        ] {
            assert_eq!(is_admitted(&credentials, mechanism, said), is_in);
        }
    }
}

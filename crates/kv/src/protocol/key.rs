//! Keys of meta commands, which may be binary, and their base64.
//!
//! The decoder is as forgiving as memcached's: characters that are not base64 are passed over, and
//! what follows the first padded group is not looked at.

/// Longest key, as it stands in a request.
pub const KEY_BYTES_MAX: usize = 250;

/// Room for a decoded key.
pub type KeyScratch = [u8; KEY_BYTES_MAX];

/// Stands for a character that is not base64.
const NO_DIGIT: u8 = 0x80;
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUES: [u8; 256] = {
    let mut values = [NO_DIGIT; 256];
    let mut index = 0;
    while index < DIGITS.len() {
        values[DIGITS[index] as usize] = index as u8;
        index += 1;
    }
    values[b'=' as usize] = 0;
    values
};

/// The key of a meta command. Only keys that can be decoded get into a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MetaKey<'a> {
    raw: &'a [u8],
    is_base64: bool,
}

impl<'a> MetaKey<'a> {
    /// Takes a key of at most [`KEY_BYTES_MAX`] bytes; nothing if it should be base64 and is not.
    pub(super) fn new(raw: &'a [u8], is_base64: bool) -> Option<Self> {
        let key = Self { raw, is_base64 };
        if is_base64 {
            decode_base64(raw, &mut [0; KEY_BYTES_MAX])?;
        }
        Some(key)
    }

    /// The key as it stands in the request.
    pub fn raw(&self) -> &'a [u8] {
        self.raw
    }

    /// Whether the key came in base64: what is stored remembers it, to be shown so again.
    pub fn is_base64(&self) -> bool {
        self.is_base64
    }

    /// The key's bytes, decoded into `scratch` where they have to be.
    pub fn bytes<'s>(&'s self, scratch: &'s mut KeyScratch) -> &'s [u8] {
        if !self.is_base64 {
            return self.raw;
        }
        let length = decode_base64(self.raw, scratch).expect("was decoded when it was parsed");
        &scratch[..length]
    }
}

/// Decodes `text` into `out` and returns the number of bytes; nothing if it is no base64, or empty.
fn decode_base64(text: &[u8], out: &mut KeyScratch) -> Option<usize> {
    let digits = || {
        text.iter()
            .filter(|character| VALUES[usize::from(**character)] != NO_DIGIT)
    };
    let count = digits().count();
    if count == 0 || !count.is_multiple_of(4) || count / 4 * 3 > text.len().min(out.len()) {
        return None;
    }
    let mut length = 0;
    let mut group = 0u32;
    let mut padding = 0;
    for (index, character) in digits().enumerate() {
        padding += usize::from(*character == b'=');
        group = group << 6 | u32::from(VALUES[usize::from(*character)]);
        if index % 4 != 3 {
            continue;
        }
        out[length..length + 3].copy_from_slice(&group.to_be_bytes()[1..]);
        length += 3;
        group = 0;
        if padding > 2 {
            return None;
        }
        if padding > 0 {
            length -= padding;
            break;
        }
    }
    Some(length)
}

/// Appends `bytes` in base64.
pub fn encode_base64(out: &mut Vec<u8>, bytes: &[u8]) {
    for group in bytes.chunks(3) {
        let mut three = [0; 4];
        three[1..=group.len()].copy_from_slice(group);
        let bits = u32::from_be_bytes(three);
        for place in 0..4 {
            if place > group.len() {
                out.push(b'=');
            } else {
                out.push(DIGITS[(bits >> (18 - 6 * place) & 63) as usize]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str) -> Option<Vec<u8>> {
        let key = MetaKey::new(text.as_bytes(), true)?;
        Some(key.bytes(&mut [0; KEY_BYTES_MAX]).to_vec())
    }

    #[test]
    fn keys_are_decoded_as_memcached_decodes_them() {
        for (text, expected) in [
            ("Zm9v", Some(&b"foo"[..])),
            ("Zm9vYg==", Some(b"foob")),
            ("Zm9vYmE=", Some(b"fooba")),
            ("Zm!9v", Some(b"foo")),
            ("Zg==Zm9v", Some(b"f")),
            ("=AAA", Some(b"\0\0")),
            ("A===", None),
            ("====", None),
            ("Zm9", None),
            ("!!!", None),
            ("", None),
        ] {
            assert_eq!(decoded(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        for length in 1..180 {
            let bytes: Vec<u8> = (0..length)
                .map(|index| (index * 37 + length) as u8)
                .collect();
            let mut text = Vec::new();
            encode_base64(&mut text, &bytes);
            let text = String::from_utf8(text).unwrap();
            assert_eq!(decoded(&text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn a_plain_key_is_itself() {
        let key = MetaKey::new(b"!!!", false).unwrap();
        assert_eq!(key.bytes(&mut [0; KEY_BYTES_MAX]), b"!!!");
    }
}

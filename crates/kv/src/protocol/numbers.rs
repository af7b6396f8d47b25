//! Numbers as memcached reads them, which is how C does.
//!
//! A number may follow white space and a sign, and ends with its word or at white space inside of
//! it (a tab, say). Unsigned numbers may even be negative, if what C makes of them looks positive.
//! Numbers of 32 bits are the lower half of what was read, so a length of 4294967297 is 1.

/// What C calls white space.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Sign and size of the number in front, if it is one that ends properly and fits into 64 bits.
fn scan(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|byte| !is_space(*byte))?;
    let text = &text[start..];
    let (is_negative, digits) = match text[0] {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let count = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    if count == 0 {
        return None;
    }
    match digits.get(count) {
        None | Some(0) => {}
        Some(byte) if is_space(*byte) => {}
        Some(_) => return None,
    }
    let size = digits[..count].iter().try_fold(0u64, |size, digit| {
        size.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((is_negative, size))
}

/// A signed number of 64 bits of which the lower 32 count: lengths and expiry times.
pub(super) fn signed(text: &[u8]) -> Option<i32> {
    let (is_negative, size) = scan(text)?;
    let number = if is_negative {
        0i64.checked_sub_unsigned(size)?
    } else {
        i64::try_from(size).ok()?
    };
    Some((number & i64::from(u32::MAX)) as u32 as i32)
}

/// An unsigned number of 64 bits: cas numbers, deltas and values that are counted with.
pub(super) fn unsigned(text: &[u8]) -> Option<u64> {
    let (is_negative, size) = scan(text)?;
    if !is_negative {
        return Some(size);
    }
    let wrapped = size.wrapping_neg();
    (wrapped <= i64::MAX.cast_unsigned()).then_some(wrapped)
}

/// An unsigned number of 64 bits of which the lower 32 count: client flags and the verbosity.
pub(super) fn unsigned_low(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|number| (number & u64::from(u32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, expected) in [
            ("0", Some(0)),
            ("+7", Some(7)),
            ("-7", Some(-7)),
            ("\t12", Some(12)),
            ("5\t8", Some(5)),
            ("2147483647", Some(i32::MAX)),
            ("2147483648", Some(i32::MIN)),
            ("4294967297", Some(1)),
            ("-4294967295", Some(1)),
            ("9223372036854775807", Some(-1)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(0)),
            ("-9223372036854775809", None),
            ("-2147483648", Some(i32::MIN)),
            ("99999999999999999999999", None),
            ("", None),
            ("-", None),
            ("+-1", None),
            ("1x", None),
            ("x", None),
        ] {
            assert_eq!(signed(text.as_bytes()), expected, "{text:?}");
        }
    }

    #[test]
    fn an_unsigned_number_may_be_negative_if_it_wraps_far_enough() {
        assert_eq!(unsigned(b"-18446744073709551615"), Some(1));
        assert_eq!(unsigned(b"-1"), None);
        assert_eq!(unsigned(b"-0"), Some(0));
        assert_eq!(unsigned(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(unsigned(b"18446744073709551616"), None);
        assert_eq!(unsigned_low(b"4294967297"), Some(1));
    }
}

//! Counting a stored value up or down, as `incr`, `decr` and `ma` do.

use super::error::Error;
use super::numbers::unsigned;
use super::request::Direction;

/// Longest value that is looked at. memcached keeps larger items in parts, and takes none of them
/// for a number, whatever it starts with; where exactly that begins depends on its key.
const VALUE_BYTES_MAX: usize = 512 << 10;

/// Whether a value has a length at which it may be a number. memcached finds this out before it
/// compares cas numbers, and the rest of [`count`] afterwards.
pub fn may_be_number(value_bytes: usize) -> bool {
    (1..=VALUE_BYTES_MAX).contains(&value_bytes)
}

/// The number that `value` becomes.
///
/// # Errors
/// [`Error::NonNumeric`] where the value does not start with a number of 64 bits that ends with the
/// value or at white space, or where the value is longer than 512 KiB.
pub fn count(value: &[u8], direction: Direction, delta: u64) -> Result<u64, Error> {
    let number = unsigned(value)
        .filter(|_| may_be_number(value.len()))
        .ok_or(Error::NonNumeric)?;
    Ok(match direction {
        Direction::Up => number.wrapping_add(delta),
        Direction::Down => number.saturating_sub(delta),
    })
}

/// Puts a number where `value` is, and says whether there was room for it.
///
/// With room the item stays what it is, the rest of its value is spaces, and replies show it with
/// them. Without, memcached makes a new item, which has the old one's client flags and expiry time
/// and nothing else of it.
pub fn write_over(value: &mut Vec<u8>, number: u64) -> bool {
    let digits = number.to_string().into_bytes();
    let has_room = digits.len() <= value.len();
    let length = value.len().max(digits.len());
    *value = digits;
    value.resize(length, b' ');
    has_room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_wraps_upwards_and_stops_downwards() {
        assert_eq!(count(b"18446744073709551615", Direction::Up, 2), Ok(1));
        assert_eq!(count(b"3", Direction::Down, 5), Ok(0));
        assert_eq!(count(b" 5 x", Direction::Up, 1), Ok(6));
        for value in [&b""[..], b"x", b"5x", b"-5", b"18446744073709551616"] {
            assert_eq!(count(value, Direction::Up, 1), Err(Error::NonNumeric));
        }
    }

    #[test]
    fn a_shorter_number_is_padded() {
        let mut value = b"100".to_vec();
        assert!(write_over(&mut value, 99));
        assert_eq!(value, b"99 ");
        let mut value = b"9".to_vec();
        assert!(!write_over(&mut value, 10));
        assert_eq!(value, b"10");
    }
}

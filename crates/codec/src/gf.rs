//! Arithmetic of GF(2^8) with the polynomial 0x11d, one element at a time.
//!
//! Only matrices are made with it; bytes of splits go through [`kernel`](crate::kernel).

/// Product of two elements.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// Inverse of an element.
///
/// # Panics
/// On zero, which has none.
pub(crate) const fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    EXP[255 - LOG[a as usize] as usize]
}

/// x^8 + x^4 + x^3 + x^2 + 1, without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Powers of two, twice over so that a sum of two logarithms needs no reduction.
const EXP: [u8; 512] = powers();

/// Logarithms to the base two; the entry of zero means nothing.
const LOG: [u8; 256] = logarithms();

const fn powers() -> [u8; 512] {
    let mut exp = [0; 512];
    let mut value: u8 = 1;
    let mut at = 0;
    while at < 512 {
        exp[at] = value;
        let carry = value >> 7;
        value = (value << 1) ^ (carry * POLYNOMIAL);
        at += 1;
    }
    exp
}

const fn logarithms() -> [u8; 256] {
    let mut log = [0; 256];
    let mut power: u8 = 0;
    while power < 255 {
        log[EXP[power as usize] as usize] = power;
        power += 1;
    }
    log
}

#[cfg(test)]
mod tests {
    use super::{inverse, mul};

    /// Carry-less product, reduced bit by bit: the definition of the field.
    fn mul_by_definition(a: u8, b: u8) -> u8 {
        let mut product = 0u16;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..15).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product.to_le_bytes()[0]
    }

    #[test]
    fn products_and_inverses_follow_the_definition() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(mul(a, b), mul_by_definition(a, b), "{a} * {b}");
            }
            if a != 0 {
                assert_eq!(mul_by_definition(a, inverse(a)), 1, "inverse of {a}");
            }
        }
    }
}

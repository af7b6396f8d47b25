//! Which of a page's splits are wrong: by what the others say.
//!
//! `d` wrong splits are found among k+2d at least, and the word that is accepted agrees with all
//! others; the mode asks for k+2d+1, of which d+1 wrong ones are still noticed. Of copies, as many
//! decide.
//!
//! Paper: \[hydra22\] Table 1; the rule of acceptance is deviation D30.

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::splits::{Made, Splits};

/// What follows from the splits that were read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The page is right where it lies, and these splits of those that were read are wrong.
    Right { wrong: u64, made: Made },
    /// So many more splits are needed to tell.
    Ask(usize),
    /// It cannot be told which are right.
    Corrupt,
}

/// What is asked of splits that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Wrong splits that are put right.
    pub tolerated: usize,
    /// Splits that it takes to find these.
    pub needed: usize,
}

/// Judges the splits that were read, more than k, when `more` others could be read besides, and makes the
/// page.
pub fn compare(splits: &Splits<'_>, present: u64, more: usize, rule: Rule) -> Verdict {
    let (given, k) = (present.count_ones() as usize, splits.cut.k());
    let right = |wrong: u64| Verdict::Right {
        wrong,
        made: splits.reconstruct(present & !wrong),
    };
    if splits.differing(present, 0) == Some(0) || is_injected(InjectedFault::SkipCompare) {
        return right(0);
    }
    if rule.tolerated == 0 {
        return Verdict::Corrupt;
    }
    if given < rule.needed && more > 0 {
        return Verdict::Ask(rule.needed - given);
    }
    let locatable = rule.tolerated.min((given - k) / 2);
    match splits.differing(present, locatable) {
        Some(wrong) if is_injected(InjectedFault::HealWrong) => {
            let innocent = present & !wrong;
            right(innocent & innocent.wrapping_neg())
        }
        Some(wrong) => right(wrong),
        None => Verdict::Corrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;
    use crate::scheme::{Codes, Cut};

    /// Judges a page of rs:4+3 with these splits wrong, when so many were read: the verdict, and whether the
    /// page is right then.
    fn judge(wrong: &[usize], present: u64, more: usize) -> (Verdict, bool) {
        let codes = Codes::new();
        let cut = Cut::of("rs:4+3".parse().unwrap());
        let right: Vec<u8> = (0..PAGE_BYTES).map(|at| (at * 7 % 251) as u8).collect();
        let mut page = right.clone();
        let mut parities = vec![0; 3 * cut.split_bytes()];
        let splits = Splits {
            cut,
            codes: &codes,
            page: page.as_mut_ptr(),
            parities: parities.as_mut_ptr(),
            parity_count: 3,
            primary: 0,
        };
        splits.encode();
        let absent = (0..7).filter(|split| present >> split & 1 == 0);
        for split in wrong.iter().copied().chain(absent) {
            // SAFETY: a split of this test's page or parities.
            unsafe { splits.landing(split).write_bytes(0xee, 3) };
        }
        let rule = Rule {
            tolerated: 1,
            needed: 7,
        };
        let verdict = compare(&splits, present, more, rule);
        (verdict, splits.page_bytes() == right)
    }

    #[test]
    fn splits_that_agree_make_the_page() {
        let (verdict, is_right) = judge(&[], 0b11_1110, 2);
        let made = Made::Decoded;
        assert_eq!(
            (verdict, is_right),
            (Verdict::Right { wrong: 0, made }, true)
        );
    }

    #[test]
    fn one_wrong_split_is_found_when_enough_were_read_and_asked_about_before() {
        assert_eq!(judge(&[2], 0b1_1111, 2).0, Verdict::Ask(2));
        let (verdict, is_right) = judge(&[2], 0b111_1111, 0);
        let (wrong, made) = (1 << 2, Made::Decoded);
        assert_eq!((verdict, is_right), (Verdict::Right { wrong, made }, true));
    }

    #[test]
    fn what_cannot_be_told_is_an_error() {
        assert_eq!(judge(&[0, 5], 0b111_1111, 0).0, Verdict::Corrupt, "two");
        assert_eq!(judge(&[0], 0b1_1111, 0).0, Verdict::Corrupt, "too few");
    }
}

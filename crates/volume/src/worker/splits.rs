//! The splits of a page, as they lie in memory: where each is, and making one kind from the other.

use cenote_codec::{Code, DATA_MAX, PARITY_MAX};

use super::verbs::{Verb, bits, spare_of};
use crate::PAGE_BYTES;
use crate::scheme::{Codes, Cut};

/// The splits of an operation's page. Its page and its parities are whole, apart from each other, and the
/// operation's alone; they live as long as it does.
pub struct Splits<'a> {
    pub cut: Cut,
    pub codes: &'a Codes,
    /// The whole page, where its data splits are.
    pub page: *mut u8,
    /// Its parities, or copies that land apart.
    pub parities: *mut u8,
    pub parity_count: usize,
    /// Of copies that are read, the one that lands in the page.
    pub primary: u8,
}

/// Most splits of a page.
pub const SPLITS_MAX: usize = DATA_MAX + PARITY_MAX;

/// How a page came to be whole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Made {
    /// It landed so.
    AsItLanded,
    /// A copy was brought to it.
    Copied,
    /// Data splits of it were decoded.
    Decoded,
}

impl<'a> Splits<'a> {
    /// The code that makes one kind of split from the other; `None`: the splits are copies.
    pub fn code(&self) -> Option<&'a Code> {
        self.codes.with(self.cut, self.parity_count)
    }

    /// Where splits lie that go with this verb.
    #[inline]
    pub fn places(&self, verb: Verb) -> impl Fn(usize) -> *mut u8 + use<> {
        let (page, parities, primary) = (self.page, self.parities, self.primary);
        let (k, split_bytes) = (self.cut.k(), self.cut.split_bytes());
        move |split| match split {
            // Copies that are read land apart, or one would come over the other.
            copy if k == 1 && verb == Verb::Read => match spare_of(copy, primary) {
                Some(spare) => parities.wrapping_add(spare * split_bytes),
                None => page,
            },
            _ if k == 1 => page,
            data if data < k => page.wrapping_add(data * split_bytes),
            parity => parities.wrapping_add((parity - k) * split_bytes),
        }
    }

    /// Where a split that is read lands.
    #[inline]
    pub fn landing(&self, split: usize) -> *mut u8 {
        self.places(Verb::Read)(split)
    }

    /// Bytes of all parities.
    pub fn parity_bytes(&self) -> usize {
        self.parity_count * self.cut.split_bytes()
    }

    /// The whole page. No verb is out that lands in it.
    pub fn page_bytes(&self) -> &[u8] {
        // SAFETY: the page is whole and lives, and nothing writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.page, PAGE_BYTES) }
    }

    /// The parities that were read. No verb is out that lands in them.
    pub fn parity_splits(&self) -> &[u8] {
        // SAFETY: the parities are whole and live, and nothing writes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.parities, self.parity_bytes()) }
    }

    /// A split that was read. No verb is out that lands in it.
    pub fn split(&self, split: usize) -> &[u8] {
        // SAFETY: the landing is one split of the page or of the parities, both of which live, and nothing
        // writes it meanwhile.
        unsafe { std::slice::from_raw_parts(self.landing(split), self.cut.split_bytes()) }
    }

    /// Makes the parities of the page.
    pub fn encode(&self) {
        let code = self.code().expect("only schemes with a code encode");
        // SAFETY: the parities are whole, the operation's alone, and apart from the page.
        let parities =
            unsafe { std::slice::from_raw_parts_mut(self.parities, self.parity_bytes()) };
        code.encode(self.page_bytes(), parities);
    }

    /// Makes in place the data splits that are not among the `present`; of copies, brings one that came.
    pub fn reconstruct(&self, present: u64) -> Made {
        let k = self.cut.k();
        if k == 1 {
            if present & 1 << self.primary != 0 {
                return Made::AsItLanded;
            }
            let copy = self.landing(present.trailing_zeros() as usize);
            // SAFETY: spare copies lie behind the page in the operation's scratch block, apart from its page
            // and from the request's buffer; nothing lands in either any more.
            unsafe { self.page.copy_from_nonoverlapping(copy, PAGE_BYTES) };
            return Made::Copied;
        }
        let data = (1 << k) - 1;
        if present & data == data {
            return Made::AsItLanded;
        }
        let Some(code) = self.code() else {
            return Made::AsItLanded;
        };
        // SAFETY: the page is whole and the operation's alone, apart from the parities, and nothing lands in
        // it any more.
        let page = unsafe { std::slice::from_raw_parts_mut(self.page, PAGE_BYTES) };
        code.reconstruct(present, page, self.parity_splits())
            .expect("k splits of a valid code are present");
        Made::Decoded
    }

    /// The fewest of the `present` splits, at most `tolerated`, that the others say are wrong; `None` with
    /// more.
    pub fn differing(&self, present: u64, tolerated: usize) -> Option<u64> {
        let mut splits: [(usize, &[u8]); SPLITS_MAX] = [(0, &[]); SPLITS_MAX];
        let mut count = 0;
        for split in bits(present) {
            splits[count] = (split, self.split(split));
            count += 1;
        }
        let splits = &splits[..count];
        let Some(code) = self.code() else {
            return outvoted(splits, tolerated);
        };
        if tolerated == 0 {
            let agree = code.consistent(splits);
            return agree.expect("more than k distinct splits").then_some(0);
        }
        code.locate_set(splits, tolerated).ok()
    }
}

/// The copies that differ from what most say, if they are at most `tolerated`.
fn outvoted(copies: &[(usize, &[u8])], tolerated: usize) -> Option<u64> {
    copies.iter().find_map(|(_, candidate)| {
        let others = copies.iter().filter(|(_, copy)| copy != candidate);
        let wrong = others.fold(0_u64, |wrong, (index, _)| wrong | 1 << index);
        (wrong.count_ones() as usize <= tolerated).then_some(wrong)
    })
}

#[cfg(test)]
mod tests {
    use super::outvoted;

    #[test]
    fn most_copies_decide() {
        let (a, b) = ([1; 8], [2; 8]);
        let all = [(0, &a[..]), (2, &b[..]), (3, &a[..])];
        assert_eq!(outvoted(&all, 1), Some(1 << 2));
        assert_eq!(outvoted(&all, 0), None);
        assert_eq!(outvoted(&all[..1], 0), Some(0));
        let split = [(0, &b[..]), (1, &a[..]), (2, &b[..]), (3, &a[..])];
        assert_eq!(outvoted(&split, 1), None, "two against two");
    }
}

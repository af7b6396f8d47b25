//! The numbers of extents, and tables by them.
//!
//! A volume has two layouts: its pages are in one, or on their way to the other
//! while its k changes. Bit 31 of an extent's number is its layout, and the rest counts within the layout: hosts,
//! journal and directory know an extent by its number, which it has for good. Decision 32.

use std::ops::{Index, IndexMut};

/// One of a volume's two layouts.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub enum LayoutId {
    /// Where every volume begins.
    #[default]
    First,
    Second,
}

/// Most extents of one layout: each change of the directory copies a pointer for each.
pub const EXTENTS_MAX: u64 = 1 << 20;

/// Of an extent's number: its layout.
const LAYOUT_BIT: u32 = 31;

impl LayoutId {
    pub const BOTH: [Self; 2] = [Self::First, Self::Second];

    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// The layout of an extent.
    pub fn of(extent: usize) -> Self {
        Self::BOTH[extent >> LAYOUT_BIT & 1]
    }

    /// The number of its extent that is at `index`.
    pub fn extent(self, index: usize) -> usize {
        debug_assert!(index >> LAYOUT_BIT == 0);
        (self as usize) << LAYOUT_BIT | index
    }
}

/// Where an extent is among those of its layout.
pub fn index_of(extent: usize) -> usize {
    extent & ((1 << LAYOUT_BIT) - 1)
}

/// Something for each extent of both layouts.
#[derive(Clone, Debug)]
pub struct ByExtent<T> {
    layouts: [Vec<T>; 2],
}

impl<T> ByExtent<T> {
    /// For so many extents of the first layout, and of the second.
    pub fn new(counts: [usize; 2], mut make: impl FnMut() -> T) -> Self {
        let mut layout_id = |count| (0..count).map(|_| make()).collect();
        Self {
            layouts: counts.map(&mut layout_id),
        }
    }

    /// In the order of their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + Clone {
        self.layouts.iter().flatten()
    }

    /// In the order of their numbers.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.layouts.iter_mut().flatten()
    }

    /// In the order of their numbers, with these.
    pub fn numbered(&self) -> impl Iterator<Item = (usize, &T)> + Clone {
        let layouts = LayoutId::BOTH.into_iter().zip(&self.layouts);
        layouts.flat_map(|(layout_id, all)| {
            let numbered = all.iter().enumerate();
            numbered.map(move |(index, one)| (layout_id.extent(index), one))
        })
    }

    /// In the order of their numbers, with these.
    pub fn numbered_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let layouts = LayoutId::BOTH.into_iter().zip(&mut self.layouts);
        layouts.flat_map(|(layout_id, all)| {
            let numbered = all.iter_mut().enumerate();
            numbered.map(move |(index, one)| (layout_id.extent(index), one))
        })
    }

    /// What an extent has that there may be none of.
    pub fn get(&self, extent: usize) -> Option<&T> {
        self.layouts[LayoutId::of(extent) as usize].get(index_of(extent))
    }

    /// As [`ByExtent::get`].
    pub fn get_mut(&mut self, extent: usize) -> Option<&mut T> {
        self.layouts[LayoutId::of(extent) as usize].get_mut(index_of(extent))
    }

    /// Extents of a layout.
    pub fn count(&self, layout_id: LayoutId) -> usize {
        self.layouts[layout_id as usize].len()
    }

    /// Gives a layout so many extents.
    pub fn resize(&mut self, layout_id: LayoutId, count: usize, make: impl FnMut() -> T) {
        self.layouts[layout_id as usize].resize_with(count, make);
    }
}

impl<T> Index<usize> for ByExtent<T> {
    type Output = T;

    #[inline]
    fn index(&self, extent: usize) -> &T {
        &self.layouts[extent >> LAYOUT_BIT & 1][index_of(extent)]
    }
}

impl<T> IndexMut<usize> for ByExtent<T> {
    #[inline]
    fn index_mut(&mut self, extent: usize) -> &mut T {
        &mut self.layouts[extent >> LAYOUT_BIT & 1][index_of(extent)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_extent_of_one_layout() {
        let mut all = ByExtent::new([3, 0], || 0);
        assert_eq!(all.get(LayoutId::Second.extent(0)), None);
        all.resize(LayoutId::Second, 2, || 0);
        for (extent, value) in all.numbered_mut() {
            *value = extent;
        }
        let numbers: Vec<usize> = all.numbered().map(|(extent, _)| extent).collect();
        assert_eq!(numbers, [0, 1, 2, 1 << 31, 1 << 31 | 1]);
        for extent in numbers {
            assert_eq!(all[extent], extent);
            assert_eq!(LayoutId::of(extent).extent(index_of(extent)), extent);
        }
        assert_eq!(all.iter().count(), 5);
        assert_eq!(
            (all.count(LayoutId::First), all.count(LayoutId::Second)),
            (3, 2)
        );
        assert_eq!(all.get(LayoutId::Second.extent(2)), None);
    }
}

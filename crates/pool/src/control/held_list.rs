//! What a client holds on one host, as the host says it page by page.
//!
//! Each page but the first begins with the last slab of the one before. If that is where it was,
//! nothing before it has gone meanwhile, since later grants only come behind; otherwise all is asked
//! for once more.

use super::{HELD_SLABS_MAX, HeldSlab};

/// A list of slabs on its way. Pure: who has it sends what it says is to be asked.
#[derive(Debug, Default)]
pub struct HeldList(Stage);

#[derive(Debug, Default)]
enum Stage {
    /// Nobody wants to know.
    #[default]
    Idle,
    /// To be asked for from the beginning.
    Due,
    /// Asked for what comes after these, and for the last of them.
    Asked {
        listed: Vec<HeldSlab>,
        /// A slab that is listed may have changed: it is begun again.
        is_outdated: bool,
        /// Somebody wants to know since.
        is_wanted: bool,
    },
}

/// What came of a page.
#[derive(Debug, Eq, PartialEq)]
pub enum Page {
    /// There is more, after so many.
    Next(u32),
    /// That was all of it, and is exact.
    Whole(Vec<HeldSlab>),
    /// It is of no use; if somebody still wants to know, the list is due again.
    Void,
    /// The host lists more than any host has. Nothing is asked of it again.
    TooMany,
}

/// Most slabs of one host that are listened to; a host has fewer.
const LISTED_MAX: usize = 1 << 20;

impl HeldList {
    /// Somebody wants to know.
    pub fn request(&mut self) {
        match &mut self.0 {
            Stage::Asked { is_wanted, .. } => *is_wanted = true,
            stage => *stage = Stage::Due,
        }
    }

    /// The connection is gone. The next one begins with a list.
    pub fn forget(&mut self) {
        self.0 = Stage::Idle;
    }

    /// A slab was granted, or its window renewed: what was listed of it before is out of date.
    pub fn note_changed(&mut self) {
        if let Stage::Asked {
            listed,
            is_outdated,
            ..
        } = &mut self.0
        {
            *is_outdated |= !listed.is_empty();
        }
    }

    /// Whether nobody wants to know.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.0, Stage::Idle)
    }

    /// Begins, if somebody wants to know: how many slabs to skip.
    #[must_use]
    pub fn begin(&mut self) -> Option<u32> {
        matches!(self.0, Stage::Due).then(|| {
            self.0 = Stage::Asked {
                listed: Vec::new(),
                is_outdated: false,
                is_wanted: false,
            };
            0
        })
    }

    /// A page came: slabs after `skip`, fewer than [`HELD_SLABS_MAX`] if they are the last.
    #[must_use]
    pub fn handle_page(&mut self, skip: u32, slabs: &[HeldSlab]) -> Page {
        let Stage::Asked {
            listed,
            is_outdated,
            is_wanted,
        } = &mut self.0
        else {
            return Page::Void;
        };
        if skip != skip_after(listed) {
            self.0 = Stage::Idle;
            return Page::Void;
        }
        let news = match listed.last() {
            None => Some(slabs),
            Some(last) => slabs.strip_prefix(std::slice::from_ref(last)),
        };
        let Some(news) = news.filter(|_| !*is_outdated) else {
            self.0 = Stage::Due;
            return Page::Void;
        };
        if listed.len() + news.len() > LISTED_MAX {
            self.0 = Stage::Idle;
            return Page::TooMany;
        }
        listed.extend(news);
        if slabs.len() >= HELD_SLABS_MAX {
            return Page::Next(skip_after(listed));
        }
        let (listed, is_wanted) = (std::mem::take(listed), *is_wanted);
        self.0 = if is_wanted { Stage::Due } else { Stage::Idle };
        Page::Whole(listed)
    }
}

fn skip_after(listed: &[HeldSlab]) -> u32 {
    u32::try_from(listed.len().saturating_sub(1)).expect("bounded")
}

#[cfg(test)]
mod tests;

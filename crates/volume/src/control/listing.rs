//! What one host says that this client holds there, as it comes page by page.

use cenote_pool::control::{HELD_SLABS_MAX, HeldSlab};

/// What one host says that this client holds, as it comes page by page.
#[derive(Debug, Default)]
pub(super) struct Listing(Stage);

#[derive(Debug, Default)]
enum Stage {
    /// Nobody wants to know.
    #[default]
    Idle,
    /// To be asked for from the beginning.
    Due,
    /// Asked for what comes after these, and for the last of them once more: if it is where it was,
    /// nothing before it has gone meanwhile, since later grants only come behind.
    Asked {
        listed: Vec<HeldSlab>,
        /// Somebody wants to know since.
        is_due: bool,
    },
}

/// What came of a page.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Page {
    /// There is more, after so many.
    Next(u32),
    /// That was all of it, and is exact.
    Whole(Vec<HeldSlab>),
    /// It is of no use; if somebody still wants to know, the list is due again.
    Void,
}

/// Most slabs of one host that are listened to; far more than a volume has on one.
const LISTED_MAX: usize = 1 << 20;

impl Listing {
    /// Somebody wants to know.
    pub fn request(&mut self) {
        match &mut self.0 {
            Stage::Asked { is_due, .. } => *is_due = true,
            stage => *stage = Stage::Due,
        }
    }

    /// The connection is gone. The next one begins with a list.
    pub fn forget(&mut self) {
        self.0 = Stage::Idle;
    }

    fn is_due(&self) -> bool {
        matches!(self.0, Stage::Due)
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.0, Stage::Idle)
    }

    /// Begins, if somebody wants to know: how many slabs to skip.
    pub fn begin(&mut self) -> Option<u32> {
        self.is_due().then(|| {
            self.0 = Stage::Asked {
                listed: Vec::new(),
                is_due: false,
            };
            0
        })
    }

    /// A page came: slabs after `skip`, fewer than [`HELD_SLABS_MAX`] if they are the last.
    pub fn handle_page(&mut self, skip: u32, slabs: &[HeldSlab]) -> Page {
        let Stage::Asked { listed, is_due } = &mut self.0 else {
            return Page::Void;
        };
        let is_answer = skip == skip_after(listed);
        let news = match listed.last() {
            None => Some(slabs),
            Some(last) => slabs.strip_prefix(std::slice::from_ref(last)),
        };
        let Some(news) = news.filter(|news| is_answer && listed.len() + news.len() <= LISTED_MAX)
        else {
            // Something has gone from the front: from the beginning again.
            self.0 = if is_answer { Stage::Due } else { Stage::Idle };
            return Page::Void;
        };
        listed.extend(news);
        if slabs.len() >= HELD_SLABS_MAX {
            return Page::Next(skip_after(listed));
        }
        let (listed, is_due) = (std::mem::take(listed), *is_due);
        self.0 = if is_due { Stage::Due } else { Stage::Idle };
        Page::Whole(listed)
    }
}

fn skip_after(listed: &[HeldSlab]) -> u32 {
    u32::try_from(listed.len().saturating_sub(1)).expect("bounded")
}

#[cfg(test)]
mod tests;

//! Which k a volume may be asked for: two are known at a time, the one that its pages have and the one that
//! they are to have.
//!
//! Whoever asks is not the control thread, which carries an order out later, and not always at once: its
//! journal may be full. A third k is admitted when every order was carried out and all pages are cut as the
//! last one says. Until then the two layouts, the orders under way and the volume's file name two between them,
//! so an owner may end at any time, and the next one finds what it knows.
//!
//! Concurrency: any thread, under a lock that is held while an order is sent. The control thread takes it as
//! well: whoever has it waits for nobody. Decision 32.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::layouts::Layouts;
use crate::scheme::Cut;

/// The orders for other cuts of one volume.
pub struct RestripeOrders(Mutex<Orders>);

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    last: Cut,
    /// Pages may have it, or an order that is under way may name it.
    other: Option<Cut>,
    /// Orders that the control thread has not carried out.
    pending: u32,
}

impl RestripeOrders {
    /// Of a volume that is to be cut as `wanted`, and whose pages are where `layouts` says.
    pub fn new(wanted: Cut, layouts: &Layouts) -> Self {
        let target = layouts.target();
        let now = match layouts.is_mixed() {
            true => vec![target, target.other()],
            false => vec![target],
        };
        let mut now = now
            .into_iter()
            .map(|layout_id| layouts.layout(layout_id).cut());
        Self(Mutex::new(Orders {
            last: wanted,
            other: now.find(|&cut| cut != wanted),
            pending: 0,
        }))
    }

    /// For whoever asks: nobody else does meanwhile.
    pub fn lock(&self) -> MutexGuard<'_, Orders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The control thread has carried an order out, as far as it can by itself.
    pub fn note_obeyed(&self) {
        let mut orders = self.lock();
        orders.pending = orders.pending.saturating_sub(1);
    }
}

impl Orders {
    /// Whether the volume can be asked for this cut now. `at_rest`: how all of its pages are cut, if they are
    /// in one layout.
    pub fn admit(&self, cut: Cut, at_rest: Option<Cut>) -> bool {
        cut == self.last || self.other(at_rest).is_none_or(|other| other == cut)
    }

    /// An order was sent, of a cut that is admitted.
    pub fn note_sent(&mut self, cut: Cut, at_rest: Option<Cut>) {
        self.other = match cut == self.last {
            true => self.other(at_rest),
            false => Some(self.last),
        };
        self.last = cut;
        self.pending += 1;
    }

    /// Whether this is not what was asked for last.
    pub fn is_new(&self, cut: Cut) -> bool {
        cut != self.last
    }

    fn other(&self, at_rest: Option<Cut>) -> Option<Cut> {
        let is_over = self.pending == 0 && at_rest == Some(self.last);
        self.other.filter(|_| !is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extents::LayoutId;

    fn cut(k: usize) -> Cut {
        Cut::of(format!("rs:{k}+2").parse().unwrap())
    }

    fn restripe_orders(k: usize) -> RestripeOrders {
        let scheme = format!("rs:{k}+2").parse().unwrap();
        RestripeOrders::new(
            cut(k),
            &Layouts::new(LayoutId::First, scheme, 1 << 16, 1000),
        )
    }

    /// Sends an order for k, if it is admitted.
    fn ask(restripe_orders: &RestripeOrders, k: usize, at_rest: Option<usize>) -> bool {
        let (mut orders, at_rest) = (restripe_orders.lock(), at_rest.map(cut));
        let is_admitted = orders.admit(cut(k), at_rest);
        if is_admitted {
            orders.note_sent(cut(k), at_rest);
        }
        is_admitted
    }

    #[test]
    fn a_third_k_waits_until_the_second_was_obeyed() {
        let restripe_orders = restripe_orders(8);
        assert!(ask(&restripe_orders, 2, Some(8)));
        assert!(
            !ask(&restripe_orders, 4, Some(8)),
            "the order may begin any moment"
        );
        restripe_orders.note_obeyed();
        assert!(!ask(&restripe_orders, 4, Some(8)), "it could not begin yet");
        assert!(!ask(&restripe_orders, 4, None), "pages are on their way");
        assert!(ask(&restripe_orders, 4, Some(2)));
    }

    #[test]
    fn a_change_that_is_taken_back_before_it_began_admits_no_third_until_that_was_heard() {
        let restripe_orders = restripe_orders(8);
        assert!(ask(&restripe_orders, 2, Some(8)) && ask(&restripe_orders, 8, Some(8)));
        assert!(!ask(&restripe_orders, 4, Some(8)));
        restripe_orders.note_obeyed();
        assert!(!ask(&restripe_orders, 4, None), "the first of them began");
        restripe_orders.note_obeyed();
        assert!(!ask(&restripe_orders, 4, None), "and is on its way back");
        assert!(ask(&restripe_orders, 2, None) && ask(&restripe_orders, 8, None));
        (0..2).for_each(|_| restripe_orders.note_obeyed());
        assert!(ask(&restripe_orders, 4, Some(8)));
    }

    #[test]
    fn what_the_last_owner_left_in_the_middle_is_two() {
        let layouts = Layouts::new(LayoutId::First, "rs:8+2".parse().unwrap(), 1 << 16, 1000);
        // Its file says another k than its journal.
        let restripe_orders = RestripeOrders::new(cut(2), &layouts);
        assert!(!ask(&restripe_orders, 4, Some(8)) && ask(&restripe_orders, 8, Some(8)));
        layouts.prepare().unwrap();
        layouts.begin(cut(4));
        let restripe_orders = RestripeOrders::new(cut(4), &layouts);
        assert!(!ask(&restripe_orders, 2, None) && ask(&restripe_orders, 8, None));
    }
}

//! Whether what clients saw of one key can have happened in some order: linearizability, by search.
//!
//! An operation takes effect at one moment between its beginning and its end. One whose end nobody
//! saw may take effect at any time after its beginning, or never. Every value is written once. An
//! item may be gone when its time has come, and where items make room for others at any time; it does
//! not come back.

use std::collections::HashSet;

/// A value.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Value {
    /// Which one.
    pub number: u32,
    /// The second from which on it is gone; 0: never.
    pub expiry: u32,
}

/// What was done to a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// It had this value, or none.
    Read(Option<Value>),
    /// It got this value, or was deleted.
    Write(Option<Value>),
    /// It had the first value and got the second.
    Swap(Value, Value),
    /// All keys were deleted, at a time.
    Flush(u32),
    /// There was no space.
    Nothing,
}

/// One operation of a client.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// What was done.
    pub kind: Kind,
    /// When it began.
    pub begun: u64,
    /// When the client knew of it; never, if it did not hear of it again.
    pub ended: Option<u64>,
}

impl Call {
    /// Whether a value may be gone when the call takes effect.
    fn misses(&self, value: Value, evicts: bool) -> bool {
        let ends_at = u64::from(value.expiry) * 1_000_000_000;
        let has_ended = self.ended.is_none_or(|ended| ended >= ends_at);
        evicts || (value.expiry != 0 && has_ended)
    }
}

/// Whether there is an order of the calls that explains them all.
pub fn is_linearizable(calls: &[Call], evicts: bool) -> bool {
    let mut calls: Vec<Call> = calls
        .iter()
        .copied()
        // A read that nobody saw says nothing.
        .filter(|call| call.ended.is_some() || !matches!(call.kind, Kind::Read(_)))
        .collect();
    calls.sort_by_key(|call| call.begun);
    let mut seen = HashSet::new();
    let done = vec![false; calls.len()];
    search(&calls, evicts, done, None, &mut seen)
}

fn search(
    calls: &[Call],
    evicts: bool,
    mut done: Vec<bool>,
    mut value: Option<Value>,
    seen: &mut HashSet<(Vec<bool>, Option<Value>)>,
) -> bool {
    // Depth first, without recursion: histories are long.
    let mut stack = Vec::new();
    let mut from = 0;
    loop {
        let first_end = calls
            .iter()
            .zip(&done)
            .filter(|(_, done)| !**done)
            .filter_map(|(call, _)| call.ended)
            .min();
        let Some(first_end) = first_end else {
            return true;
        };
        let next = (from..calls.len()).find(|index| {
            let call = &calls[*index];
            let fits = match call.kind {
                Kind::Read(None) => value.is_none_or(|value| call.misses(value, evicts)),
                Kind::Read(seen) => seen == value,
                Kind::Write(_) | Kind::Flush(_) | Kind::Nothing => true,
                Kind::Swap(old, _) => value == Some(old),
            };
            !done[*index] && call.begun <= first_end && fits
        });
        if let Some(index) = next {
            let before = value;
            match calls[index].kind {
                Kind::Nothing => {}
                Kind::Read(new) | Kind::Write(new) => value = new,
                Kind::Flush(_) => value = None,
                Kind::Swap(_, new) => value = Some(new),
            }
            done[index] = true;
            if seen.insert((done.clone(), value)) {
                stack.push((index, before));
                from = 0;
                continue;
            }
            done[index] = false;
            value = before;
            from = index + 1;
            continue;
        }
        let Some((index, before)) = stack.pop() else {
            return false;
        };
        done[index] = false;
        value = before;
        from = index + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(number: u32) -> Value {
        Value { number, expiry: 0 }
    }

    fn call(kind: Kind, begun: u64, ended: u64) -> Call {
        Call {
            kind,
            begun,
            ended: Some(ended),
        }
    }

    #[test]
    fn a_stale_read_is_found() {
        let write = call(Kind::Write(Some(value(1))), 0, 10);
        let later = call(Kind::Write(Some(value(2))), 20, 30);
        assert!(is_linearizable(
            &[write, later, call(Kind::Read(Some(value(2))), 40, 50)],
            false
        ));
        assert!(!is_linearizable(
            &[write, later, call(Kind::Read(Some(value(1))), 40, 50)],
            false
        ));
        assert!(is_linearizable(
            &[write, later, call(Kind::Read(Some(value(1))), 25, 50)],
            false
        ));
    }

    #[test]
    fn what_nobody_saw_end_may_happen_late_or_never() {
        let write = call(Kind::Write(Some(value(1))), 0, 10);
        let lost = Call {
            ended: None,
            ..call(Kind::Write(Some(value(2))), 5, 0)
        };
        let one = call(Kind::Read(Some(value(1))), 40, 50);
        let two = call(Kind::Read(Some(value(2))), 60, 70);
        assert!(is_linearizable(&[write, lost, one], false));
        assert!(is_linearizable(&[write, lost, one, two], false));
        let one_again = call(Kind::Read(Some(value(1))), 80, 90);
        assert!(!is_linearizable(&[write, lost, one, two, one_again], false));
    }

    #[test]
    fn a_swap_needs_what_it_swaps() {
        let write = call(Kind::Write(Some(value(1))), 0, 10);
        assert!(is_linearizable(
            &[write, call(Kind::Swap(value(1), value(2)), 20, 30)],
            false
        ));
        let first = call(Kind::Swap(value(1), value(2)), 20, 30);
        assert!(!is_linearizable(
            &[write, first, call(Kind::Swap(value(1), value(3)), 40, 50)],
            false
        ));
    }

    #[test]
    fn what_has_expired_or_made_room_is_gone_and_stays_so() {
        let mortal = Value {
            number: 1,
            expiry: 2,
        };
        let write = call(Kind::Write(Some(mortal)), 0, 10);
        let early = call(Kind::Read(None), 20, 1_999_999_999);
        let late = call(Kind::Read(None), 20, 2_000_000_000);
        let after = call(Kind::Read(Some(mortal)), 2_000_000_001, 2_000_000_002);
        assert!(!is_linearizable(&[write, early], false));
        assert!(is_linearizable(&[write, early], true));
        assert!(is_linearizable(&[write, late], false));
        assert!(!is_linearizable(&[write, late, after], false));
        assert!(!is_linearizable(&[write, early, after], true));
    }
}

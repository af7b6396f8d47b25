//! Filters the records of a range, and aggregates those that match.
//!
//! The state is a [`Select`], then the aggregate so far, then matching records as far as they fit.

use crate::{
    Away, BAD_ARGUMENT, DATA_MAX, DENIED, Fault, Frame, Memory, Procedure, STATE_MAX, Verdict,
};

/// What to filter. A record matches when `low <= field < high`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Select {
    /// Of the first record.
    pub from: u64,
    /// Behind the last record.
    pub to: u64,
    /// The least that matches.
    pub low: u64,
    /// The least above that does not.
    pub high: u64,
    /// Bytes of a record, 8 to 4096.
    pub record: u32,
    /// Where in a record the field is that is compared, 8 bytes.
    pub field_at: u32,
    /// Where in a record the field is that is added up, 8 bytes.
    pub sum_at: u32,
    /// About records on other machines.
    pub away: Away,
    /// Whether matching records are part of the answer. When they fill it, the procedure stops,
    /// and the client goes on from the state without them.
    pub collect: bool,
}

/// What is known of the records that match.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Aggregate {
    /// How many, modulo 2^64.
    pub count: u64,
    /// Of the field that is added up, modulo 2^64.
    pub sum: u64,
    /// Its least value; the greatest number if nothing matched.
    pub min: u64,
    /// Its greatest value; 0 if nothing matched.
    pub max: u64,
}

impl Aggregate {
    /// Of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            count: 0,
            sum: 0,
            min: u64::MAX,
            max: 0,
        }
    }

    /// Takes one value in.
    pub fn add(&mut self, value: u64) {
        // Both go on from what a client said: nothing that it says ends the thread.
        self.count = self.count.wrapping_add(1);
        self.sum = self.sum.wrapping_add(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }
}

impl Select {
    /// As a request's argument; with `aggregate` and `from` of an answer it goes on from there.
    #[must_use]
    pub fn to_bytes(self, aggregate: Aggregate) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let numbers = [
            self.from,
            self.to,
            self.low,
            self.high,
            u64::from(self.record) | u64::from(self.field_at) << 32,
            u64::from(self.sum_at) | u64::from(self.away as u32) << 32,
            u64::from(self.collect),
            aggregate.count,
            aggregate.sum,
            aggregate.min,
            aggregate.max,
        ];
        for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// From an answer: how far it is, what is known, and the records that were collected.
    #[must_use]
    pub fn of(answer: &[u8]) -> Option<(Self, Aggregate, &[u8])> {
        let head = answer.get(..HEAD_BYTES)?;
        let number = |index: usize| {
            let bytes = head.get(index * 8..index * 8 + 8).unwrap_or(&[0; 8]);
            bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
        };
        #[expect(clippy::cast_possible_truncation, reason = "halves of a number")]
        let halves = |index: usize| (number(index) as u32, (number(index) >> 32) as u32);
        let select = Self {
            from: number(0),
            to: number(1),
            low: number(2),
            high: number(3),
            record: halves(4).0,
            field_at: halves(4).1,
            sum_at: halves(5).0,
            away: Away::from_u32(halves(5).1)?,
            collect: number(6) == 1,
        };
        let aggregate = Aggregate {
            count: number(7),
            sum: number(8),
            min: number(9),
            max: number(10),
        };
        Some((select, aggregate, &answer[HEAD_BYTES..]))
    }

    /// Whether fields are inside records, records fit, and the range is one of whole records.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let inside = |at: u32| at.checked_add(8).is_some_and(|end| end <= self.record);
        let whole = |len: u64| len.is_multiple_of(u64::from(self.record));
        self.record as usize <= DATA_MAX
            && inside(self.field_at)
            && inside(self.sum_at)
            && self.to.checked_sub(self.from).is_some_and(whole)
            && !(self.collect && self.record as usize > STATE_MAX - HEAD_BYTES)
    }
}

/// Filters and aggregates; the answer is what [`Select::of`] reads.
pub struct Filter;

impl Procedure for Filter {
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict {
        let Some((mut select, mut aggregate, _)) = Select::of(frame.state()) else {
            return Verdict::Fail(BAD_ARGUMENT);
        };
        if !select.is_valid() {
            return Verdict::Fail(BAD_ARGUMENT);
        }
        let turn_end = select.to.min(select.from.saturating_add(BYTES_A_STEP));
        let mut verdict = Verdict::Again;
        while select.from < turn_end {
            match block(memory, frame, &mut select, &mut aggregate) {
                Ok(()) => {}
                Err(end) => {
                    verdict = end;
                    break;
                }
            }
        }
        if select.from >= select.to {
            verdict = Verdict::Done;
        }
        let head = select.to_bytes(aggregate);
        frame.state_mut()[..HEAD_BYTES].copy_from_slice(&head);
        verdict
    }
}

/// As many records as are here in one piece and fit the buffer.
fn block<M: Memory + ?Sized>(
    memory: &mut M,
    frame: &mut Frame,
    select: &mut Select,
    aggregate: &mut Aggregate,
) -> Result<(), Verdict> {
    let record = select.record as usize;
    let mut buffer = [0; DATA_MAX];
    let most = (DATA_MAX / record * record) as u64;
    let wanted = most.min(select.to - select.from);
    let here = frame.here(memory, select.from, wanted);
    // At least one: a record may lie across two pieces that are both here.
    let len = usize::try_from(here).unwrap_or(0) / record * record;
    let len = len.max(record);
    match frame.load(memory, select.from, &mut buffer[..len]) {
        Ok(()) => {}
        Err(Fault::Denied) => return Err(Verdict::Fail(DENIED)),
        Err(Fault::Elsewhere) => {
            let size = u32::try_from(wanted).unwrap_or(select.record);
            return Err(select.away.verdict(select.from, size));
        }
    }
    for bytes in buffer[..len].chunks_exact(record) {
        let field = number(bytes, select.field_at);
        if select.low <= field && field < select.high {
            if select.collect && !frame.push(bytes) {
                return Err(Verdict::Stop);
            }
            aggregate.add(number(bytes, select.sum_at));
        }
        select.from += u64::from(select.record);
    }
    Ok(())
}

fn number(record: &[u8], at: u32) -> u64 {
    let bytes = record.get(at as usize..at as usize + 8);
    bytes.map_or(0, |b| {
        let mut number = [0; 8];
        number.copy_from_slice(b);
        u64::from_le_bytes(number)
    })
}

const HEAD_BYTES: usize = 88;
const BYTES_A_STEP: u64 = 64 << 10;

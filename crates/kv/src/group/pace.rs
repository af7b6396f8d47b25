//! How a partition's time goes on: with the clock that does not jump, and only slowly towards what time it
//! is said to be.
//!
//! Items end by it and it is never turned back, so one wrong reading of the system's clock must not move it
//! far: it may lead the monotonic clock by less than a second, and is otherwise corrected by one second in
//! [`CORRECTION_PART`]. A process that takes a partition over goes on from what its backups know.

const SECOND_NS: u64 = 1_000_000_000;

/// Of so many seconds one may be left out, or be one more; arbitrary: a minute is made up for in ten.
const CORRECTION_PART: u64 = 10;

/// See the [module](self). Made again by each process that owns a partition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// When the present time was due by the monotonic clock: less than a second ahead at the most.
    due_ns: Option<u64>,
    /// Seconds that have not been used for a correction.
    unused: u64,
}

impl Pace {
    /// What time follows `time`, where the system says that it is `said` (seconds since 1970), and `now_ns`
    /// is that of a clock that never jumps. A partition without time takes what is said.
    pub fn next(&mut self, time: u32, said: u32, now_ns: u64) -> u32 {
        let due_ns = match self.due_ns {
            Some(due_ns) if time != 0 => due_ns,
            _ => {
                self.due_ns = Some(now_ns);
                return if time == 0 { said } else { time };
            }
        };
        let passed = now_ns.saturating_sub(due_ns) / SECOND_NS;
        // Who is on time follows what is said within the second.
        let may_lead = now_ns >= due_ns;
        let (time, said) = (u64::from(time), u64::from(said));
        let mut steps = passed;
        if may_lead && said == time + passed + 1 {
            steps += 1;
        }
        self.due_ns = Some(due_ns + steps * SECOND_NS);
        let steady = time + steps;
        let allowed = (self.unused + passed) / CORRECTION_PART;
        let next = match said > steady {
            true => steady + allowed.min(said - steady),
            false => steady - allowed.min(steady - said).min(steps),
        };
        let used = next.abs_diff(steady) * CORRECTION_PART;
        self.unused = (self.unused + passed - used).min(CORRECTION_PART - 1);
        u32::try_from(next).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u32 = 1_700_000_000;

    /// A partition's time while the system's clock says what `said` makes of the true time, each tenth of a
    /// second.
    fn run(pace: &mut Pace, time: &mut u32, from: u64, seconds: u64, said: impl Fn(u64) -> u64) {
        for tenth in from * 10..(from + seconds) * 10 {
            let now_ns = tenth * SECOND_NS / 10;
            let said = said(u64::from(START) + tenth / 10);
            let before = *time;
            *time = pace.next(*time, u32::try_from(said).unwrap(), now_ns);
            assert!(*time >= before, "it is never turned back");
        }
    }

    #[test]
    fn it_is_the_time_where_clocks_are_right() {
        let (mut pace, mut time) = (Pace::default(), 0);
        run(&mut pace, &mut time, 0, 1, |now| now);
        assert_eq!(time, START);
        for second in 1..500 {
            run(&mut pace, &mut time, second, 1, |now| now);
            assert!(START + second as u32 - time <= 1, "{second}: {time}");
        }
        // Out of step with the system's seconds, too.
        let mut pace = Pace::default();
        for tenth in 0..500_u64 {
            let said = START + 500 + u32::try_from((tenth + 7) / 10).unwrap();
            time = pace.next(time, said, tenth * SECOND_NS / 10);
            assert!(said - time <= 2, "{tenth}: {time} {said}");
        }
        assert!(START + 550 - time <= 1);
    }

    #[test]
    fn a_jump_that_is_taken_back_is_hardly_noticed() {
        for days in [30, 365] {
            let (mut pace, mut time) = (Pace::default(), 0);
            run(&mut pace, &mut time, 0, 100, |now| now);
            run(&mut pace, &mut time, 100, 3, |now| now + days * 86_400);
            assert!(time <= START + 105, "{}", time - START);
            run(&mut pace, &mut time, 103, 100, |now| now);
            assert!(
                (START + 201..=START + 203).contains(&time),
                "{}",
                time - START
            );
            // And one back.
            run(&mut pace, &mut time, 203, 3, |now| now - days * 86_400);
            run(&mut pace, &mut time, 206, 100, |now| now);
            assert!(
                (START + 303..=START + 306).contains(&time),
                "{}",
                time - START
            );
        }
    }

    #[test]
    fn one_that_stays_is_made_up_for_slowly() {
        let (mut pace, mut time) = (Pace::default(), 0);
        run(&mut pace, &mut time, 0, 10, |now| now);
        run(&mut pace, &mut time, 10, 100, |now| now + 1000);
        assert!(
            (START + 115..=START + 125).contains(&time),
            "{}",
            time - START
        );
        run(&mut pace, &mut time, 110, 10_000, |now| now + 1000);
        assert!(
            (START + 11_108..=START + 11_110).contains(&time),
            "{}",
            time - START
        );
    }

    #[test]
    fn a_successor_goes_on_from_what_it_was_told() {
        let mut time = START + 5;
        let mut pace = Pace::default();
        run(&mut pace, &mut time, 50, 3, |now| now + 30 * 86_400);
        assert!(time <= START + 5 + 4, "{}", time - START);
    }
}

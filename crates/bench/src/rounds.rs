//! Rounds in which contenders alternate, and what each of them came to.

/// The numbers of `count` contenders in the order of a round: whoever goes first changes from round to
/// round.
pub(crate) fn turns(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |turn| (turn + round) % count)
}

/// What was measured: of whom, of what, and the sample; each contender has one for each round and case.
pub(crate) struct Samples<Who, Case, Sample>(Vec<(Who, Case, Sample)>);

impl<Who: PartialEq, Case: PartialEq, Sample> Samples<Who, Case, Sample> {
    /// Nothing yet.
    pub(crate) fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn push(&mut self, who: Who, case: Case, sample: Sample) {
        self.0.push((who, case, sample));
    }

    /// Cases of a contender, each once, in the order in which they were measured.
    pub(crate) fn cases(&self, who: &Who) -> Vec<&Case> {
        let mut cases = Vec::new();
        for (_, case, _) in self.0.iter().filter(|one| one.0 == *who) {
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases
    }

    /// A figure of both in each round.
    pub(crate) fn pairs(
        &self,
        (ours, theirs): (&Who, &Who),
        case: &Case,
        figure: impl Fn(&Sample) -> f64,
    ) -> Vec<(f64, f64)> {
        self.of(ours, case)
            .map(&figure)
            .zip(self.of(theirs, case).map(&figure))
            .collect()
    }

    fn of(&self, who: &Who, case: &Case) -> impl Iterator<Item = &Sample> {
        let mine = self
            .0
            .iter()
            .filter(move |one| one.0 == *who && one.1 == *case);
        mine.map(|one| &one.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contender_goes_first_in_turn() {
        let orders = [0, 1, 2].map(|round| turns(3, round).collect::<Vec<_>>());
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn figures_of_the_same_round_are_paired() {
        let mut samples = Samples::new();
        for (who, figure) in [("a", 1.0), ("b", 3.0), ("b", 4.0), ("a", 2.0)] {
            samples.push(who, "reads", figure);
        }
        samples.push("a", "writes", 9.0);
        let pairs = |case| samples.pairs((&"a", &"b"), &case, |figure| *figure);
        assert_eq!(pairs("reads"), [(1.0, 3.0), (2.0, 4.0)]);
        assert_eq!(pairs("writes"), []);
        assert_eq!(samples.cases(&"a"), [&"reads", &"writes"]);
    }
}

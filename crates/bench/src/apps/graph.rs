//! PageRank over a directed graph, and graphs with a power law to run it on.
//!
//! The graph is held as, for each vertex, those that point to it, in one array of 32-bit numbers:
//! a round reads that array from its start to its end, and a rank at random for each edge.

use cenote_measure::random::{STEP, mix};

/// A directed graph, edges grouped by their heads.
pub(super) struct Graph {
    /// Where each vertex' tails begin in `tails`; one more than there are vertices.
    starts: Vec<u32>,
    tails: Vec<u32>,
    /// Edges that leave each vertex.
    out_degrees: Vec<u32>,
}

impl Graph {
    /// A graph of the edges `(tail, head)` that `edges` yields, the same each time it is called:
    /// they are counted first and placed then, so that no second copy is held.
    pub(super) fn new<I>(vertex_count: usize, edges: impl Fn() -> I) -> Self
    where
        I: Iterator<Item = (u32, u32)>,
    {
        let mut starts = vec![0_u32; vertex_count + 1];
        let mut out_degrees = vec![0_u32; vertex_count];
        for (tail, head) in edges() {
            starts[head as usize + 1] += 1;
            out_degrees[tail as usize] += 1;
        }
        for vertex in 0..vertex_count {
            starts[vertex + 1] += starts[vertex];
        }
        let mut tails = vec![0; starts[vertex_count] as usize];
        let mut next = starts.clone();
        for (tail, head) in edges() {
            let at = &mut next[head as usize];
            tails[*at as usize] = tail;
            *at += 1;
        }
        Self {
            starts,
            tails,
            out_degrees,
        }
    }

    /// Of 2^`scale` vertices. Both ends of an edge are drawn with a density that falls with the
    /// power -2/3 of a vertex' place, which gives degrees a tail of the exponent 2.5, as social
    /// graphs have; places are scattered, so that popular vertices are not neighbours.
    pub(super) fn power_law(scale: u32, edge_count: u64, seed: u64) -> Self {
        let count = 1_u64 << scale;
        let draw = move |word: u64| {
            let unit = (word >> 11) as f64 / (1_u64 << 53) as f64;
            let place = (unit * unit * unit * count as f64) as u64;
            // Odd, so a permutation of the numbers below a power of two.
            (place.wrapping_mul(STEP | 1) & (count - 1)) as u32
        };
        Self::new(count as usize, || {
            (0..edge_count).map(move |edge| {
                let tail = mix(seed ^ (2 * edge));
                let head = mix(!seed ^ (2 * edge + 1));
                (draw(tail), draw(head))
            })
        })
    }

    fn vertex_count(&self) -> usize {
        self.out_degrees.len()
    }
}

/// Ranks between rounds.
pub(super) struct PageRank {
    ranks: Vec<f64>,
    /// Each vertex' rank by its out-degree, which is what it gives along each edge.
    shares: Vec<f64>,
}

impl PageRank {
    /// The same rank for each vertex.
    pub(super) fn new(graph: &Graph) -> Self {
        let count = graph.vertex_count();
        Self {
            ranks: vec![1.0 / count as f64; count],
            shares: vec![0.0; count],
        }
    }

    /// One round; what vertices without a way out hold is spread over all.
    pub(super) fn round(&mut self, graph: &Graph) {
        let count = graph.vertex_count() as f64;
        let mut stuck = 0.0;
        for ((share, rank), degree) in self
            .shares
            .iter_mut()
            .zip(&self.ranks)
            .zip(&graph.out_degrees)
        {
            if *degree == 0 {
                stuck += rank;
            } else {
                *share = rank / f64::from(*degree);
            }
        }
        let base = (1.0 - DAMPING) / count + DAMPING * stuck / count;
        for (rank, range) in self.ranks.iter_mut().zip(graph.starts.windows(2)) {
            let tails = &graph.tails[range[0] as usize..range[1] as usize];
            let given: f64 = tails.iter().map(|tail| self.shares[*tail as usize]).sum();
            *rank = base + DAMPING * given;
        }
    }

    /// Of all ranks: 1, but for rounding.
    pub(super) fn sum(&self) -> f64 {
        self.ranks.iter().sum()
    }
}

/// The usual damping factor.
const DAMPING: f64 = 0.85;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_those_of_the_textbook() {
        // The eleven pages of the usual picture, A to F and five more that point to B and E; its
        // percentages, A without links counted as a page that links to all.
        const A: u32 = 0;
        const B: u32 = 1;
        const C: u32 = 2;
        const D: u32 = 3;
        const E: u32 = 4;
        const F: u32 = 5;
        let mut edges = vec![
            (B, C),
            (C, B),
            (D, A),
            (D, B),
            (E, B),
            (E, D),
            (E, F),
            (F, B),
            (F, E),
        ];
        for page in 6..9 {
            edges.extend([(page, B), (page, E)]);
        }
        edges.extend([(9, E), (10, E)]);
        let graph = Graph::new(11, || edges.iter().copied());
        let mut ranks = PageRank::new(&graph);
        for _ in 0..200 {
            ranks.round(&graph);
        }
        let expected = [3.3, 38.4, 34.3, 3.9, 8.1, 3.9, 1.6, 1.6, 1.6, 1.6, 1.6];
        for (vertex, (rank, percent)) in ranks.ranks.iter().zip(expected).enumerate() {
            assert!(
                (rank * 100.0 - percent).abs() < 0.05,
                "vertex {vertex}: {rank}, {percent}%"
            );
        }
        assert!((ranks.sum() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_generated_graph_has_its_edges_and_a_heavy_tail() {
        let graph = Graph::power_law(12, 40_000, 5);
        assert_eq!(graph.tails.len(), 40_000);
        let sum: u64 = graph.out_degrees.iter().map(|one| u64::from(*one)).sum();
        assert_eq!(sum, 40_000);
        let mut degrees: Vec<u32> = graph.starts.windows(2).map(|two| two[1] - two[0]).collect();
        degrees.sort_unstable_by(|one, other| other.cmp(one));
        let popular: u32 = degrees[..41].iter().sum();
        // The first hundredth of places gets the cube root of a hundredth: 21.5%.
        let share = f64::from(popular) / 40_000.0;
        assert!((share - 0.215).abs() < 0.01, "{share}");
        let again = Graph::power_law(12, 40_000, 5);
        assert_eq!(graph.tails, again.tails);
    }
}

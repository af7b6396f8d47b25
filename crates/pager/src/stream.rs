//! Which pages are touched next: the majority trend of recent faults, for each of a few streams.
//!
//! Leap's detector looks for a stride that more than half of the last faults had (Boyer and Moore's
//! vote, first over a few, then over more). Leap tells processes apart; a region tells **streams**
//! apart by nearness, so that threads that walk through different parts do not hide each other.
//!
//! Pages of a [`Run`] are installed without a fault each. The last is the run's **marker** and is
//! not fetched: the fault there proves that the run was wanted, and the next is twice as long. A
//! fault elsewhere halves it. So a pattern that does not help costs a page now and then.

/// Longest run in pages: 256 KiB.
pub const RUN_MAX: u32 = 64;

/// Faults of a stream that vote; Leap's default.
const HISTORY: usize = 32;

/// Faults that vote first.
const WINDOW_MIN: usize = 8;

/// Streams that are told apart. Arbitrary: above the threads of most programs that scan.
const STREAMS: usize = 16;

/// A fault belongs to a stream when it is this near to what the stream did last, in pages. Longer
/// strides are not followed.
const NEAR: u32 = 1024;

/// Pages to fetch: `first`, `first + stride`, ... `count` of them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Run {
    /// The first page.
    pub first: u32,
    /// Pages from one to the next; not 0.
    pub stride: i64,
    /// How many, 1 to [`RUN_MAX`].
    pub count: u32,
}

impl Run {
    /// The pages, in order of expected use.
    pub fn pages(self) -> impl Iterator<Item = u32> {
        (0..i64::from(self.count)).map(move |at| (i64::from(self.first) + at * self.stride) as u32)
    }

    /// The page after the last.
    fn marker(self) -> u32 {
        (i64::from(self.first) + i64::from(self.count) * self.stride) as u32
    }
}

/// The streams of a region.
pub struct Streams {
    streams: Vec<Stream>,
    page_count: u32,
    /// Faults so far.
    clock: u64,
    /// Pages fetched in runs whose marker was reached.
    useful: u64,
    /// The stream of the last fault.
    current: usize,
}

struct Stream {
    last: u32,
    used_at: u64,
    history: [i64; HISTORY],
    len: usize,
    next: usize,
    /// The run that is out.
    out: Option<Out>,
    /// Length of the next run.
    window: u32,
}

#[derive(Clone, Copy)]
struct Out {
    run: Run,
    marker: u32,
    /// Pages that were fetched for it; others were there.
    fetched: u32,
}

impl Streams {
    /// For a region of `page_count` pages.
    #[must_use]
    pub fn new(page_count: u32) -> Self {
        Self {
            streams: Vec::with_capacity(STREAMS),
            page_count,
            clock: 0,
            useful: 0,
            current: 0,
        }
    }

    /// Pages fetched in runs that were reached to the end.
    #[must_use]
    pub fn useful(&self) -> u64 {
        self.useful
    }

    /// Notes a fault and says which pages to fetch beside it.
    pub fn fault(&mut self, page: u32) -> Option<Run> {
        self.clock += 1;
        self.current = self.stream_of(page);
        let stream = &mut self.streams[self.current];
        stream.used_at = self.clock;
        match stream.out.take() {
            Some(out) if out.marker == page => {
                self.useful += u64::from(out.fetched);
                stream.window = (stream.window * 2).min(RUN_MAX);
                stream.vote(out.run.stride);
            }
            out => {
                if out.is_some() {
                    stream.window = (stream.window / 2).max(1);
                }
                let delta = i64::from(page) - i64::from(stream.last);
                if delta != 0 {
                    stream.vote(delta);
                }
            }
        }
        stream.last = page;
        let stride = stream.trend()?;
        let first = i64::from(page) + stride;
        let room = if stride > 0 {
            (i64::from(self.page_count) - 1 - first) / stride
        } else {
            first / -stride
        };
        // The marker has to be in the region as well.
        let count = room.clamp(0, i64::from(stream.window)) as u32;
        if count == 0 || first < 0 || first >= i64::from(self.page_count) {
            return None;
        }
        let run = Run {
            first: first as u32,
            stride,
            count,
        };
        stream.out = Some(Out {
            run,
            marker: run.marker(),
            fetched: count,
        });
        Some(run)
    }

    /// Of the run that the last fault gave there was room for the first `passed` pages, and
    /// `fetched` of these were not there yet.
    pub fn note_fetched(&mut self, passed: u32, fetched: u32) {
        if let Some(stream) = self.streams.get_mut(self.current)
            && let Some(out) = &mut stream.out
        {
            out.run.count = passed;
            (out.marker, out.fetched) = (out.run.marker(), fetched);
        }
    }

    /// The stream that `page` belongs to; the one that rested longest begins again if there is none.
    fn stream_of(&mut self, page: u32) -> usize {
        let is_marker = |stream: &Stream| stream.out.is_some_and(|out| out.marker == page);
        if let Some(at) = self.streams.iter().position(is_marker) {
            return at;
        }
        let near = |stream: &Stream| {
            let distance = stream.last.abs_diff(page);
            (distance <= NEAR).then_some(distance)
        };
        let nearest = (0..self.streams.len())
            .filter_map(|at| Some((near(&self.streams[at])?, at)))
            .min();
        if let Some((_, at)) = nearest {
            return at;
        }
        let fresh = Stream::new(page);
        if self.streams.len() < STREAMS {
            self.streams.push(fresh);
            return self.streams.len() - 1;
        }
        let oldest = (0..STREAMS)
            .min_by_key(|at| self.streams[*at].used_at)
            .expect("there are streams");
        self.streams[oldest] = fresh;
        oldest
    }
}

impl Stream {
    fn new(page: u32) -> Self {
        Self {
            last: page,
            used_at: 0,
            history: [0; HISTORY],
            len: 0,
            next: 0,
            out: None,
            window: 1,
        }
    }

    fn vote(&mut self, delta: i64) {
        self.history[self.next] = delta;
        self.next = (self.next + 1) % HISTORY;
        self.len = (self.len + 1).min(HISTORY);
    }

    /// The stride that more than half of the last faults had: of the last few, or else of more.
    fn trend(&self) -> Option<i64> {
        let mut window = WINDOW_MIN;
        loop {
            if let Some(stride) = self.majority(window.min(self.len)) {
                return Some(stride);
            }
            if window >= self.len {
                return None;
            }
            window *= 2;
        }
    }

    fn majority(&self, window: usize) -> Option<i64> {
        // One fault's step is no trend.
        if window < 3 {
            return None;
        }
        let newest =
            || (1..=window).map(|back| self.history[(self.next + HISTORY - back) % HISTORY]);
        let (mut candidate, mut weight) = (0, 0);
        for delta in newest() {
            match weight {
                0 => (candidate, weight) = (delta, 1),
                _ if delta == candidate => weight += 1,
                _ => weight -= 1,
            }
        }
        let votes = newest().filter(|delta| *delta == candidate).count();
        (votes * 2 > window).then_some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Touches `pages` in order; (faults, pages fetched ahead, of these touched later).
    fn walk(pages: impl Iterator<Item = u32>) -> (u32, u32, u32) {
        let mut streams = Streams::new(1 << 20);
        let (mut ahead, mut touched) = (HashSet::new(), HashSet::new());
        let (mut faults, mut fetched) = (0, 0);
        for page in pages {
            if touched.contains(&page) || ahead.contains(&page) {
                touched.insert(page);
                continue;
            }
            touched.insert(page);
            faults += 1;
            if let Some(run) = streams.fault(page) {
                for page in run.pages() {
                    fetched += u32::from(ahead.insert(page));
                }
            }
        }
        (faults, fetched, ahead.intersection(&touched).count() as u32)
    }

    #[test]
    fn a_scan_faults_once_in_a_full_run() {
        let (faults, fetched, used) = walk(0..65_536);
        assert!(faults <= 65_536 / RUN_MAX + 12, "{faults} faults");
        assert!(fetched - used <= RUN_MAX, "{fetched} fetched, {used} used");
    }

    #[test]
    fn strides_and_downward_walks_are_followed() {
        for stride in [-1_i64, 3, -7, 700] {
            let count = 600;
            let first = if stride < 0 { 1 << 19 } else { 0 };
            let (faults, fetched, used) =
                walk((0..count).map(|at| (i64::from(first) + at * stride) as u32));
            assert!(faults <= 40, "stride {stride}: {faults} faults");
            assert!(fetched - used <= RUN_MAX, "stride {stride}");
        }
    }

    #[test]
    fn several_scans_at_once_do_not_hide_each_other() {
        let pages = (0..4_096).flat_map(|at| (0..8).map(move |stream| stream * 100_000 + at));
        let (faults, fetched, used) = walk(pages);
        assert!(faults <= 8 * (4_096 / RUN_MAX + 12), "{faults} faults");
        assert!(
            fetched - used <= 8 * RUN_MAX,
            "{fetched} fetched, {used} used"
        );
    }

    #[test]
    fn random_touches_fetch_hardly_anything() {
        let mut state = 7_u64;
        let (faults, fetched, _) = walk((0..20_000).map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 44) as u32
        }));
        assert!(
            fetched * 50 <= faults,
            "{fetched} fetched in {faults} faults"
        );
    }

    #[test]
    fn runs_stay_inside_the_region() {
        let mut streams = Streams::new(1_000);
        for page in (0..1_000).chain((0..1_000).rev()) {
            if let Some(run) = streams.fault(page) {
                assert!(run.pages().all(|page| page < 1_000), "{run:?}");
                assert!((1..=RUN_MAX).contains(&run.count), "{run:?}");
            }
        }
    }
}

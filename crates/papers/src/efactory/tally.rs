//! What is counted in a run, and what is told of it.

use cenote_measure::statistics::quantile;
use cenote_store::schemes::{GetStep, PutStep};

/// A step that a client took.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Taken {
    /// Of a PUT.
    Put(PutStep),
    /// Of a GET.
    Get(GetStep),
}

/// A GET or a PUT.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// Reads.
    Get,
    /// Writes.
    Put,
}

/// How an operation went.
#[derive(Clone, Copy, Debug)]
pub struct Ended {
    /// What it was.
    pub kind: Kind,
    /// How long it took.
    pub took_ps: u64,
    /// Checksums that it waited for, nanoseconds.
    pub check_ns: f64,
    /// Copies and flushes that it waited for, nanoseconds.
    pub persist_ns: f64,
    /// A GET that called the server.
    pub has_called: bool,
    /// A GET that returned a value that was not whole.
    pub is_torn: bool,
    /// A GET that returned a value that was not durable.
    pub is_undurable: bool,
}

/// A stretch of time of the series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bucket {
    /// Operations that ended.
    pub ended: u64,
    /// Calls for space that were refused.
    pub refused: u64,
    /// GETs, of those that ended, that called the server.
    pub called: u64,
    /// Versions that wait to be durable, at its end.
    pub backlog: u64,
    /// From allocation until durable, of the last version that the background made so.
    pub lag_ps: u64,
}

/// Width of a bucket: 1 ms.
pub const BUCKET_PS: u64 = 1_000_000_000;

/// Counts of one run.
#[derive(Clone, Debug)]
pub struct Tally {
    from_ps: u64,
    gets_ps: Vec<u64>,
    puts_ps: Vec<u64>,
    check_ns: f64,
    persist_ns: f64,
    called: u64,
    torn: u64,
    undurable: u64,
    refused: u64,
    begun: u64,
    ended: u64,
    backlog: u64,
    backlog_max: u64,
    lag_ps: u64,
    series: Vec<Bucket>,
    bucket: Bucket,
    trace: Option<Vec<Taken>>,
}

impl Tally {
    /// Latencies count from `from_ps` on; `has_trace`: each step is kept.
    #[must_use]
    pub fn new(from_ps: u64, has_trace: bool) -> Self {
        Self {
            from_ps,
            gets_ps: Vec::new(),
            puts_ps: Vec::new(),
            check_ns: 0.0,
            persist_ns: 0.0,
            called: 0,
            torn: 0,
            undurable: 0,
            refused: 0,
            begun: 0,
            ended: 0,
            backlog: 0,
            backlog_max: 0,
            lag_ps: 0,
            series: Vec::new(),
            bucket: Bucket::default(),
            trace: has_trace.then(Vec::new),
        }
    }

    /// Ends the buckets that are over.
    pub fn tick(&mut self, now_ps: u64) {
        while now_ps / BUCKET_PS > self.series.len() as u64 {
            let bucket = std::mem::take(&mut self.bucket);
            self.series.push(Bucket {
                backlog: self.backlog,
                lag_ps: self.lag_ps,
                ..bucket
            });
        }
    }

    /// An operation begins.
    pub fn begin(&mut self) {
        self.begun += 1;
    }

    /// A step of one.
    pub fn take(&mut self, step: Taken) {
        if let Some(trace) = &mut self.trace {
            trace.push(step);
        }
    }

    /// An operation ended.
    pub fn end(&mut self, now_ps: u64, ended: Ended) {
        self.ended += 1;
        self.bucket.ended += 1;
        self.bucket.called += u64::from(ended.has_called);
        if now_ps < self.from_ps {
            return;
        }
        match ended.kind {
            Kind::Get => self.gets_ps.push(ended.took_ps),
            Kind::Put => self.puts_ps.push(ended.took_ps),
        }
        self.check_ns += ended.check_ns;
        self.persist_ns += ended.persist_ns;
        self.called += u64::from(ended.has_called);
        self.torn += u64::from(ended.is_torn);
        self.undurable += u64::from(ended.is_undurable);
    }

    /// A call for space was refused.
    pub fn refuse(&mut self) {
        self.refused += 1;
        self.bucket.refused += 1;
    }

    /// One more version waits to be durable.
    pub fn wait(&mut self) {
        self.backlog += 1;
        self.backlog_max = self.backlog_max.max(self.backlog);
    }

    /// One of them is.
    pub fn settle(&mut self) {
        self.backlog -= 1;
    }

    /// The background made one durable so long after its allocation.
    pub fn lag(&mut self, lag_ps: u64) {
        self.lag_ps = lag_ps;
    }

    /// Versions that wait.
    #[must_use]
    pub fn backlog(&self) -> u64 {
        self.backlog
    }

    /// All of it, at the end; the use of things is not in it.
    #[must_use]
    pub fn measured(mut self, now_ps: u64) -> Measured {
        let elapsed_s = now_ps.saturating_sub(self.from_ps) as f64 / 1e12;
        self.gets_ps.sort_unstable();
        self.puts_ps.sort_unstable();
        let mut all = [self.gets_ps.as_slice(), &self.puts_ps].concat();
        all.sort_unstable();
        let count = all.len().max(1) as f64;
        let share = |part: u64| part as f64 / self.gets_ps.len().max(1) as f64;
        Measured {
            begun: self.begun,
            ended: self.ended,
            counted: all.len() as u64,
            ops_per_second: all.len() as f64 / elapsed_s.max(f64::MIN_POSITIVE),
            p50_us: at_us(&all, 500),
            p99_us: at_us(&all, 990),
            get_p50_us: at_us(&self.gets_ps, 500),
            put_p50_us: at_us(&self.puts_ps, 500),
            check_us: self.check_ns / count / 1e3,
            persist_us: self.persist_ns / count / 1e3,
            called_share: share(self.called),
            torn_share: share(self.torn),
            undurable_share: share(self.undurable),
            refused: self.refused,
            backlog: self.backlog,
            backlog_max: self.backlog_max,
            use_of: Use::default(),
            cleaning_ms: None,
            series: self.series,
            trace: self.trace.unwrap_or_default(),
        }
    }
}

fn at_us(sorted: &[u64], permille: usize) -> f64 {
    match sorted {
        [] => 0.0,
        sorted => quantile(sorted, permille) as f64 / 1e6,
    }
}

/// Shares of time, or of all cores' time, that things were in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Use {
    /// Cores that answer.
    pub cores: f64,
    /// The core in the background.
    pub background: f64,
    /// The link's busier way.
    pub link: f64,
}

/// What one run came to. Latencies and shares are of operations that ended after the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Operations that began, from the run's start.
    pub begun: u64,
    /// Those that ended.
    pub ended: u64,
    /// Those that count below.
    pub counted: u64,
    /// Of them, per second.
    pub ops_per_second: f64,
    /// The median.
    pub p50_us: f64,
    /// One of a hundred takes longer.
    pub p99_us: f64,
    /// Median of GETs; 0 without any.
    pub get_p50_us: f64,
    /// Median of PUTs; 0 without any.
    pub put_p50_us: f64,
    /// Checksums on the path of an operation, on average.
    pub check_us: f64,
    /// Copies and flushes of values there, on average.
    pub persist_us: f64,
    /// GETs that called the server.
    pub called_share: f64,
    /// GETs that returned a value that was not whole.
    pub torn_share: f64,
    /// GETs that returned a value that was not durable.
    pub undurable_share: f64,
    /// Calls for space that were refused, from the run's start.
    pub refused: u64,
    /// Versions that wait to be durable, at the end.
    pub backlog: u64,
    /// The most that waited.
    pub backlog_max: u64,
    /// From the run's start.
    pub use_of: Use,
    /// How long cleaning took, where it ended.
    pub cleaning_ms: Option<f64>,
    /// By the millisecond, from the run's start.
    pub series: Vec<Bucket>,
    /// Steps, if they were kept.
    pub trace: Vec<Taken>,
}

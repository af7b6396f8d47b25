//! What of the spans is dropped: how many wait to be sent, how many were not, and why.
//!
//! OpenTelemetry's queue is bounded, and says nothing of what it drops. [`Gate`] is in front of it and
//! [`Counted`] behind it, so that both ends are known.
//!
//! Invariant: a span that passed the gate is in the queue or with the exporter; the count of those
//! never passes the queue's length.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{Span, SpanData, SpanExporter, SpanProcessor};

/// Between two warnings.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// The books of both ends of the queue.
#[derive(Debug)]
pub(super) struct Losses {
    queued: AtomicUsize,
    queue_spans: usize,
    dropped: AtomicU64,
    told: Mutex<Told>,
}

#[derive(Debug, Default)]
struct Told {
    /// Spans that the last warning counted.
    dropped: u64,
    at: Option<Instant>,
    /// Why the last request failed, as far as it is known.
    reason: Option<String>,
}

impl Losses {
    pub fn new(queue_spans: usize) -> Self {
        Self {
            queued: AtomicUsize::new(0),
            queue_spans,
            dropped: AtomicU64::new(0),
            told: Mutex::default(),
        }
    }

    /// Notes why spans are about to be dropped.
    pub fn fail(&self, reason: String) {
        self.told().reason = Some(reason);
    }

    /// Takes a place in the queue; false where there is none, and the span is dropped.
    fn enter(&self) -> bool {
        let enter = |queued| (queued < self.queue_spans).then_some(queued + 1);
        let (set, fetch) = (Ordering::AcqRel, Ordering::Acquire);
        let has_room = self.queued.fetch_update(set, fetch, enter).is_ok();
        if !has_room {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// So many have left the queue.
    fn leave(&self, spans: usize) {
        self.queued.fetch_sub(spans, Ordering::AcqRel);
    }

    /// What a warning has to say, if one is due: spans dropped since the last, in all, and why.
    fn news(&self, now: Instant) -> Option<(u64, u64, String)> {
        let total = self.dropped.load(Ordering::Relaxed);
        let mut told = self.told();
        let is_early = |at| now.saturating_duration_since(at) < TELL_EVERY;
        if total == told.dropped || told.at.is_some_and(is_early) {
            return None;
        }
        told.at = Some(now);
        let since = total - std::mem::replace(&mut told.dropped, total);
        let reason = told.reason.take();
        Some((
            since,
            total,
            reason.unwrap_or_else(|| "the queue is full".to_owned()),
        ))
    }

    fn tell(&self, now: Instant) {
        if let Some((dropped, total, reason)) = self.news(now) {
            tracing::warn!(
                dropped,
                total,
                reason,
                "the trace collector does not accept spans"
            );
        }
    }

    /// Says what was not said yet, once. Spans that nobody took up to the end count as dropped.
    pub fn tell_at_the_end(&self) {
        let left = self.queued.load(Ordering::Acquire) as u64;
        self.dropped.fetch_add(left, Ordering::Relaxed);
        self.told().at = None;
        self.tell(Instant::now());
    }

    fn told(&self) -> std::sync::MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets spans into the queue while it has room.
#[derive(Debug)]
pub(super) struct Gate<P> {
    queue: P,
    losses: Arc<Losses>,
}

impl<P> Gate<P> {
    pub fn new(queue: P, losses: Arc<Losses>) -> Self {
        Self { queue, losses }
    }
}

impl<P: SpanProcessor> SpanProcessor for Gate<P> {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.queue.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.losses.enter() {
            self.queue.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.queue.force_flush()
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.queue.shutdown_with_timeout(limit)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.queue.set_resource(resource);
    }
}

/// Counts what leaves the queue, and what of it is not taken.
#[derive(Debug)]
pub(super) struct Counted<E> {
    exporter: E,
    losses: Arc<Losses>,
}

impl<E> Counted<E> {
    pub fn new(exporter: E, losses: Arc<Losses>) -> Self {
        Self { exporter, losses }
    }
}

impl<E: SpanExporter> SpanExporter for Counted<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        self.losses.leave(spans);
        if let Err(error) = &result {
            let dropped = u64::try_from(spans).unwrap_or(u64::MAX);
            self.losses.dropped.fetch_add(dropped, Ordering::Relaxed);
            let mut told = self.losses.told();
            told.reason.get_or_insert_with(|| error.to_string());
        }
        self.losses.tell(Instant::now());
        result
    }

    fn shutdown_with_timeout(&self, limit: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(limit)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use opentelemetry::trace::{Tracer as _, TracerProvider as _};
    use opentelemetry_sdk::error::OTelSdkError;
    use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};

    use super::*;

    /// Says that it has a batch, and takes it when it is told to.
    #[derive(Debug)]
    struct Slow(Mutex<(Sender<usize>, Receiver<OTelSdkResult>)>);

    impl SpanExporter for Slow {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            let (has, goes_on) = &*self.0.lock().expect("nobody panicked with it");
            let is_over = has.send(batch.len()).is_err();
            let told = goes_on.recv().ok().filter(|_| !is_over);
            told.unwrap_or(Ok(()))
        }
    }

    #[test]
    fn a_collector_that_does_not_answer_costs_spans_and_neither_time_nor_memory() {
        let ((has, batches), (go_on, goes_on)) = (channel(), channel());
        let losses = Arc::new(Losses::new(4));
        let exporter = Counted::new(Slow(Mutex::new((has, goes_on))), Arc::clone(&losses));
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(4)
            .with_max_export_batch_size(1)
            .with_scheduled_delay(Duration::from_millis(1))
            .build();
        let queue = BatchSpanProcessor::new(exporter, config);
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Gate::new(queue, Arc::clone(&losses)))
            .build();
        let tracer = provider.tracer("test");
        drop(tracer.start("first"));
        assert_eq!(batches.recv(), Ok(1));
        for _ in 0..9 {
            drop(tracer.start("more"));
        }
        // The one that is being sent, and three that wait.
        assert_eq!(losses.queued.load(Ordering::Acquire), 4);
        assert_eq!(losses.dropped.load(Ordering::Acquire), 6);
        let refused = OTelSdkError::InternalFailure("refused".to_owned());
        go_on.send(Err(refused)).expect("the exporter waits");
        assert_eq!(batches.recv(), Ok(1));
        let end = provider.shutdown_with_timeout(Duration::from_millis(1));
        assert!(matches!(
            end,
            Err(OTelSdkError::InternalFailure(_) | OTelSdkError::Timeout(_))
        ));
        assert_eq!(losses.dropped.load(Ordering::Acquire), 7);
        losses.tell_at_the_end();
        assert_eq!(losses.dropped.load(Ordering::Acquire), 10);
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_has_room_again_once_it_is_sent() {
        let losses = Losses::new(2);
        assert_eq!([0; 3].map(|_: i32| losses.enter()), [true, true, false]);
        losses.leave(2);
        assert_eq!([0; 3].map(|_: i32| losses.enter()), [true, true, false]);
        let (since, total, reason) = losses.news(Instant::now()).expect("two were dropped");
        assert_eq!((since, total), (2, 2));
        assert!(reason.contains("queue"), "{reason}");
    }

    #[test]
    fn a_warning_comes_once_in_a_while_and_counts_all_since_the_last() {
        let losses = Losses::new(0);
        let begun = Instant::now();
        assert_eq!(losses.news(begun), None);
        losses.fail("refused".to_owned());
        assert!(!losses.enter());
        assert_eq!(losses.news(begun), Some((1, 1, "refused".to_owned())));
        assert!(!losses.enter() && !losses.enter());
        assert_eq!(losses.news(begun + TELL_EVERY / 2), None);
        let (since, total, _) = losses.news(begun + TELL_EVERY).expect("it is due");
        assert_eq!((since, total), (2, 3));
        assert_eq!(losses.news(begun + TELL_EVERY * 3), None, "nothing is new");
    }
}

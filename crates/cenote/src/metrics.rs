//! `--metrics ADDR`: what is counted, over HTTP, as OpenMetrics or as Prometheus' older text; and
//! for probes `/healthz`, which says that the process answers, and `/readyz`, that it does its work.
//!
//! One thread, on which hyper serves every connection at once, and a few that put answers together. A
//! connection carries one request and lasts [`CONNECTION_LIMIT`] at most; there are at most
//! [`CONNECTIONS_MAX`], [`SOURCE_CONNECTIONS_MAX`] from one address, and above that the oldest goes.
//! Loopback only unless the operator says otherwise in so many words.

mod text;

use std::convert::Infallible;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_fabric::HostPort;
use cenote_latency::Latency;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::connections::Connections;
use crate::{hints, listen_addresses};

/// Longest request head in bytes, the least that hyper takes; scrapers send a few hundred.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// How long a request's head may take to arrive.
const HEAD_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection may last, its answer included.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Connections open at once: a handful of scrapers, and strangers.
const CONNECTIONS_MAX: usize = 64;
/// Of them from one address, so that one address cannot push out all others.
const SOURCE_CONNECTIONS_MAX: usize = 16;
/// Answers put together at once, each on a thread of its own.
const ANSWERS_MAX: usize = 4;

/// Says why a process does not do its work now; `None` where it does. Asked at each `/readyz`, and
/// may wait for the process' other threads.
pub type Unready = Box<dyn Fn() -> Option<String> + Send + Sync>;

/// Serves `registry` and `unready` until the process ends; the address, with its real port.
///
/// # Errors
/// The address is not loopback and `allow_remote` is not set, or it cannot be resolved or bound.
pub fn serve(
    at: &HostPort,
    allow_remote: bool,
    registry: Registry,
    unready: Unready,
) -> Result<SocketAddr> {
    let address = resolved(at, allow_remote)?;
    let listener = TcpListener::bind(address).map_err(|error| {
        let remedy = hints::of_listening(error.kind()).unwrap_or_default();
        Failure::new(format!("--metrics {at}: {error}"), remedy)
    })?;
    listener.set_nonblocking(true)?;
    let bound = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(ANSWERS_MAX)
        .thread_name("metrics-answer")
        .build()
        .context("start the metrics runtime")?;
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            if let Err(error) = runtime.block_on(accept(listener, registry, unready)) {
                tracing::error!(%error, "metrics are no longer served");
            }
        })
        .context("start the metrics thread")?;
    Ok(bound)
}

/// Where [`serve`] listens.
///
/// # Errors
/// The address is not loopback and `allow_remote` is not set, or it cannot be resolved.
pub fn resolved(at: &HostPort, allow_remote: bool) -> Result<SocketAddr> {
    let address = listen_addresses::resolved("--metrics", at)?;
    if !address.ip().is_loopback() && !allow_remote {
        return Err(Failure::usage(
            format!("--metrics {at}: reachable from other machines"),
            "use a loopback address, or add --allow-remote",
        )
        .into());
    }
    Ok(address)
}

/// Name, help, unit and value.
pub type Metric = (&'static str, &'static str, Option<Unit>, u64);

/// A table of [metrics](Metric): the name, its unit where it has one, what it says, and its value.
macro_rules! table {
    ($($name:literal $(in $unit:ident)?: $help:literal, $value:expr;)*) => {
        vec![$(($name, $help, $crate::metrics::table!(@unit $($unit)?), $value as u64)),*]
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(prometheus_client::registry::Unit::$unit) };
}
pub(crate) use table;

/// Encodes values that go up and down.
///
/// # Errors
/// Those of the encoder.
pub fn gauges(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> Result<(), fmt::Error> {
    for (name, help, unit, value) in metrics {
        let gauge = ConstGauge::new(i64::try_from(*value).unwrap_or(i64::MAX));
        gauge.encode(encoder.encode_descriptor(
            name,
            help,
            unit.as_ref(),
            gauge.metric_type(),
        )?)?;
    }
    Ok(())
}

/// Encodes values that only go up.
///
/// # Errors
/// Those of the encoder.
pub fn counters(encoder: &mut DescriptorEncoder<'_>, metrics: &[Metric]) -> Result<(), fmt::Error> {
    for (name, help, unit, value) in metrics {
        let counter = ConstCounter::new(*value);
        counter.encode(encoder.encode_descriptor(
            name,
            help,
            unit.as_ref(),
            counter.metric_type(),
        )?)?;
    }
    Ok(())
}

/// Encodes how long something took.
///
/// # Errors
/// Those of the encoder.
pub fn histogram(
    encoder: &mut DescriptorEncoder<'_>,
    name: &'static str,
    help: &'static str,
    latency: &Latency,
) -> Result<(), fmt::Error> {
    let unit = Some(&Unit::Seconds);
    let family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    encode_histogram(family, latency)
}

/// Encodes how long something took by what was asked for.
///
/// # Errors
/// Those of the encoder.
pub fn histograms(
    encoder: &mut DescriptorEncoder<'_>,
    name: &'static str,
    help: &'static str,
    latencies: &[(&'static str, Latency)],
) -> Result<(), fmt::Error> {
    let unit = Some(&Unit::Seconds);
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
    for (operation, latency) in latencies {
        encode_histogram(family.encode_family(&[("operation", *operation)])?, latency)?;
    }
    Ok(())
}

fn encode_histogram(mut metric: MetricEncoder<'_>, latency: &Latency) -> Result<(), fmt::Error> {
    // A bucket for each octave from 1 us to 17 s.
    let octaves = (10..=34).map(|bits| (1_u64 << bits) - 1);
    let mut before = 0;
    let mut buckets: Vec<(f64, u64)> = octaves
        .map(|limit_ns| {
            let within = latency.within(limit_ns);
            let count = within - before;
            before = within;
            (limit_ns as f64 / 1e9, count)
        })
        .collect();
    let count = latency.values.count;
    buckets.push((f64::INFINITY, count.saturating_sub(before)));
    let sum = latency.sum_ns as f64 / 1e9;
    metric.encode_histogram::<Vec<(String, String)>>(sum, count, &buckets, None)
}

/// Takes connections for ever.
async fn accept(
    listener: TcpListener,
    mut registry: Registry,
    unready: Unready,
) -> std::io::Result<()> {
    let dropped = Counter::<u64>::default();
    registry.register(
        "cenote_metrics_connections_dropped",
        "Connections to this page that were closed to make room for others",
        dropped.clone(),
    );
    let build = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("arch", std::env::consts::ARCH),
    ];
    let help = "The program that answers";
    registry.register("cenote_build", help, Info::new(build.to_vec()));
    let page = Page {
        registry: Arc::new(registry),
        unready: Arc::from(unready),
        turns: Arc::new(Semaphore::new(ANSWERS_MAX)),
    };
    let open = Connections::new(CONNECTIONS_MAX, SOURCE_CONNECTIONS_MAX);
    let converse = |stream, _| converse(stream, page.clone());
    let dropped = || {
        dropped.inc();
    };
    open.accept(listener, "metrics", converse, dropped).await
}

/// What is served.
#[derive(Clone)]
struct Page {
    registry: Arc<Registry>,
    unready: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    /// One for each answer that may be put together at once. Who waits for one has nothing under way: what it asked
    /// for goes with its connection.
    turns: Arc<Semaphore>,
}

/// Serves one connection to its end.
async fn converse(stream: TcpStream, page: Page) {
    let service = service_fn(move |request| answer(request, page.clone()));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(CONNECTION_LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "metrics request dropped"),
        Err(_) => tracing::debug!("metrics request took longer than {CONNECTION_LIMIT:?}"),
    }
}

async fn answer(
    request: Request<Incoming>,
    page: Page,
) -> Result<Response<Full<Bytes>>, Infallible> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
        let allowed = hyper::header::HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, allowed);
        return Ok(response);
    }
    match request.uri().path() {
        "/metrics" => {}
        "/healthz" => return Ok(said(StatusCode::OK, "ok\n".to_owned())),
        "/readyz" => return Ok(readiness(page).await),
        _ => return Ok(empty(StatusCode::NOT_FOUND)),
    }
    let accept = request.headers().get(ACCEPT);
    let is_open = text::takes_open_metrics(accept.and_then(|kinds| kinds.to_str().ok()));
    let turn = page.turns.acquire_owned().await;
    // Asking a volume or a host may wait for its thread; other connections do not.
    let encoded = tokio::task::spawn_blocking(move || {
        let mut page_text = String::new();
        let encoded = prometheus_client::encoding::text::encode(&mut page_text, &page.registry);
        if !is_open {
            page_text = text::of(&page_text);
        }
        // The connection may be gone by now: the turn ends with the work, not with whoever asked.
        drop(turn);
        encoded.map(|()| page_text)
    });
    Ok(match encoded.await {
        Ok(Ok(text)) => {
            let mut response = Response::new(Full::new(Bytes::from(text)));
            let kind = if is_open { OPEN_METRICS } else { text::KIND };
            let kind = hyper::header::HeaderValue::from_static(kind);
            response.headers_mut().insert(CONTENT_TYPE, kind);
            response
        }
        Ok(Err(error)) => {
            tracing::warn!(%error, "encode metrics");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
        Err(error) => {
            tracing::error!(%error, "gather metrics");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    })
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether the process does its work, and why not.
async fn readiness(page: Page) -> Response<Full<Bytes>> {
    let turn = page.turns.acquire_owned().await;
    let asked = tokio::task::spawn_blocking(move || {
        let unready = (page.unready)();
        drop(turn);
        unready
    });
    match asked.await {
        Ok(None) => said(StatusCode::OK, "ready\n".to_owned()),
        Ok(Some(reason)) => said(StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
        Err(error) => {
            tracing::error!(%error, "tell whether it is ready");
            empty(StatusCode::INTERNAL_SERVER_ERROR)
        }
    }
}

fn said(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

fn empty(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Condvar, Mutex};

    use prometheus_client::collector::Collector;
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    /// Longer than anything here takes on a loaded machine, shorter than idle connections one by one.
    const LIMIT: Duration = Duration::from_secs(30);

    fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn ready() -> Unready {
        Box::new(|| None)
    }

    fn served() -> SocketAddr {
        let mut registry = Registry::default();
        let gauge = Gauge::<i64>::default();
        gauge.set(42);
        registry.register_with_unit("depth", "How deep", Unit::Bytes, gauge);
        serve(&"localhost:0".parse().unwrap(), false, registry, ready()).unwrap()
    }

    #[test]
    fn a_scrape_has_values_help_and_the_end_mark() {
        let asked = b"GET /metrics?x=1 HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
        let text = exchange(served(), asked);
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
        assert!(
            text.contains("application/openmetrics-text; version=1.0.0"),
            "{text}"
        );
        assert!(text.contains("# HELP depth_bytes How deep"), "{text}");
        assert!(text.contains("\ndepth_bytes 42\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn who_asks_for_nothing_else_gets_the_older_text() {
        let text = exchange(served(), b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.contains("text/plain; version=0.0.4"), "{text}");
        let (_, page) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(
            text::prometheus::faults(page),
            Vec::<String>::new(),
            "{page}"
        );
        assert!(
            page.contains("\ncenote_metrics_connections_dropped_total 0\n"),
            "{page}"
        );
        let version = env!("CARGO_PKG_VERSION");
        assert!(
            page.contains(&format!("cenote_build_info{{version=\"{version}\"")),
            "{page}"
        );
        assert!(!page.contains("# EOF"), "{page}");
    }

    #[test]
    fn other_requests_are_refused_and_the_next_is_still_served() {
        let address = served();
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
            (b"hello\r\n\r\n", "400"),
            (b"\xff\xfe \x00 x\r\n\r\n", "400"),
        ] {
            let text = exchange(address, request);
            assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
        }
        assert!(exchange(address, b"GET /metrics HTTP/1.0\r\n\r\n").contains("depth_bytes 42"));
    }

    #[test]
    fn probes_tell_a_process_that_answers_from_one_that_does_its_work() {
        let is_away = Arc::new(AtomicBool::new(true));
        let told = Arc::clone(&is_away);
        let unready = move || told.load(Ordering::SeqCst).then(|| "it drains".to_owned());
        let at = "127.0.0.1:0".parse().unwrap();
        let address = serve(&at, false, Registry::default(), Box::new(unready)).unwrap();
        let healthy = || exchange(address, b"GET /healthz HTTP/1.1\r\n\r\n");
        let asked = || exchange(address, b"GET /readyz HTTP/1.1\r\n\r\n");
        assert!(healthy().starts_with("HTTP/1.1 200"), "{}", healthy());
        let text = asked();
        assert!(text.starts_with("HTTP/1.1 503"), "{text}");
        assert!(text.ends_with("\r\n\r\nit drains\n"), "{text}");
        is_away.store(false, Ordering::SeqCst);
        assert!(asked().starts_with("HTTP/1.1 200"), "{}", asked());
        assert!(healthy().ends_with("\r\n\r\nok\n"), "{}", healthy());
    }

    #[test]
    fn an_endless_request_is_cut_at_the_bound() {
        let mut stream = TcpStream::connect(served()).unwrap();
        let mut head = b"GET /metrics HTTP/1.1\r\nX: ".to_vec();
        head.resize(4 * HEAD_BYTES_MAX, b'a');
        // The server may close while we still write; then writing fails, as it should.
        let sent = stream.write_all(&head);
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        assert!(reply.starts_with(b"HTTP/1.1 431") || sent.is_err() || read.is_err());
        assert!(!reply.starts_with(b"HTTP/1.1 200"));
    }

    #[test]
    fn idle_connections_hold_nobody_up_and_the_oldest_go() {
        let address = served();
        // Far more than there are slots: each would have been waited for, one after the other.
        let mut idle: Vec<_> = (0..3 * CONNECTIONS_MAX)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        let text = exchange(address, b"GET /metrics HTTP/1.1\r\n\r\n");
        assert!(text.contains("\ndepth_bytes 42\n"), "{text}");
        let dropped = text
            .lines()
            .find_map(|line| line.strip_prefix("cenote_metrics_connections_dropped_total "));
        assert_ne!(dropped.unwrap(), "0");
        idle[0].set_read_timeout(Some(LIMIT)).unwrap();
        let closed = idle[0].read_to_end(&mut Vec::new());
        assert!(
            matches!(&closed, Ok(0)),
            "the oldest is still open: {closed:?}"
        );
    }

    /// A figure that nobody gets before the gate is open.
    #[derive(Debug, Default)]
    struct Gate {
        is_open: Mutex<bool>,
        opens: Condvar,
        asked: AtomicUsize,
    }

    #[derive(Debug)]
    struct Gated(Arc<Gate>);

    impl Collector for Gated {
        fn encode(&self, _: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
            self.0.asked.fetch_add(1, Ordering::SeqCst);
            let mut is_open = self.0.is_open.lock().unwrap();
            while !*is_open {
                is_open = self.0.opens.wait(is_open).unwrap();
            }
            Ok(())
        }
    }

    #[test]
    fn nobody_works_for_connections_that_had_to_go() {
        let gate = Arc::new(Gate::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Gated(Arc::clone(&gate))));
        let address = serve(&"127.0.0.1:0".parse().unwrap(), false, registry, ready()).unwrap();
        let mut flood: Vec<TcpStream> = (0..8 * SOURCE_CONNECTIONS_MAX)
            .map(|_| {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
                stream
            })
            .collect();
        let kept = flood.split_off(flood.len() - SOURCE_CONNECTIONS_MAX);
        for mut gone in flood {
            // The end of it, or a reset where its request was not read.
            let closed = gone.read_to_end(&mut Vec::new());
            assert!(!matches!(closed, Ok(1..)), "{closed:?}");
        }
        *gate.is_open.lock().unwrap() = true;
        gate.opens.notify_all();
        for mut stream in kept {
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            assert!(text.contains("cenote_build_info"), "{text}");
        }
        let asked = gate.asked.load(Ordering::SeqCst);
        assert!(asked <= ANSWERS_MAX + SOURCE_CONNECTIONS_MAX, "{asked}");
    }

    #[test]
    fn an_address_that_others_reach_needs_to_be_meant() {
        let anywhere = "0.0.0.0:0".parse().unwrap();
        let error = serve(&anywhere, false, Registry::default(), ready()).unwrap_err();
        assert!(error.to_string().contains("other machines"), "{error:#}");
    }
}

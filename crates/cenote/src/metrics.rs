//! `--metrics ADDR`: Prometheus text over the least HTTP that a scraper needs.
//!
//! One thread, one connection at a time, one request per connection. A request has
//! at most [`REQUEST_BYTES_MAX`] and takes at most [`REQUEST_LIMIT`]; whoever is slower
//! is dropped. Loopback only unless the operator says otherwise in so many words.

use std::fmt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::failure::Failure;

/// Longest request head in bytes; scrapers send a few hundred.
const REQUEST_BYTES_MAX: usize = 8 * 1024;
/// How long a request may take to arrive, and its answer to be taken.
const REQUEST_LIMIT: Duration = Duration::from_secs(2);

/// Serves `registry` until the process ends; the address, with its real port.
///
/// # Errors
/// The address is not loopback and `allow_remote` is not set, or it cannot be bound.
pub fn serve(address: SocketAddr, allow_remote: bool, registry: Registry) -> Result<SocketAddr> {
    if !address.ip().is_loopback() && !allow_remote {
        return Err(Failure::usage(
            format!("--metrics {address}: other machines could read it"),
            "a loopback address, or --allow-remote to mean it",
        )
        .into());
    }
    let listener = TcpListener::bind(address).with_context(|| format!("--metrics {address}"))?;
    let bound = listener.local_addr()?;
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            for stream in listener.incoming() {
                if let Err(error) = stream
                    .map_err(Into::into)
                    .and_then(|s| answer(s, &registry))
                {
                    tracing::debug!(error = format!("{error:#}"), "metrics request dropped");
                }
            }
        })
        .context("start the metrics thread")?;
    Ok(bound)
}

/// Name, help, unit and value.
pub type Metric = (&'static str, &'static str, Option<Unit>, u64);

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

fn answer(mut stream: TcpStream, registry: &Registry) -> Result<()> {
    let deadline = Instant::now() + REQUEST_LIMIT;
    stream.set_write_timeout(Some(REQUEST_LIMIT))?;
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("request took longer than {REQUEST_LIMIT:?}");
        }
        stream.set_read_timeout(Some(left))?;
        let count = stream.read(&mut chunk)?;
        if count == 0 {
            bail!("closed before the request ended");
        }
        head.extend_from_slice(&chunk[..count]);
        if head.len() > REQUEST_BYTES_MAX {
            return respond(&mut stream, "431 Request Header Fields Too Large", "");
        }
    }
    match route(&head) {
        Route::Metrics => {
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, registry)?;
            respond(&mut stream, "200 OK", &text)
        }
        Route::Refused(status) => respond(&mut stream, status, ""),
    }
}

#[derive(Debug, Eq, PartialEq)]
enum Route {
    Metrics,
    Refused(&'static str),
}

fn route(head: &[u8]) -> Route {
    let line = head.split(|&b| b == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    match words.as_slice() {
        [b"GET", path, version] if version.starts_with(b"HTTP/1.") => {
            let path = path.split(|&b| b == b'?').next().unwrap_or_default();
            if path == b"/metrics" {
                Route::Metrics
            } else {
                Route::Refused("404 Not Found")
            }
        }
        [_, _, version] if version.starts_with(b"HTTP/1.") => {
            Route::Refused("405 Method Not Allowed")
        }
        _ => Route::Refused("400 Bad Request"),
    }
}

fn respond(stream: &mut TcpStream, status: &str, body: &str) -> Result<()> {
    let head = format!(
        "HTTP/1.0 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;

    fn exchange(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn served() -> SocketAddr {
        let mut registry = Registry::default();
        let gauge: Gauge = Gauge::default();
        gauge.set(42);
        registry.register("depth_bytes", "How deep", gauge);
        serve("127.0.0.1:0".parse().unwrap(), false, registry).unwrap()
    }

    #[test]
    fn a_scrape_gets_every_metric_and_its_help() {
        let text = exchange(served(), b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
        assert!(text.contains("# HELP depth_bytes How deep"), "{text}");
        assert!(text.contains("\ndepth_bytes 42\n"), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
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
            assert!(text.starts_with(&format!("HTTP/1.0 {status}")), "{text}");
        }
        assert!(exchange(address, b"GET /metrics HTTP/1.0\r\n\r\n").contains("depth_bytes 42"));
    }

    #[test]
    fn an_endless_request_is_cut_at_the_bound() {
        let mut stream = TcpStream::connect(served()).unwrap();
        // The server may close while we still write; then writing fails, as it should.
        let sent = stream.write_all(&vec![b'a'; REQUEST_BYTES_MAX + 1]);
        let mut reply = Vec::new();
        let read = stream.read_to_end(&mut reply);
        assert!(reply.starts_with(b"HTTP/1.0 431") || sent.is_err() || read.is_err());
        assert!(!reply.starts_with(b"HTTP/1.0 200"));
    }

    #[test]
    fn an_address_that_others_reach_needs_to_be_meant() {
        let error = serve("0.0.0.0:0".parse().unwrap(), false, Registry::default()).unwrap_err();
        assert!(error.to_string().contains("other machines"), "{error:#}");
    }
}

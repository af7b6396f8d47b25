//! Spans for OpenTelemetry: of operations that take milliseconds or more, sent to a collector by OTLP
//! over HTTP where the standard variables of the environment name one.
//!
//! Without an endpoint nothing of this is there: no thread, no layer, and a span costs the load of a
//! number. With one, a span that ends goes into a bounded queue and one thread sends what is in it.
//! What does not fit, and what the collector does not take, is dropped and counted: a server never
//! waits for its collector, except for [`FLUSH_LIMIT`] when it ends.

mod client;
mod endpoint;
mod losses;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tracing::Level;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::registry::LookupSpan;

use crate::failure::Failure;
use crate::signals;
use client::Client;
use endpoint::Settings;
use losses::{Counted, Gate, Losses};

/// What sends the spans of this process. Dropping it sends what is left.
#[derive(Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
    losses: Arc<Losses>,
    warnings: Vec<String>,
}

/// How long the end of a process waits for what is left to be sent. A host's successor waits for that
/// end; a collector that is there takes milliseconds.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

impl Traces {
    /// Begins as the environment says; `None` where it names no endpoint or wants no traces. `service` is the
    /// program's part, as `cenote-host`, unless the environment has a name for it.
    ///
    /// # Errors
    /// An endpoint that is none, one that needs what this program lacks, or a file of certificates that
    /// cannot be used.
    pub fn from_environment(service: &'static str) -> Result<Option<Self>, Failure> {
        Settings::read(&|name| std::env::var(name).ok())?
            .map(|settings| Self::begin(service, settings))
            .transpose()
    }

    fn begin(service: &'static str, settings: Settings) -> Result<Self, Failure> {
        let losses = Arc::new(Losses::new(settings.queue_spans));
        let client = Client::new(&settings, Arc::clone(&losses))?;
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(&settings.url)
            .with_timeout(settings.timeout)
            .build();
        // What is left for it to refuse are variables that `Settings` does not read.
        let exporter = exporter.map_err(|error| {
            Failure::new(
                format!("traces: {error}"),
                "correct the OTEL_EXPORTER_OTLP_* variables",
            )
        })?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(settings.queue_spans)
            .build();
        let exporter = Counted::new(exporter, Arc::clone(&losses));
        // A signal that its thread took would end the process, whatever the process is yet to do.
        let processor = signals::without(|| BatchSpanProcessor::new(exporter, batches));
        let provider = SdkTracerProvider::builder()
            .with_resource(resource(service))
            .with_span_processor(Gate::new(processor, Arc::clone(&losses)))
            .build();
        Ok(Self {
            provider,
            losses,
            warnings: settings.warnings,
        })
    }

    /// What takes spans from the program: those of our crates at `info` and above, and the warnings and
    /// errors inside of them.
    pub(crate) fn layer<S>(&self) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: tracing::Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
    {
        let wanted = filter_fn(|metadata| {
            let least = match metadata.is_span() {
                true => Level::INFO,
                false => Level::WARN,
            };
            *metadata.level() <= least && metadata.target().starts_with("cenote")
        });
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer("cenote"))
            .with_location(false)
            .with_threads(false)
            // An operation waits for most of its time; which part of it a thread had says nothing.
            .with_tracked_inactivity(false)
            .with_filter(wanted.with_max_level_hint(LevelFilter::INFO))
            .boxed()
    }

    /// Says what of the environment is not followed, once there is a log.
    pub(crate) fn warn(&self) {
        for warning in &self.warnings {
            tracing::warn!("{warning}");
        }
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(FLUSH_LIMIT) {
            self.losses.fail(format!("at the end: {error}"));
        }
        self.losses.tell_at_the_end();
    }
}

/// What every span says of its process.
fn resource(service: &'static str) -> Resource {
    let system = rustix::system::uname();
    let node = system.nodename().to_string_lossy().into_owned();
    let known = [
        KeyValue::new("service.name", service),
        KeyValue::new("service.namespace", "cenote"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new(
            "service.instance.id",
            format!("{node}/{}", std::process::id()),
        ),
        KeyValue::new("process.pid", i64::from(std::process::id())),
        KeyValue::new("host.name", node),
    ];
    // Later ones win: OTEL_RESOURCE_ATTRIBUTES over what is known here, OTEL_SERVICE_NAME over both.
    let resource = Resource::builder_empty()
        .with_attributes(known)
        .with_detector(Box::new(EnvResourceDetector::new()));
    match std::env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => resource.with_service_name(name),
        _ => resource,
    }
    .build()
}

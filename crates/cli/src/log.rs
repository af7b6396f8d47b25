//! What every program may be told about its log and its progress.

use tracing::Subscriber;
use tracing_subscriber::filter::{FilterExt as _, LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

#[cfg(feature = "traces")]
use crate::traces::Traces;
use crate::{failure, progress, stderr};

/// What follows every command.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Common {
    /// Log format: text, or one JSON object per line
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value = "text"
    )]
    #[arg(env = "CENOTE_LOG_FORMAT", hide_env = true, hide_default_value = true)]
    pub log_format: Format,
    /// Show no progress on stderr
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

/// What a line of the log is.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Format {
    // Time, level, place and message, for people. Documentation of values would have --help take two
    // lines for every flag.
    #[expect(missing_docs, reason = "see above")]
    Text,
    // An object with timestamp (RFC 3339), level, target and fields, for collectors.
    #[expect(missing_docs, reason = "see above")]
    Json,
}

impl Common {
    /// Starts the log on standard error: of what `CENOTE_LOG` says, and without it of `usual`. Draws no
    /// progress where none is wanted.
    pub fn start(self, usual: &str) {
        Registry::default()
            .with(self.lines(usual, SystemTime, std::io::stderr))
            .init();
    }

    /// The same with another clock.
    pub fn start_with<T>(self, usual: &str, timer: T)
    where
        T: FormatTime + Send + Sync + 'static,
    {
        Registry::default()
            .with(self.lines(usual, timer, std::io::stderr))
            .init();
    }

    /// As [`Common::start`], and sends spans.
    #[cfg(feature = "traces")]
    pub fn start_traced(self, usual: &str, traces: &Traces) {
        Registry::default()
            .with(traces.layer())
            .with(self.lines(usual, SystemTime, std::io::stderr))
            .init();
        traces.warn();
    }

    fn lines<S, T, W>(
        self,
        usual: &str,
        timer: T,
        writer: W,
    ) -> impl Layer<S> + Send + Sync + use<S, T, W>
    where
        S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
        T: FormatTime + Send + Sync + 'static,
        W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
    {
        if self.quiet {
            progress::silence();
        }
        let said = std::env::var("CENOTE_LOG").ok();
        let said = said.filter(|said| {
            let is_known = are_levels(said);
            if !is_known {
                stderr::say(format_args!(
                    "warning: CENOTE_LOG={said}: ignored; use error, warn, info or debug, or \
                     MODULE=LEVEL with commas between"
                ));
            }
            is_known
        });
        let filter = EnvFilter::builder()
            .with_default_directive(LevelFilter::WARN.into())
            .parse_lossy(said.as_deref().unwrap_or(usual));
        // Spans are for collectors: the log is the same with them and without.
        let events =
            filter_fn(|metadata| metadata.is_event()).with_max_level_hint(LevelFilter::TRACE);
        let filter = filter.and(events);
        let lines = tracing_subscriber::fmt::layer()
            .with_timer(timer)
            .with_writer(writer)
            // It would say so where it could not write, and panic: a full disk under a log ends no server.
            .log_internal_errors(false);
        match self.log_format {
            Format::Text => lines.with_ansi(failure::colours()).boxed(),
            // A collector wants no colours, whatever stderr is.
            Format::Json => lines.with_ansi(false).json().boxed(),
        }
        .with_filter(filter)
    }
}

/// Whether these are levels, for all or for modules, and perhaps for spans. A word that is none
/// would be taken for a module, and all others would be silent.
fn are_levels(said: &str) -> bool {
    let is_level = |text: &str| text.trim().parse::<LevelFilter>().is_ok();
    said.contains('[')
        || said.split(',').all(|part| match part.rsplit_once('=') {
            Some((module, level)) => !module.trim().is_empty() && is_level(level),
            None => is_level(part) || part.trim().is_empty(),
        })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    /// Where lines go.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            lines.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What is logged of an event within a span, beside a layer that wants spans or alone; and whether there
    /// was a span.
    fn logged(log_format: Format, has_traces: bool) -> (String, bool) {
        let lines = Lines::default();
        let into = lines.clone();
        let quiet = false;
        let common = Common { log_format, quiet };
        let log = common.lines("info", (), move || into.clone());
        let traces = tracing_subscriber::layer::Identity::new();
        let traces = traces.with_filter(filter_fn(move |_| has_traces));
        let all = Registry::default().with(traces).with(log);
        let there = tracing::subscriber::with_default(all, || {
            let span = tracing::info_span!("rebuild", extent = 7);
            let _entered = span.enter();
            tracing::info!(host = "h00", "begins");
            !span.is_disabled()
        });
        let bytes = lines.0.lock().unwrap_or_else(PoisonError::into_inner);
        (String::from_utf8_lossy(&bytes).into_owned(), there)
    }

    #[test]
    fn the_log_is_the_same_with_traces_and_without_and_spans_are_nothing_without() {
        for format in [Format::Text, Format::Json] {
            let (alone, no_span) = logged(format, false);
            let (beside, span) = logged(format, true);
            assert_eq!((no_span, span), (false, true));
            assert!(alone.contains("begins") && alone.contains("h00"), "{alone}");
            assert!(!alone.contains("rebuild"), "{alone}");
            assert_eq!(alone, beside);
        }
    }

    #[test]
    fn levels_are_told_from_other_words() {
        for said in [
            "",
            "info",
            "WARN",
            "off",
            "cenote_host=debug,info",
            "a::b=trace",
            "[x]=info",
        ] {
            assert!(are_levels(said), "{said}");
        }
        for said in [
            "garbage",
            "info,garbage",
            "cenote_host=much",
            "=info",
            "inf",
        ] {
            assert!(!are_levels(said), "{said}");
        }
    }
}

//! What every program may be told about its log and its progress.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

use crate::{failure, progress};

/// What follows every command.
#[derive(clap::Args, Clone, Copy, Debug)]
pub struct Common {
    /// How lines of the log look: text, or a JSON object each
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "FORMAT",
        default_value = "text"
    )]
    #[arg(env = "CENOTE_LOG_FORMAT", hide_env = true, hide_default_value = true)]
    pub log_format: Format,
    /// No progress on standard error
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
        let log = self.begin(usual);
        match self.log_format {
            Format::Text => log.init(),
            // A collector wants no colours, whatever stderr is.
            Format::Json => log.with_ansi(false).json().init(),
        }
    }

    /// The same with another clock.
    pub fn start_with<T>(self, usual: &str, timer: T)
    where
        T: tracing_subscriber::fmt::time::FormatTime + Send + Sync + 'static,
    {
        let log = self.begin(usual).with_timer(timer);
        match self.log_format {
            Format::Text => log.init(),
            Format::Json => log.with_ansi(false).json().init(),
        }
    }

    fn begin(self, usual: &str) -> Log {
        if self.quiet {
            progress::silence();
        }
        let filter = EnvFilter::builder()
            .with_default_directive(LevelFilter::WARN.into())
            .parse_lossy(std::env::var("CENOTE_LOG").as_deref().unwrap_or(usual));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr as fn() -> std::io::Stderr)
            .with_ansi(failure::colours())
            // It would say so where it could not write, and panic: a full disk under a log ends no server.
            .log_internal_errors(false)
    }
}

type Log = tracing_subscriber::fmt::SubscriberBuilder<
    tracing_subscriber::fmt::format::DefaultFields,
    tracing_subscriber::fmt::format::Format,
    EnvFilter,
    fn() -> std::io::Stderr,
>;

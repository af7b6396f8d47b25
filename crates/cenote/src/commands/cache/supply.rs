//! Where the hosts of a cache come from: its cluster's file, or the providers of its catalogue.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context, Result};
use cenote_cache::links::{Caller, HostConfig};
use cenote_cache::market::{Source, SourceKind};
use cenote_cache::providers::{PROCESS_LIMIT, Program, Provider, Running};
use cenote_cache::service::{Market, Supply};
use cenote_fabric::{ClientId, Hello, connector};
use cenote_measurer::files;

use crate::ask::random_u128;
use crate::caches::{Spec, hosts_of};
use crate::place::{Loaded, Which};

/// As a cache's file says.
///
/// # Errors
/// The system has no randomness, or the current folder is gone.
pub fn of(which: &Which, loaded: &Loaded, name: &str, spec: &Spec) -> Result<Supply> {
    let Some(path) = spec.catalogue.clone() else {
        return Ok(Supply::Cluster(Box::new(reader(
            which.clone(),
            loaded.file.clone(),
        ))));
    };
    let caller = Caller {
        connector: Arc::new(connector(loaded.key.clone())),
        hello: Hello {
            client: ClientId(random_u128()?),
            name: "cache manager".to_owned(),
        },
        with_data: false,
    };
    let (which, name) = (which.clone(), name.to_owned());
    let told = |error: anyhow::Error| cenote_cli::failure::chain(&error);
    Ok(Supply::Market(Market {
        read: Box::new(move || files::catalogue(&path).map_err(told)),
        provider: Box::new(move |source, used| {
            provider(&which, &name, &caller, source, used).map_err(told)
        }),
        is_spot_allowed: spec.spot,
    }))
}

/// The hosts of the cluster's file, each time that it was changed, or could not be read before.
fn reader(
    which: Which,
    file: PathBuf,
) -> impl FnMut() -> Option<Result<Vec<HostConfig>, String>> + Send {
    let mut seen: Option<SystemTime> = None;
    move || {
        let changed = std::fs::metadata(&file).and_then(|of| of.modified()).ok();
        // One that is being replaced is there at the next look.
        if changed.is_none() || changed == seen {
            return None;
        }
        let read = which.load().and_then(|loaded| hosts_of(&loaded.cluster));
        seen = changed.filter(|_| read.is_ok());
        Some(read.map_err(|error| cenote_cli::failure::chain(&error)))
    }
}

fn provider(
    which: &Which,
    name: &str,
    caller: &Caller,
    source: &Source,
    used: Vec<String>,
) -> Result<Box<dyn Provider>> {
    Ok(match &source.kind {
        SourceKind::Running => {
            let hosts = hosts_of(&which.load()?.cluster)?;
            Box::new(Running::new(hosts, caller.clone()).with_taken(used))
        }
        SourceKind::Processes => {
            let program = std::env::current_exe().context("find this program's file")?;
            let text = |word: &std::ffi::OsStr| word.to_str().map(str::to_owned);
            let which = which.absolute()?;
            let words = |order: &str| -> Option<Vec<String>> {
                let mut words = vec![text(program.as_os_str())?];
                words.extend(["cache", "machine", order, name].map(str::to_owned));
                for word in &which {
                    words.push(text(word)?);
                }
                Some(words)
            };
            let refused = "a path that is not UTF-8";
            Box::new(Program {
                acquire: words("get").context(refused)?,
                release: words("release").context(refused)?,
                limit: PROCESS_LIMIT,
            })
        }
        SourceKind::Command {
            acquire,
            release,
            limit,
        } => Box::new(Program {
            acquire: acquire.clone(),
            release: release.clone(),
            limit: *limit,
        }),
    })
}

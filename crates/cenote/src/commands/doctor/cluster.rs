//! How the parts of a cluster are, as this machine sees them: hosts, volumes, caches, swap, key-value
//! nodes, and what processes left behind.

use std::time::Duration;

use anyhow::Result;
use cenote_block::swap::{Error as SwapError, control};
use cenote_cli::failure::{Failure, chain};

use super::finding::Finding;
use super::fix::Fix;
use crate::ask::{self, side_by_side};
use crate::caches::CacheDir;
use crate::commands::kv::place::Found;
use crate::commands::{kv, volume};
use crate::folder::Folder;
use crate::place::{ClusterDir, Loaded, Which};
use crate::process::Identity;
use crate::{hints, sample};

/// What a finding may be about.
pub const SUBJECTS: [&str; 8] = [
    FOLDER,
    FILE,
    "hosts",
    "caches",
    "volumes",
    "swap",
    "key-value nodes",
    "processes",
];
/// The folder of the cluster, and its file: found where they are in the way of what is wanted.
const FOLDER: &str = "cluster folder";
const FILE: &str = "cluster file";

/// Everything of the cluster that is named, of what is wanted.
pub fn examine(which: &Which, limit: Duration, wanted: impl Fn(&str) -> bool) -> Vec<Finding> {
    if !SUBJECTS.into_iter().any(&wanted) {
        return Vec::new();
    }
    let dir = match which.directory() {
        Ok(dir) => dir,
        Err(error) => {
            let said = error.downcast_ref::<Failure>().map(Failure::remedy);
            let mend = said.map(str::to_owned).or_else(|| hints::of(&error));
            let mend = mend.unwrap_or_else(|| {
                "use a folder that belongs to this user only, as cenote up makes it".to_owned()
            });
            return vec![Finding::error(FOLDER, chain(&error), mend)];
        }
    };
    let is_kv = dir.folder().has("kv.json").unwrap_or(false);
    let needs_file = [FILE, "hosts", "caches"].into_iter().any(&wanted);
    let mut findings = Vec::new();
    match which.load() {
        Ok(loaded) => {
            if wanted("hosts") {
                findings.push(hosts(&loaded, limit));
            }
            findings.extend(looked(&wanted, "caches", || caches(&loaded, limit)));
        }
        // A folder of key-value nodes alone has no cluster file.
        Err(_) if is_kv || !needs_file => {}
        Err(error) => findings.push(Finding::error(
            FILE,
            chain(&error),
            "run cenote up, or name the file and key of a running cluster",
        )),
    }
    findings.extend(looked(&wanted, "volumes", || volumes(&dir, limit)));
    findings.extend(looked(&wanted, "swap", || swap(&dir, limit)));
    if is_kv {
        findings.extend(looked(&wanted, "key-value nodes", || nodes(&dir, limit)));
    }
    findings.extend(looked(&wanted, "processes", || processes(&dir)));
    findings
}

/// A look, if it is wanted, that may fail, which is a finding as well.
fn looked(
    wanted: impl Fn(&str) -> bool,
    subject: &'static str,
    look: impl FnOnce() -> Result<Finding>,
) -> Option<Finding> {
    let mend = "run the command of that name";
    let failed = |error| Finding::warning(subject, chain(&error), mend);
    wanted(subject).then(|| look().unwrap_or_else(failed))
}

fn hosts(loaded: &Loaded, limit: Duration) -> Finding {
    let hosts = &loaded.cluster.hosts;
    let answers = ask::all(hosts, &loaded.key, limit);
    let silent: Vec<String> = hosts
        .iter()
        .zip(&answers)
        .filter_map(|(host, answer)| {
            let error = answer.as_ref().err()?;
            Some(format!("{}: {}", host.name, chain(error)))
        })
        .collect();
    let up = hosts.len() - silent.len();
    let found = format!("{up} of {} answer", hosts.len());
    if !silent.is_empty() {
        return Finding::warning(
            "hosts",
            format!("{found}; {}", silent.join("; ")),
            "restart them; their slabs are rebuilt elsewhere if there is room",
        );
    }
    let statuses = hosts.iter().zip(answers.iter().flatten());
    let differ = statuses.filter_map(|(entry, status)| ask::disagreement(entry, status));
    let differ: Vec<String> = differ.collect();
    match differ.is_empty() {
        true => Finding::ok("hosts", found),
        false => Finding::warning(
            "hosts",
            format!("{found}; {}", differ.join("; ")),
            "write the same names and domains into the cluster file, where placement reads them",
        ),
    }
}

fn volumes(dir: &ClusterDir, limit: Duration) -> Result<Finding> {
    let volumes = sample::volumes(dir, limit)?.volumes;
    let (mut served, mut wrong) = (0, Vec::new());
    for volume in &volumes {
        let (name, Some(status)) = (&volume.name, &volume.status) else {
            continue;
        };
        served += 1;
        match status {
            Ok(status) if volume::is_whole(status) => {}
            Ok(status) => wrong.push(format!("{name}: {}", volume::health(status))),
            Err(error) => wrong.push(format!("{name}: {error}")),
        }
    }
    let found = format!("{}, {served} served", volumes.len());
    Ok(match wrong.is_empty() {
        true => Finding::ok("volumes", found),
        false => Finding::warning(
            "volumes",
            format!("{found}; {}", wrong.join("; ")),
            "cenote volume status shows it; restart lost hosts and keep the volume running",
        ),
    })
}

fn caches(loaded: &Loaded, limit: Duration) -> Result<Finding> {
    let caches = CacheDir::all(&loaded.dir)?;
    let answers = side_by_side(&caches, |cache| cache.status_within(&loaded.key, limit));
    let (all, mut wrong) = (caches.len(), Vec::new());
    for (cache, answer) in caches.iter().zip(answers) {
        match answer {
            Ok(status) if status.whole => {}
            Ok(_) => wrong.push(format!("{}: not whole", cache.name())),
            Err(error) => wrong.push(format!("{}: {}", cache.name(), chain(&error))),
        }
    }
    Ok(match wrong.is_empty() {
        true => Finding::ok("caches", format!("{all}")),
        false => Finding::warning(
            "caches",
            format!("{all}; {}", wrong.join("; ")),
            "run cenote cache start; cenote cache status shows what is missing",
        ),
    })
}

fn swap(dir: &ClusterDir, limit: Duration) -> Result<Finding> {
    let Some(folder) = dir.folder().sub("swap")? else {
        return Ok(Finding::ok("swap", "none of this cluster"));
    };
    Ok(match control::status_within(folder.path(), limit) {
        Ok(status) if status.unreadable_pages == 0 => Finding::ok(
            "swap",
            format!("{}, over {}", status.device.display(), status.transport),
        ),
        Ok(status) => Finding::warning(
            "swap",
            format!("{} pages cannot be read", status.unreadable_pages),
            "restart lost hosts; programs that touch lost pages are killed",
        ),
        Err(SwapError::NotRunning { .. }) => Finding::ok("swap", "off"),
        Err(error) => Finding::warning("swap", error.to_string(), "cenote swap status"),
    })
}

fn nodes(dir: &ClusterDir, limit: Duration) -> Result<Finding> {
    let subject = "key-value nodes";
    let Some(found) = Found::of_folder(dir.root())? else {
        return Ok(Finding::ok(subject, "none are running"));
    };
    let report = kv::status::report(&found, limit)?;
    let down: Vec<&str> = report
        .nodes
        .iter()
        .filter(|node| node.memory.is_none())
        .map(|node| node.name.as_str())
        .collect();
    let found = format!("{}, {} do not answer", report.nodes.len(), down.len());
    Ok(match report.is_whole() {
        true => Finding::ok(subject, found),
        false => Finding::warning(
            subject,
            format!(
                "{found} ({}), and groups have missing places",
                down.join(" ")
            ),
            "cenote kv node restarts one; cenote kv status shows what is missing",
        ),
    })
}

/// Folders with a note of a process that has ended without a word. Hosts of a cluster that is up keep
/// theirs: `cenote status` says by it that they have ended.
fn processes(dir: &ClusterDir) -> Result<Finding> {
    let root = dir.folder();
    let is_up = root.has(crate::place::CLUSTER_FILE)?;
    let mut kinds = vec!["caches", "servers", "nodes"];
    if !is_up {
        kinds.push("hosts");
    }
    let mut ended: Vec<(String, Folder)> = Vec::new();
    let mut running = 0;
    for kind in kinds {
        for (name, folder) in root.subs(kind)? {
            match Identity::load(&folder)? {
                Some(identity) if identity.open()?.is_none() => {
                    ended.push((format!("{kind}/{name}"), folder));
                }
                Some(_) => running += 1,
                None => {}
            }
        }
    }
    if ended.is_empty() {
        return Ok(Finding::ok(
            "processes",
            format!("{running} in the background"),
        ));
    }
    let names: Vec<&str> = ended.iter().map(|(name, _)| name.as_str()).collect();
    Ok(Finding::warning(
        "processes",
        format!("died: {}", names.join(" ")),
        "see their logs and restart what should run. Their pid files can be removed",
    )
    .with_fix(Fix::Notes {
        dir: dir.clone(),
        ended,
    }))
}

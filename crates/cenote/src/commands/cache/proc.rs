//! `cenote cache proc`: procedures on the hosts of a cluster, put there, listed and taken away.
//!
//! A procedure has one number and version on all hosts, and one module: a checksum tells. Hosts without
//! a folder for modules keep them as long as their process lives; so this says where one is, and a host
//! that was restarted gets it again under the same version. A host that is down holds up no other.

mod request;

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE, chain};
use cenote_fabric::calls::Caller;
use cenote_fabric::{ClientId, Connector, Hello, Session, connector_with};
use cenote_proc::service::{Label, Row};
use cenote_proc::{Access, CacheId, Grants, MODULE_MAX, ProcedureId, checksum, orders};
use serde::Serialize;

use crate::caches::CacheDir;
use crate::place::{Loaded, Which};

/// `cache proc` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote cache proc put sum sum.wasm --read cache0 --dir ~/.cenote/well
  cenote cache proc put sum sum.wasm --read cache0 --version 1 --dir ~/.cenote/well
  cenote cache proc list --cluster /etc/cenote/cluster.toml --json
  cenote cache proc rm sum --version 2 --dir ~/.cenote/well
  cenote cache proc run sum cache0 4096 64 --dir ~/.cenote/well

A procedure is a WebAssembly module built with the crate cenote-proc-sdk; docs/guides/cache.md shows
one. Hosts with a module folder (host --modules) keep it over a restart. put makes a new version; put
--version N installs version N on hosts that lack it: new ones, and those that restarted without a
module folder. Hosts that are down, or end meanwhile, are skipped and named, and the exit code is 3.
The cluster's key is needed.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Install a module on all hosts as the next version of its name
    #[command(
        after_help = "Example:\n  cenote cache proc put sum sum.wasm --read cache0 --dir ~/.cenote/well"
    )]
    Put(Put),
    /// List the procedures on the hosts
    #[command(after_help = "Example:\n  cenote cache proc list --dir ~/.cenote/well")]
    List(Common),
    /// Remove a version of a procedure from all hosts
    #[command(after_help = "Example:\n  cenote cache proc rm sum --version 2 --dir ~/.cenote/well")]
    Rm(Remove),
    /// Run a procedure once and print its answer
    #[command(
        after_help = "Example:\n  cenote cache proc run sum cache0 4096 64 --dir ~/.cenote/well"
    )]
    Run(request::Args),
}

#[derive(clap::Args, Debug)]
struct Common {
    #[command(flatten)]
    which: Which,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct Put {
    /// Name of the procedure: 1 to 64 letters, digits, '-', '_' and '.'
    name: String,
    /// The WebAssembly module, at most 1 MiB
    file: PathBuf,
    /// Cache that it may read, by name or number; may be repeated
    #[arg(long, value_name = "CACHE")]
    read: Vec<String>,
    /// Cache that it may read and write; may be repeated
    #[arg(long, value_name = "CACHE")]
    write: Vec<String>,
    /// Version to install on hosts that lack it [default: the next one]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args, Debug)]
struct Remove {
    /// Name of the procedure
    name: String,
    /// Version [default: the newest]
    #[arg(long, value_name = "N")]
    version: Option<u32>,
    #[command(flatten)]
    common: Common,
}

/// How long a host may take to answer, and to compile a module.
const PATIENCE: Duration = Duration::from_secs(10);
/// Numbers below are those of the hosts' own program.
const FIRST_NUMBER: u32 = 1000;

/// A host that answers.
struct Site {
    name: String,
    caller: Box<dyn Caller>,
    rows: Vec<Row>,
    // Its end would end the connection.
    _session: Box<dyn Session>,
}

#[derive(Serialize)]
struct Line<'a> {
    id: u32,
    name: &'a str,
    version: u32,
    native: bool,
    grants: String,
    hosts: usize,
    hosts_total: usize,
}

pub fn run(args: &Args) -> Result<u8> {
    match &args.action {
        Action::Put(args) => put(args),
        Action::List(args) => list(args),
        Action::Rm(args) => remove(args),
        Action::Run(args) => request::run(args),
    }
}

/// The hosts of a cluster that answer, and how many do not.
struct Sites {
    up: Vec<Site>,
    down: usize,
}

impl Sites {
    fn code(&self) -> u8 {
        match self.down {
            0 => DONE,
            _ => NOT_WHOLE,
        }
    }
}

fn sites(loaded: &Loaded) -> Result<Sites> {
    let connector = connector_with(loaded.key.clone(), loaded.page_traffic);
    ensure!(!loaded.cluster.hosts.is_empty(), "the cluster has no hosts");
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for host in &loaded.cluster.hosts {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(|error| anyhow!("random bytes: {error}"))?;
        let hello = Hello {
            client: ClientId(u128::from_le_bytes(number)),
            name: "cenote cache proc".into(),
        };
        let connect = || -> Result<Site> {
            let session = connector.connect(&host.address.parse()?, &hello, PATIENCE)?;
            let mut caller = session.caller_opener()(PATIENCE)?;
            let rows = orders::list(&mut *caller)?;
            Ok(Site {
                name: host.name.clone(),
                caller,
                rows,
                _session: session,
            })
        };
        match connect().with_context(|| format!("host {}", host.name)) {
            Ok(site) => up.push(site),
            Err(error) => down.push(error),
        }
    }
    if up.is_empty() {
        return Err(down.remove(0));
    }
    for error in &down {
        eprintln!("skipped: {}", chain(error));
    }
    let down = down.len();
    Ok(Sites { up, down })
}

/// A cache by its number, or by its name in the cluster's folder.
fn cache_id(loaded: &Loaded, text: &str) -> Result<CacheId> {
    let number = match text.parse() {
        Ok(number) => number,
        Err(_) => CacheDir::open(&loaded.dir, text)?.spec()?.id()?,
    };
    Ok(CacheId(number))
}

/// What hosts have of a name, the newest last: number and version.
fn known(sites: &[Site], name: &str) -> Vec<(u32, ProcedureId)> {
    let all = sites.iter().flat_map(|site| &site.rows);
    let of_name = all.filter(|row| row.name == name);
    let mut known: Vec<_> = of_name.map(|row| (row.version, row.id)).collect();
    known.sort_unstable();
    known.dedup();
    known
}

/// A file's bytes, but no more than one above the most that a module has.
fn read_module(file: &Path) -> io::Result<Vec<u8>> {
    let mut module = Vec::new();
    let most = u64::from(MODULE_MAX) + 1;
    File::open(file)?.take(most).read_to_end(&mut module)?;
    Ok(module)
}

fn put(args: &Put) -> Result<u8> {
    let module = read_module(&args.file).with_context(|| args.file.display().to_string())?;
    let len_bytes = u32::try_from(module.len()).unwrap_or(u32::MAX);
    ensure!(
        (1..=MODULE_MAX).contains(&len_bytes),
        "{}: a module has 1 to {MODULE_MAX} bytes",
        args.file.display()
    );
    if args.read.is_empty() && args.write.is_empty() {
        return Err(Failure::usage(
            "no cache given",
            "use --read or --write to name the caches on which it may run",
        )
        .into());
    }
    let loaded = args.common.which.load()?;
    let read = args.read.iter().map(|cache| (cache, Access::Read));
    let write = args.write.iter().map(|cache| (cache, Access::ReadWrite));
    let named = write.chain(read);
    let caches: Vec<_> = named
        .map(|(cache, access)| Ok((cache_id(&loaded, cache)?, access)))
        .collect::<Result<_>>()?;
    let mut sites = sites(&loaded)?;
    let known = known(&sites.up, &args.name);
    let newest = known.last().map_or(0, |(version, _)| *version);
    let version = args.version.or_else(|| newest.checked_add(1));
    let version = version.context("its newest version is the last that there can be")?;
    let same = known.iter().find(|(other, _)| *other == version);
    let id = match same {
        Some((_, id)) => *id,
        None => fresh_number()?,
    };
    let grants = Grants::Caches(caches);
    let rows = sites.up.iter().flat_map(|site| &site.rows);
    for row in rows.filter(|row| row.id == id) {
        ensure!(
            row.checksum == checksum(&module),
            "a host has another module as {} version {version}; leave out --version to install \
             this one as the next version",
            args.name
        );
        ensure!(
            caches_of(&row.grants) == caches_of(&grants),
            "{} version {version} {}; name the same caches, or leave out --version to install it \
             as the next version",
            args.name,
            granted(&row.grants)
        );
    }
    let (mut there, mut kept) = (0, 0);
    let mut failed = Failed::default();
    for site in &mut sites.up {
        // A host that was not started again has it.
        if site.rows.iter().any(|row| row.id == id) {
            continue;
        }
        let label = Label {
            id,
            name: args.name.clone(),
            version,
            grants: grants.clone(),
            len_bytes,
        };
        match orders::put(&mut *site.caller, label, &module) {
            Ok(is_kept) => {
                there += 1;
                kept += usize::from(is_kept);
            }
            // It may have the module all the same, and is asked before it is sent that again.
            Err(error) => failed.note(&site.name, error),
        }
    }
    failed.conclude(there)?;
    let name = &args.name;
    if args.common.json {
        let put = serde_json::json!({
            "id": id.0, "name": name, "version": version, "hosts": there, "kept_over_restart": kept == there,
            "failed": failed.names,
        });
        say(&put.to_string())?;
    } else {
        let where_kept = match kept == there {
            true => "all of which keep it over a restart".to_owned(),
            false => format!("{kept} of which keep it over a restart"),
        };
        say(&format!(
            "{name} version {version} is procedure {} on {there} hosts, {where_kept}",
            id.0
        ))?;
    }
    if !failed.names.is_empty() {
        eprintln!(
            "not on {}: once they answer, the same command with --version {version} installs it there",
            failed.names.join(", ")
        );
    }
    Ok(failed.code(&sites))
}

/// Hosts that did not do as they were told, though they answered before.
#[derive(Default)]
struct Failed {
    names: Vec<String>,
    errors: Vec<anyhow::Error>,
}

impl Failed {
    /// The others are gone on with.
    fn note(&mut self, name: &str, error: orders::OrderError) {
        let error = anyhow::Error::from(error).context(format!("host {name}"));
        self.names.push(name.to_owned());
        self.errors.push(error);
    }

    /// Says what is wrong. Where no host did as it was told there is nothing else to tell.
    fn conclude(&mut self, done: usize) -> Result<()> {
        if done == 0 && !self.errors.is_empty() {
            return Err(self.errors.remove(0));
        }
        for error in &self.errors {
            eprintln!("failed: {}", chain(error));
        }
        Ok(())
    }

    fn code(&self, sites: &Sites) -> u8 {
        match self.names.is_empty() {
            true => sites.code(),
            false => NOT_WHOLE,
        }
    }
}

/// What is granted on each of them, in one order; `None`: on all.
fn caches_of(grants: &Grants) -> Option<Vec<(CacheId, Option<Access>)>> {
    let Grants::Caches(caches) = grants else {
        return None;
    };
    let mut caches: Vec<_> = caches.iter().map(|(id, _)| (*id, grants.of(*id))).collect();
    caches.sort_unstable_by_key(|(id, _)| id.0);
    caches.dedup();
    Some(caches)
}

/// A number that no procedure has had: hosts take each once in their lives, and one that is down may
/// have had any.
fn fresh_number() -> Result<ProcedureId> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(|error| anyhow!("random bytes: {error}"))?;
    let number = u32::from_le_bytes(bytes) >> 1;
    Ok(ProcedureId(number.max(FIRST_NUMBER)))
}

fn list(args: &Common) -> Result<u8> {
    let all_sites = sites(&args.which.load()?)?;
    let sites = &all_sites.up;
    let mut all: Vec<&Row> = sites.iter().flat_map(|site| &site.rows).collect();
    all.sort_by_key(|row| row.id);
    all.dedup_by_key(|row| row.id);
    for row in all {
        let has = |site: &&Site| site.rows.iter().any(|other| other.id == row.id);
        let line = Line {
            id: row.id.0,
            name: &row.name,
            version: row.version,
            native: row.native,
            grants: granted(&row.grants),
            hosts: sites.iter().filter(has).count(),
            hosts_total: sites.len() + all_sites.down,
        };
        if args.json {
            say(&serde_json::to_string(&line)?)?;
        } else {
            let kind = if line.native { "native" } else { "wasm" };
            say(&format!(
                "{:>6}  {} version {}, {kind}, {}, on {} of {} hosts",
                line.id, line.name, line.version, line.grants, line.hosts, line.hosts_total
            ))?;
        }
    }
    Ok(all_sites.code())
}

fn granted(grants: &Grants) -> String {
    let how = |access: &Access| match access {
        Access::Read => "reads",
        Access::ReadWrite => "writes",
    };
    match grants {
        Grants::All(access) => format!("{} all caches", how(access)),
        Grants::Caches(caches) => {
            let one = |(cache, access): &(CacheId, Access)| format!("{} {}", how(access), cache.0);
            caches.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

fn remove(args: &Remove) -> Result<u8> {
    let mut sites = sites(&args.common.which.load()?)?;
    let known = known(&sites.up, &args.name);
    let wanted = match args.version {
        None => known.last(),
        Some(version) => known.iter().find(|(other, _)| *other == version),
    };
    let Some((version, id)) = wanted else {
        bail!("no host has that version of {}", args.name);
    };
    ensure!(
        id.0 >= FIRST_NUMBER,
        "{} is built into the hosts",
        args.name
    );
    let mut gone = 0;
    let mut failed = Failed::default();
    for site in &mut sites.up {
        match orders::remove(&mut *site.caller, *id) {
            Ok(was_there) => gone += usize::from(was_there),
            Err(error) => failed.note(&site.name, error),
        }
    }
    failed.conclude(gone)?;
    if args.common.json {
        let line = serde_json::json!({
            "id": id.0, "version": version, "hosts": gone, "failed": failed.names,
        });
        say(&line.to_string())?;
    } else {
        say(&format!(
            "{} version {version} removed from {gone} hosts",
            args.name
        ))?;
    }
    if !failed.names.is_empty() {
        eprintln!(
            "still on {}: once they answer, the same command with --version {version} removes it there",
            failed.names.join(", ")
        );
    }
    Ok(failed.code(&sites))
}

fn say(line: &str) -> Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("write to standard output")
}

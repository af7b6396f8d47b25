//! `cenote store`: objects that survive crashes, in a folder of this machine or served by another.
//!
//! ```text
//! DIR/pool, pool.1, ...   the objects, a file for each shard; docs/formats/store.md
//! DIR/secret              what tells headers of a log from bytes that clients wrote
//! ```
//!
//! Whoever works with a store has its folder locked: one process at a time.

pub mod folder;
mod metrics;
mod remote;
mod secret;
mod serve;
mod shown;

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use cenote_cli::Common;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::progress;
use cenote_cli::size::Size;
use cenote_store::{Condition, VALUE_BYTES_MAX};

use folder::Opened;
use shown::shown;

/// `store` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote store create /var/lib/objects --size 64M
  cenote store put /var/lib/objects greeting hello.txt
  cenote store get /var/lib/objects greeting
  cenote store check /var/lib/objects --json
  cenote store serve /var/lib/objects --listen tcp:10.0.0.7:7100 --key cluster.key
  cenote store serve /var/lib/objects --listen tcp:10.0.0.7:7100 --key cluster.key --background
  cenote store get tcp:10.0.0.7:7100 greeting --key cluster.key
  cenote store put tcp:10.0.0.7:7100,tcp:10.0.0.8:7100 greeting hello.txt --copies 2 --key cluster.key

What put, delete or get has reported survives a crash of the process or of the machine. The size of a
store is fixed at creation; objects may use less than half of it, so that old versions can be cleaned.
docs/guides/store.md lists the guarantees.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Create a store
    #[command(after_help = "Example:
  cenote store create /var/lib/objects --size 1G --keys 100000")]
    Create(Create),
    /// Serve a store to clients that have the cluster's key, until SIGTERM
    #[command(after_help = "Examples:
  cenote store serve /var/lib/objects --listen tcp:10.0.0.7:7100 --key cluster.key
  cenote store serve /dev/shm/objects --medium pm --pm-delay 100ns --listen shm:/run/objects.sock \\
      --key cluster.key --scheme saw")]
    Serve(serve::Args),
    /// Store an object durably
    #[command(after_help = "Examples:
  cenote store put /var/lib/objects greeting hello.txt
  date | cenote store put /var/lib/objects now
  cenote store put /var/lib/objects greeting new.txt --if-version 17")]
    Put(Put),
    /// Write an object to standard output
    #[command(after_help = "Example:
  cenote store get /var/lib/objects greeting > hello.txt")]
    Get(Named),
    /// List keys in order
    #[command(after_help = "Example:
  cenote store list /var/lib/objects --prefix user/
  cenote store list /var/lib/objects --null | xargs -0 -n 1 cenote store get /var/lib/objects --")]
    List(List),
    /// Delete an object durably
    #[command(after_help = "Example:
  cenote store delete /var/lib/objects greeting")]
    Delete(Delete),
    /// Copy missing objects from one served store to another
    #[command(
        after_help = "Objects with copies are in every store of the address list, which all
clients must give in the same order. When a store is lost, leave it out of the list. To replace it, insert the new store before the
last, so that it gets new changes, and copy the existing objects to it:

Example:
  cenote store copy tcp:10.0.0.7:7100 tcp:10.0.0.9:7100 --key cluster.key

After that it counts as any other, and stays where it is in the list.
Where only one store is left, it is listed before and behind the new one,
and only before it once everything is copied."
    )]
    Copy(CopyTo),
    /// Verify a store, without changing it
    #[command(after_help = "Example:
  cenote store check /var/lib/objects --json

Exit code 3: values or stretches of the log are not what was written.")]
    Check(Check),
    /// Benchmark stores against Redis and RocksDB; the same as cenote bench store
    #[command(
        after_help = "Example:\n  cenote store bench --value 1K --clients 32 --dir /mnt/nvme"
    )]
    Bench(super::lab::Args),
}

#[derive(clap::Args, Debug)]
struct Create {
    /// Folder of the store; created if missing
    dir: PathBuf,
    /// File size; more than twice the total size of all objects
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Maximum number of keys, including deleted ones [default: one for each 4 KiB]
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Shards, served and recovered in parallel, with one file each
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(1..=64))]
    shards: u8,
}

#[derive(clap::Args, Debug)]
struct Put {
    #[command(flatten)]
    named: Named,
    /// File with the object's bytes, at most 1 MiB [default: stdin]
    file: Option<PathBuf>,
    #[command(flatten)]
    only: Only,
}

#[derive(clap::Args, Debug)]
struct Delete {
    #[command(flatten)]
    named: Named,
    /// Only if this is the object's version, as printed by put and get --json
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

#[derive(clap::Args, Debug)]
struct Named {
    #[command(flatten)]
    store: At,
    /// Name of the object, 1 to 250 bytes
    #[arg(value_name = "NAME")]
    key: OsString,
    /// Print one JSON object; for get, in place of the bytes
    #[arg(long)]
    json: bool,
}

/// When a change is made.
#[derive(clap::Args, Debug)]
struct Only {
    /// Only if the object does not exist
    #[arg(long, conflicts_with = "if_version")]
    if_absent: bool,
    /// Only if this is the object's version, as printed by put and get --json
    #[arg(long, value_name = "N")]
    if_version: Option<u64>,
}

/// Where a store is.
#[derive(clap::Args, Debug)]
struct At {
    /// Folder of the store, or address of a served one; for copies, comma-separated addresses of
    /// several stores
    #[arg(value_name = "STORE")]
    store: PathBuf,
    /// File with the cluster's key, for a served store
    #[arg(long = "key", value_name = "FILE")]
    cluster_key: Option<PathBuf>,
    /// Number of copies, all of which acknowledge; that many addresses must be given. 1 uses the
    /// last store left of several
    #[arg(long, value_name = "N")]
    copies: Option<usize>,
}

#[derive(clap::Args, Debug)]
struct CopyTo {
    /// Address of the source store
    from: String,
    /// Address of the target store
    to: String,
    /// File with the cluster's key
    #[arg(long = "key", value_name = "FILE")]
    cluster_key: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
struct List {
    #[command(flatten)]
    store: At,
    /// Only keys with this prefix
    #[arg(long, value_name = "TEXT", default_value = "")]
    prefix: OsString,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
    /// End each key with a zero byte and print it as it is, for scripts. Without it keys with
    /// control characters are printed as $'...'
    #[arg(short = '0', long, conflicts_with = "json")]
    null: bool,
}

#[derive(clap::Args, Debug)]
struct Check {
    /// Folder of the store
    dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Whether others live on this process.
    pub fn serves(&self) -> bool {
        matches!(&self.action, Action::Serve(args) if !args.background)
    }
}

pub fn run(args: &Args, common: Common) -> Result<u8> {
    match &args.action {
        Action::Create(args) => create(args),
        Action::Serve(args) => serve::run(args),
        Action::Put(args) => put(args),
        Action::Get(args) => get(args),
        Action::List(args) => list(args),
        Action::Delete(args) => delete(args),
        Action::Copy(args) => copy(args),
        Action::Check(args) => check(args),
        Action::Bench(args) => super::lab::run(&["bench", "store"], args, common),
    }
}

impl At {
    /// The store, if it is one that is served.
    fn served(&self) -> Result<Option<remote::Remote>> {
        let text = self.store.to_string_lossy();
        let is_address = text.starts_with("tcp:") || text.starts_with("shm:");
        let addresses: Vec<&str> = match is_address {
            true => text.split(',').collect(),
            false => vec![&text],
        };
        let given = addresses.len();
        if let Some(copies) = self.copies.filter(|copies| *copies != given) {
            let what = format!("--copies {copies}: {given} stores given");
            let remedy = "give the comma-separated addresses of all stores with a copy";
            return Err(Failure::usage(what, remedy).into());
        }
        match (is_address, &self.cluster_key) {
            (true, Some(key)) => {
                let has_copies = given > 1 || self.copies.is_some();
                remote::Remote::connect(&addresses, key, has_copies).map(Some)
            }
            (true, None) => {
                let what = format!("store {text}: needs the cluster's key");
                Err(Failure::usage(what, "use --key FILE, made by cenote key new").into())
            }
            (false, _) => Ok(None),
        }
    }
}

impl Only {
    fn condition(&self) -> Condition {
        match (self.if_absent, self.if_version) {
            (true, _) => Condition::Absent,
            (false, Some(sequence)) => Condition::Sequence(sequence),
            (false, None) => Condition::Always,
        }
    }
}

fn create(args: &Create) -> Result<u8> {
    /// Bytes for which there is one key, where nothing else is said.
    const BYTES_PER_KEY: u64 = 4096;
    let keys = args.keys.unwrap_or(args.size.bytes() / BYTES_PER_KEY);
    folder::create(&args.dir, args.size, keys, usize::from(args.shards))?;
    say(&format!(
        "a store of {} in {}",
        args.size,
        args.dir.display()
    ))
}

fn put(args: &Put) -> Result<u8> {
    let mut value = Vec::new();
    let most = VALUE_BYTES_MAX as u64 + 1;
    match &args.file {
        Some(path) => {
            let file = std::fs::File::open(path);
            let read = file.and_then(|file| file.take(most).read_to_end(&mut value));
            read.with_context(|| path.display().to_string())?;
        }
        None => {
            let read = std::io::stdin().lock().take(most).read_to_end(&mut value);
            read.context("read standard input")?;
        }
    }
    let (named, condition) = (&args.named, args.only.condition());
    let version = match named.store.served()? {
        Some(mut store) => store.put(named.key.as_bytes(), value, condition)?,
        None => {
            let mut store = Opened::open(&named.store.store)?;
            let made = store.change(named.key.as_bytes(), condition, |pool, key| {
                pool.put_durable(key, &value, condition)
            })?;
            store.close()?;
            made.sequence
        }
    };
    told(named, "stored", version)
}

fn delete(args: &Delete) -> Result<u8> {
    let condition = args
        .if_version
        .map_or(Condition::Always, Condition::Sequence);
    let named = &args.named;
    let version = match named.store.served()? {
        Some(mut store) => store.delete(named.key.as_bytes(), condition)?,
        None => {
            let mut store = Opened::open(&named.store.store)?;
            let made = store.change(named.key.as_bytes(), condition, |pool, key| {
                pool.delete(key, condition)
            })?;
            store.close()?;
            made.sequence
        }
    };
    told(named, "deleted", version)
}

fn told(named: &Named, done: &str, version: u64) -> Result<u8> {
    if named.json {
        return say(
            &serde_json::json!({ "key": named.key.to_string_lossy(), "version": version })
                .to_string(),
        );
    }
    let key = shown(named.key.as_bytes());
    say(&format!("{key}: {done}, version {version}"))
}

fn get(args: &Named) -> Result<u8> {
    let found = match args.store.served()? {
        Some(mut store) => store.get(args.key.as_bytes())?,
        None => {
            let mut store = Opened::open(&args.store.store)?;
            let found = store.change(args.key.as_bytes(), Condition::Always, |pool, key| {
                pool.get(key)
            })?;
            store.close()?;
            found
        }
    };
    let Some(found) = found else {
        let store = args.store.store.display();
        let what = format!(
            "store {store}: there is no object {}",
            shown(args.key.as_bytes())
        );
        let remedy = format!("cenote store list {store}");
        return Err(Failure::new(what, remedy).into());
    };
    if args.json {
        let bytes = found.value.len();
        let line = serde_json::json!({
            "key": args.key.to_string_lossy(), "version": found.sequence, "bytes": bytes,
        });
        return say(&line.to_string());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&found.value)
        .and_then(|()| out.flush())
        .context("write to standard output")?;
    Ok(DONE)
}

fn list(args: &List) -> Result<u8> {
    let keys = match args.store.served()? {
        Some(mut store) => store.keys(args.prefix.as_bytes())?,
        None => Opened::look(&args.store.store)?.keys(args.prefix.as_bytes()),
    };
    if args.json {
        let keys: Vec<_> = keys
            .iter()
            .map(|key| String::from_utf8_lossy(key))
            .collect();
        return say(&serde_json::to_string(&keys)?);
    }
    let mut out = std::io::stdout().lock();
    for key in keys {
        let line = match args.null {
            true => [&key[..], b"\0"].concat(),
            false => (shown(&key) + "\n").into_bytes(),
        };
        out.write_all(&line).context("write to standard output")?;
    }
    out.flush().context("write to standard output")?;
    Ok(DONE)
}

fn copy(args: &CopyTo) -> Result<u8> {
    let mut row = remote::Remote::connect(&[&args.from, &args.to], &args.cluster_key, true)?;
    let bar = progress::waiting(format!("objects go to {}", args.to));
    let objects = row.bring();
    bar.finish_and_clear();
    let objects = objects?;
    if args.json {
        return say(&serde_json::json!({ "objects": objects }).to_string());
    }
    say(&format!(
        "{}: has all {objects} objects of {}",
        args.to, args.from
    ))
}

fn check(args: &Check) -> Result<u8> {
    let bar = progress::waiting(format!("every version of {}", args.dir.display()));
    let looked = Opened::look(&args.dir);
    bar.finish_and_clear();
    let looked = looked?;
    let found = looked.recovered;
    let (bytes, room) = looked.log_bytes();
    let end = match found.is_damaged() {
        false => DONE,
        true => NOT_WHOLE,
    };
    if args.json {
        let line = serde_json::json!({
            "objects": found.objects,
            "versions": found.versions,
            "invalid": found.invalid,
            "damaged": found.damaged,
            "lost": found.lost,
            "lost_bytes": found.lost_bytes,
            "torn": found.torn,
            "bytes": bytes,
        });
        say(&line.to_string())?;
        return Ok(end);
    }
    let (objects, versions) = (found.objects, found.versions);
    say(&format!("{objects} objects in {versions} versions"))?;
    if found.invalid > 0 {
        say(&format!(
            "{} versions without a value: skipped",
            found.invalid
        ))?;
    }
    if found.damaged > 0 {
        say(&format!(
            "{} of these were damaged by the disk; older versions are used",
            found.damaged
        ))?;
    }
    if found.lost > 0 {
        say(&format!(
            "{} of the log in {} place(s) is damaged: the versions there are lost",
            Size(found.lost_bytes),
            found.lost
        ))?;
    }
    if found.torn > 0 {
        say(&format!(
            "{} place(s) of the log were being written at a crash: skipped",
            found.torn
        ))?;
    }
    say(&format!("{} of {} used", Size(bytes), Size(room)))?;
    Ok(end)
}

fn say(line: &str) -> Result<u8> {
    writeln!(std::io::stdout().lock(), "{line}").context("write to standard output")?;
    Ok(DONE)
}

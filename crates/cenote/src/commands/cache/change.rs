//! `cache reshape`, `cache renew` and `cache delete`.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use cenote_cache::service::question::Question;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::size::Size;
use cenote_cli::span::{self, Span};
use cenote_cli::stdout;

use super::create::{Chosen, Wish, check, nothing_does, wait_whole};
use super::{manage, state};
use crate::caches::{CacheDir, Spec};
use crate::place::Which;
use crate::process::Identity;

#[derive(clap::Args, Debug)]
pub struct ReshapeArgs {
    /// Name of the cache
    name: String,
    /// New size. Data beyond a smaller size is lost
    #[arg(long, value_name = "SIZE")]
    size: Option<Size>,
    #[command(flatten)]
    wish: Wish,
    /// How long to wait until every region has memory
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `cache reshape`.
pub fn reshape(args: &ReshapeArgs) -> Result<u8> {
    if args.size.is_none() && !args.wish.is_there() {
        let what = "nothing to change";
        return Err(
            Failure::usage(what, "give --size, --configuration, or --model with an SLO").into(),
        );
    }
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    let mut spec = cache.spec()?;
    let (_, region, slab) = spec.sizes()?;
    if let Some(size) = args.size {
        // Before anything is asked: what is refused changes nothing.
        check(size, region, slab, spec.copies)?;
    }
    let wanted = match args.wish.choose(&loaded)? {
        Chosen::Usual => None,
        Chosen::Given(configuration) => Some((configuration, None)),
        Chosen::For(configuration, objective) => Some((configuration, Some(objective))),
        Chosen::Nothing(said, best) => return nothing_does(&said, &best, args.json),
    };
    if let Some((configuration, slo)) = wanted {
        let question = Question::Configure(configuration);
        let note = |spec: &mut Spec| (spec.configuration, spec.slo) = (configuration, slo);
        spec = cache.change(&loaded.key, &question, note)?;
    }
    if let Some(size) = args.size {
        let regions = u32::try_from(size.bytes() / region.bytes()).expect("checked");
        let question = Question::Resize { regions };
        let note = |spec: &mut Spec| spec.size = size.to_string();
        spec = cache.change(&loaded.key, &question, note)?;
    }
    let status = wait_whole(&cache, &loaded, args.timeout)?;
    state::print(&mut stdout::lock(), &cache, &spec, &status, args.json)?;
    Ok(if status.whole { DONE } else { NOT_WHOLE })
}

#[derive(clap::Args, Debug)]
pub struct RenewArgs {
    /// Name of the cache
    name: String,
    /// Time from now until the cache expires, as 90s, 12h or 7d [default: never]
    #[arg(long, value_name = "DURATION", value_parser = span::whole_seconds("1s", "36525d"))]
    duration: Option<Duration>,
    #[command(flatten)]
    which: Which,
}

/// `cache renew`.
pub fn renew(args: &RenewArgs) -> Result<u8> {
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    let seconds = args.duration.map(|time| time.as_secs());
    cache.ask(&loaded.key, &Question::Renew { seconds })?;
    match args.duration {
        Some(time) => println!(
            "cache {} expires in {} unless it is renewed",
            args.name,
            Span::from(time)
        ),
        None => println!("cache {} does not expire", args.name),
    }
    Ok(DONE)
}

#[derive(clap::Args, Debug)]
pub struct DeleteArgs {
    /// Name of the cache
    name: String,
    /// How long to wait until its memory is freed
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    which: Which,
}

/// `cache delete`.
pub fn delete(args: &DeleteArgs) -> Result<u8> {
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    if !cache.is_managed()? {
        // Hosts give memory back to a manager alone.
        manage::start(&args.which, &cache)?;
    }
    let identity = Identity::load(cache.folder())?;
    cache.ask(&loaded.key, &Question::Delete)?;
    let deadline = Instant::now() + args.timeout;
    let process = identity
        .map(|identity| identity.open())
        .transpose()?
        .flatten();
    if let Some(process) = process
        && !process.wait(deadline)?
    {
        bail!(
            "cache {} is being deleted; its manager did not exit within {}",
            args.name,
            Span::from(args.timeout)
        );
    }
    if CacheDir::open(&loaded.dir, &args.name).is_ok() {
        bail!(
            "the manager of cache {} ended before it was deleted",
            args.name
        );
    }
    println!("cache {} is deleted and its memory freed", args.name);
    Ok(DONE)
}

//! `cache create`, `cache start` and `cache stop`.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cenote_cache::market::Need;
use cenote_cache::owner::{REGION_BYTES_MAX, REGIONS_MAX};
use cenote_cache::service::message::ENTRY_SLABS_MAX;
use cenote_cache::service::question::{Parameters, Status};
use cenote_cache::tuner::Transport;
use cenote_cache::{Configuration, Space};
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE};
use cenote_cli::progress::{self, Left};
use cenote_cli::size::Size;
use cenote_cli::span;
use cenote_cli::stdout;
use cenote_measurer::files;
use cenote_pool::control::HostStatus;

use super::manage;
use super::slo::{Best, ModelArgs, refused, transport_of};
use super::state;
use crate::ask;
use crate::at_etcd::AtEtcd;
use crate::caches::{CacheDir, Objective, Spec, hosts_of};
use crate::place::{Loaded, Which};

#[derive(clap::Args, Debug)]
pub struct Args {
    /// Name of the cache: letters, digits, '-', '_' and '.'
    name: String,
    /// Size of the cache
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// Size of a region, the part of a cache on one machine; a multiple of the hosts' slab size
    #[arg(long, value_name = "SIZE", default_value_t = Size(64 << 20))]
    region: Size,
    /// Copies of each region, in different failure domains; with 2 the cache survives the loss of a
    /// machine
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    copies: u8,
    #[command(flatten)]
    wish: Wish,
    /// TOML file of machine types that the cache may acquire; the cheapest are used. Reread
    /// periodically
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Also use spot machines, which may be taken back
    #[arg(long, requires = "catalogue")]
    spot: bool,
    /// Slab size on acquired machines [default: 1M, or the region size if smaller]
    #[arg(long, value_name = "SIZE", requires = "catalogue")]
    slab: Option<Size>,
    /// Time until the cache expires, as 90s, 12h or 7d; cenote cache renew extends it [default:
    /// never]
    #[arg(long, value_name = "DURATION", value_parser = span::whole_seconds("1s", "36525d"))]
    duration: Option<Duration>,
    /// Address where clients on other machines reach the manager, tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Comma-separated etcd addresses, where managers elect their leader; for a folder that several
    /// machines share
    #[arg(long, value_name = "URLS")]
    etcd: Option<String>,
    #[command(flatten)]
    at_etcd: AtEtcd,
    /// How long to wait until every region has memory
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = span::any)]
    timeout: Duration,
    #[command(flatten)]
    which: Which,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What a cache has to do, as arguments.
#[derive(clap::Args, Debug)]
pub struct Wish {
    #[command(flatten)]
    model: ModelArgs,
    /// Configuration to use without a model: client threads, server threads (0: one-sided verbs),
    /// requests in a message, messages in flight, as in 2,1,8,16
    #[arg(long, value_name = "C,S,B,Q", conflicts_with = "model", value_parser = parameters)]
    configuration: Option<Parameters>,
    /// Transport of requests [default: that of the hosts' addresses, if the model has it]
    #[arg(long, value_name = "NAME", requires = "model")]
    transport: Option<Transport>,
}

/// What was chosen for a wish.
pub enum Chosen {
    /// Nothing was asked.
    Usual,
    /// The user chose.
    Given(Parameters),
    /// This does it.
    For(Parameters, Objective),
    /// Nothing does: what comes nearest, in words and for scripts.
    Nothing(String, Best),
}

/// Of a cache of which nothing is asked: one thread, one-sided, some requests under way.
const USUAL: Parameters = Parameters {
    c: 1,
    s: 0,
    b: 1,
    q: 16,
};

impl Wish {
    /// Whether anything is asked.
    pub fn is_there(&self) -> bool {
        self.model.is_there() || self.configuration.is_some()
    }

    /// The cheapest configuration that does it.
    ///
    /// # Errors
    /// The model is none, or has nothing for these hosts.
    pub fn choose(&self, loaded: &Loaded) -> Result<Chosen> {
        let Some((path, slo)) = self.model.asked()? else {
            return Ok(self.configuration.map_or(Chosen::Usual, Chosen::Given));
        };
        let model = files::model(path)?;
        let is_measured =
            |transport: &Transport| model.tables().any(|(key, _)| key.transport == *transport);
        let spoken = spoken(loaded).filter(is_measured);
        let transport = transport_of(&model, self.transport.or(spoken), path)?;
        let surface = model.surface(transport, 0, slo.record_bytes, slo.latency_of)?;
        Ok(match surface.search(&slo) {
            Ok(found) => Chosen::For(
                found.configuration.into(),
                Objective {
                    throughput: slo.throughput_per_second,
                    latency_us: slo.latency_us,
                    latency_of: slo.latency_of.to_string(),
                    record_bytes: slo.record_bytes,
                    predicted_throughput: found.prediction.throughput_per_second,
                    predicted_latency_us: found.prediction.latency_us,
                },
            ),
            Err(refusal) => Chosen::Nothing(refused(&refusal, &slo), Best::from(&*refusal)),
        })
    }
}

/// What the first host's address says of the transport.
fn spoken(loaded: &Loaded) -> Option<Transport> {
    let (family, _) = loaded.cluster.hosts.first()?.address.split_once(':')?;
    family.parse().ok()
}

/// Four numbers that make a configuration.
fn parameters(text: &str) -> Result<Parameters, String> {
    let refused = || "use C,S,B,Q as in 2,1,8,16; B is 1 if S is 0, and S at most C".to_owned();
    let numbers: Result<Vec<u32>, _> = text.split(',').map(|one| one.trim().parse()).collect();
    let [c, s, b, q] = numbers.map_err(|_| refused())?[..] else {
        return Err(refused());
    };
    let space =
        Space::new(THREADS_MAX, THREADS_MAX, 4096, 256).map_err(|error| error.to_string())?;
    let configuration = Configuration { c, s, b, q };
    space
        .contains(configuration)
        .then(|| configuration.into())
        .ok_or_else(refused)
}

const THREADS_MAX: u32 = 64;

/// Whether a cache can be so.
///
/// # Errors
/// What is wrong, and what would be right.
pub fn check(size: Size, region: Size, slab: Size, copies: usize) -> Result<()> {
    let wrong = |what: String, remedy: String| Err(Failure::usage(what, remedy).into());
    let (size_bytes, region_bytes, slab_bytes) = (size.bytes(), region.bytes(), slab.bytes());
    if slab_bytes == 0 || region_bytes == 0 || !region_bytes.is_multiple_of(slab_bytes) {
        let what = format!("region size {region}: hosts lend slabs of {slab}");
        return wrong(what, format!("use a multiple of {slab} for --region"));
    }
    let slabs_max = (ENTRY_SLABS_MAX / copies.max(1)) as u64;
    let most = Size(REGION_BYTES_MAX.min(slabs_max * slab_bytes));
    if region_bytes > most.bytes() {
        return wrong(
            format!("a region of {region}"),
            format!("use at most {most} for --region"),
        );
    }
    if size_bytes == 0 || !size_bytes.is_multiple_of(region_bytes) {
        let up = Size(size_bytes.max(1).div_ceil(region_bytes) * region_bytes);
        return wrong(
            format!("cache size {size}: must be a multiple of the region size {region}"),
            format!("--size {up}"),
        );
    }
    if size_bytes / region_bytes > u64::from(REGIONS_MAX) {
        let what = format!(
            "{} regions; the maximum is {REGIONS_MAX}",
            size_bytes / region_bytes
        );
        return wrong(what, "use a larger --region".to_owned());
    }
    Ok(())
}

pub fn run(args: &Args) -> Result<u8> {
    for address in &args.listen {
        let address: cenote_fabric::Address = address.parse().map_err(|error| {
            let what = format!("--listen: {error}");
            Failure::usage(what, "use tcp:HOST:PORT")
        })?;
        if !matches!(address, cenote_fabric::Address::Tcp(_)) {
            return Err(Failure::usage(format!("--listen {address}"), "tcp:HOST:PORT").into());
        }
    }
    let loaded = args.which.load()?;
    let copies = usize::from(args.copies);
    let slab = match &args.catalogue {
        Some(_) => args.slab.unwrap_or(SLAB.min(args.region)),
        None => {
            let offered = Offered::of(&loaded)?;
            offered.check(args.size.bytes(), copies)?;
            Size(offered.slab_bytes)
        }
    };
    check(args.size, args.region, slab, copies)?;
    let chosen = args.wish.choose(&loaded)?;
    let (configuration, slo) = match chosen {
        Chosen::Usual => (USUAL, None),
        Chosen::Given(configuration) => (configuration, None),
        Chosen::For(configuration, objective) => (configuration, Some(objective)),
        Chosen::Nothing(said, best) => return nothing_does(&said, &best, args.json),
    };
    if let Some(path) = &args.catalogue {
        check_market(args, path, configuration.s)?;
    }
    let mut spec = Spec::new(args.size, args.region, slab, copies, configuration)?;
    spec.slo = slo;
    spec.duration_s = args.duration.map(|time| time.as_secs());
    spec.listen.clone_from(&args.listen);
    spec.etcd.clone_from(&args.etcd);
    spec.at_etcd = args.at_etcd.absolute()?;
    if spec.etcd.is_none() && !spec.at_etcd.is_default() {
        let what = "a user or certificate for etcd is given, but no etcd";
        return Err(Failure::usage(what, "--etcd URLS").into());
    }
    let catalogue = args.catalogue.as_ref().map(std::path::absolute);
    spec.catalogue = catalogue.transpose().context("--catalogue")?;
    spec.spot = args.spot;
    let cache = CacheDir::create(&loaded.dir, &args.name, &spec)?;
    if let Err(error) = manage::start(&args.which, &cache) {
        cache.forget()?;
        return Err(error);
    }
    let status = wait_whole(&cache, &loaded, args.timeout)?;
    print(&cache, &spec, &status, args.json)
}

/// Of machines that are got, where nothing else is said.
const SLAB: Size = Size(1 << 20);

/// Whether the machines of a catalogue hold the cache.
fn check_market(args: &Args, path: &Path, server_threads: u32) -> Result<()> {
    let catalogue = files::catalogue(path)?;
    // No machine has more than one copy of a region.
    let most = args.size.bytes();
    let catalogue = catalogue.narrowed(|one| {
        one.memory_bytes = one.memory_bytes.min(most);
        true
    });
    let bytes = most.saturating_mul(u64::from(args.copies));
    let threads = server_threads.saturating_mul(u32::from(args.copies));
    let need = Need::new(bytes, args.region.bytes(), threads, u64::MAX)?.with_spot(args.spot);
    need.allocate(&catalogue).map_err(|none| {
        let what = format!("{}: {none}", path.display());
        Failure::new(
            what,
            "use a smaller --size or --spot, or add machines to the catalogue",
        )
    })?;
    Ok(())
}

/// Says what comes nearest to what was asked.
pub fn nothing_does(said: &str, best: &Best, json: bool) -> Result<u8> {
    let mut out = stdout::lock();
    if json {
        serde_json::to_writer(&mut out, &serde_json::json!({ "best": best }))?;
        writeln!(out)?;
    } else {
        writeln!(out, "{said}")?;
    }
    Ok(NOT_WHOLE)
}

fn print(cache: &CacheDir, spec: &Spec, status: &Status, json: bool) -> Result<u8> {
    let mut out = stdout::lock();
    state::print(&mut out, cache, spec, status, json)?;
    Ok(if status.whole { DONE } else { NOT_WHOLE })
}

/// Waits until every region has its memory, or `limit` is over.
pub fn wait_whole(cache: &CacheDir, loaded: &Loaded, limit: Duration) -> Result<Status> {
    const STEP: Duration = Duration::from_millis(100);
    let deadline = Instant::now() + limit;
    let (bar, mut time) = (progress::line(), Left::new());
    loop {
        let status = cache.status(&loaded.key)?;
        if status.whole || Instant::now() >= deadline {
            bar.finish_and_clear();
            return Ok(status);
        }
        let (open, all) = (status.regions.open as u64, status.regions.total as u64);
        let time = time.after(open, all);
        bar.set_message(format!("{open} of {all} regions writable{time}"));
        std::thread::sleep(STEP);
    }
}

/// What the hosts of a cluster offer.
struct Offered {
    slab_bytes: u64,
    /// Free memory of each host with such slabs: name, domain, bytes.
    free: Vec<(String, String, u64)>,
}

impl Offered {
    /// By the size of slabs that offers most.
    fn of(loaded: &Loaded) -> Result<Self> {
        const LIMIT: Duration = Duration::from_secs(3);
        let lend = hosts_of(&loaded.cluster)?;
        let is_lending = |name: &str| lend.iter().any(|host| host.name == name);
        let entries = loaded.cluster.hosts.iter();
        let entries: Vec<_> = entries
            .filter(|entry| is_lending(&entry.name))
            .cloned()
            .collect();
        let answers = ask::all(&entries, &loaded.key, LIMIT);
        let answers: Vec<HostStatus> = answers.into_iter().filter_map(Result::ok).collect();
        let mut by_slab: BTreeMap<u64, u64> = BTreeMap::new();
        for host in &answers {
            let free = u64::from(host.slabs_free()) * host.slab_bytes;
            *by_slab.entry(host.slab_bytes).or_default() += free;
        }
        let Some((&slab_bytes, _)) = by_slab.iter().max_by_key(|(_, free)| **free) else {
            let what = format!("{}: no host answers", loaded.file.display());
            return Err(Failure::new(what, "cenote status shows the state of each host").into());
        };
        let same = answers.iter().filter(|host| host.slab_bytes == slab_bytes);
        let free = same.map(|host| {
            let bytes = u64::from(host.slabs_free()) * slab_bytes;
            (host.name.clone(), host.domain.clone(), bytes)
        });
        let free = free.collect();
        Ok(Self { slab_bytes, free })
    }

    /// Whether a cache of so many bytes may find its memory there.
    fn check(&self, size_bytes: u64, copies: usize) -> Result<()> {
        let mut by_domain: BTreeMap<&str, u64> = BTreeMap::new();
        for (_, domain, free) in &self.free {
            *by_domain.entry(domain).or_default() += free;
        }
        if by_domain.len() < copies {
            return Err(Failure::new(
                format!(
                    "{copies} copies need {copies} failure domains; the hosts have {}",
                    by_domain.len()
                ),
                "use --copies 1, or add hosts in other domains",
            )
            .into());
        }
        // No domain has more than one copy of a region.
        let usable: u64 = by_domain.values().map(|&free| free.min(size_bytes)).sum();
        let wanted = size_bytes.saturating_mul(copies as u64);
        if usable < wanted {
            let what = format!(
                "{} in {copies} {} need {}; {} are free on hosts",
                Size(size_bytes),
                if copies == 1 { "copy" } else { "copies" },
                Size(wanted).rounded(),
                Size(usable).rounded()
            );
            return Err(Failure::new(what, "use a smaller --size, or add hosts").into());
        }
        Ok(())
    }
}

#[derive(clap::Args, Debug)]
pub struct Named {
    /// Name of the cache
    name: String,
    #[command(flatten)]
    which: Which,
}

/// `cache start`.
pub fn start(args: &Named) -> Result<u8> {
    let loaded = args.which.load()?;
    let cache = CacheDir::open(&loaded.dir, &args.name)?;
    manage::start(&args.which, &cache)?;
    println!("cache {} has a manager again", args.name);
    Ok(DONE)
}

/// `cache stop`.
pub fn stop(args: &Named) -> Result<u8> {
    let cache = CacheDir::open(&args.which.directory()?, &args.name)?;
    match manage::stop(&cache, Duration::from_secs(5))? {
        true => println!(
            "the manager of cache {} has stopped; hosts keep the data",
            args.name
        ),
        false => println!("cache {} had no manager", args.name),
    }
    Ok(DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_four_numbers_in_their_ranges() {
        let expected = Parameters {
            c: 2,
            s: 1,
            b: 8,
            q: 16,
        };
        assert_eq!(parameters("2,1,8,16"), Ok(expected));
        for text in [
            "", "2,1,8", "1,2,8,16", "1,0,8,16", "0,0,1,1", "1,0,1,0", "1,0,1,x",
        ] {
            assert!(parameters(text).is_err(), "{text}");
        }
    }

    #[test]
    fn shapes_that_no_cache_can_have_are_refused() {
        let m = |count: u64| Size(count << 20);
        assert!(check(m(256), m(64), m(1), 2).is_ok());
        for (size, region, slab, copies) in [
            (m(256), m(64), m(3), 1),
            (m(100), m(64), m(1), 1),
            (Size(0), m(64), m(1), 1),
            (m(4096), m(2048), m(1), 1),
            (m(4096), m(1024), m(1), 2),
            (Size(1 << 50), m(64), m(1), 1),
            (m(64), m(64), Size(0), 1),
        ] {
            assert!(
                check(size, region, slab, copies).is_err(),
                "{size} {region} {slab} {copies}"
            );
        }
    }
}

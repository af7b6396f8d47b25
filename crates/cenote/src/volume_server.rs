//! Opens a volume of a cluster and owns it, for the commands that serve one.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_cli::stderr;
use cenote_fabric::WireProtection;
use cenote_volume::{
    Backing, HostConfig, JournalError, Placement, Protection, RETURN_MAX, Resilience, Scheme,
    TagsError, Volume, VolumeConfig, VolumeError,
};

use crate::commands::volume::{check_scheme, check_size};
use crate::expectations::Expected;
use crate::place::Loaded;
use crate::protection::Protected;
use crate::scrub_rate::Scrubbing;
use crate::shell::quoted;
use crate::volumes::{Owner, Question, Spec, UNNAMED, Volumes};

/// A volume may grow to this many times the size that it was opened with: its tables are
/// laid out for it, a bit per page, and take memory only where they are used.
const GROWTH_MAX: u64 = 8;

/// Which volume is served: one that was created, or a new one.
#[derive(Clone, Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("which volume").args(["volume", "size"]).required(true).multiple(true))]
pub struct WhichVolume {
    /// Name of an existing volume; with --size, the name of a new one
    #[arg(long, value_name = "NAME")]
    pub volume: Option<String>,
    /// Name for a volume without one, from the command that started this server in the background
    #[arg(
        long,
        value_name = "NAME",
        hide = true,
        requires = "size",
        conflicts_with = "volume"
    )]
    unnamed: Option<String>,
    /// Size of a new volume; without --volume it is deleted when this command ends
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Scheme of a new volume: plain, mirror:N or rs:K+R [default: rs:8+2; plain with --backing]
    #[arg(long, value_name = "SCHEME", requires = "size")]
    pub scheme: Option<String>,
    /// Placement policy of a new volume: coding-sets:L (each extent stays in one group of K+R+L
    /// hosts); or least-loaded, two-choices, single or random, over all hosts [default: two-choices
    /// for plain; else coding-sets:2 if there are hosts for two groups, else least-loaded]
    #[arg(long, value_name = "PLACEMENT", requires = "size")]
    pub placement: Option<Placement>,
    /// Maximum rate of rebuilds and moves in bytes per second, as 200M [default: adaptive, keeps
    /// the p99 of requests within 1.5 times normal]
    #[arg(long, value_name = "SIZE")]
    pub repair_rate: Option<Size>,
    #[command(flatten)]
    pub expected: Expected,
    #[command(flatten)]
    pub protected: Protected,
    /// Scrub the volume continuously at this rate in bytes per second; 0 disables [default: 4M with
    /// --checksum, --seal, --mode detection or correction, else 0]
    #[arg(long, value_name = "SIZE")]
    pub scrub_rate: Option<Size>,
    /// Protection of pages over tcp: encrypted; authenticated (readable, but not changed
    /// unnoticed); or plain, if the hosts allow it [default: that of the cluster file, else
    /// encrypted]
    #[arg(long, value_name = "HOW")]
    pub page_traffic: Option<WireProtection>,
    #[command(flatten)]
    pub backed: Backed,
}

impl WhichVolume {
    /// The volume's name; one that nobody named is called after the process that makes it, or that
    /// started the server which does.
    pub fn name(&self) -> String {
        let named = self.volume.as_ref().or(self.unnamed.as_ref());
        let made = || format!("{UNNAMED}{}", std::process::id());
        named.cloned().unwrap_or_else(made)
    }

    /// The flags that say the same to another process.
    ///
    /// # Errors
    /// A path that is not absolute, and no current folder.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments: Vec<OsString> = Vec::new();
        let plain = [
            ("--volume", self.volume.clone()),
            ("--size", self.size.map(|size| size.to_string())),
            ("--scheme", self.scheme.clone()),
            ("--placement", self.placement.map(|at| at.to_string())),
            (
                "--page-traffic",
                self.page_traffic.map(|how| how.name().to_string()),
            ),
            (
                "--repair-rate",
                self.repair_rate.map(|rate| rate.to_string()),
            ),
            ("--scrub-rate", self.scrub_rate.map(|rate| rate.to_string())),
        ];
        for (flag, value) in plain {
            if let Some(value) = value {
                arguments.extend([flag.into(), value.into()]);
            }
        }
        arguments.extend(self.expected.arguments());
        arguments.extend(self.protected.arguments()?);
        arguments.extend(self.backed.arguments()?);
        Ok(arguments)
    }
}

/// What stands behind a new volume without a name.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Backed {
    /// File or block device that also gets every page, after the hosts have acknowledged it; then
    /// all hosts may take their memory back. Created if missing; one with other content is refused.
    /// Only for a volume without a name, which ends with this command
    #[arg(
        long,
        value_name = "FILE",
        requires = "size",
        conflicts_with = "volume"
    )]
    pub backing: Option<PathBuf>,
    /// Page reads and writes per second above which an extent gets slabs on hosts; 0: with its next
    /// write [default: 20]
    #[arg(long, value_name = "RATE", requires = "backing", value_parser = rate)]
    pub hot_slab: Option<f64>,
    /// Page reads and writes per second below which an extent gives its slabs back [default: never]
    #[arg(long, value_name = "RATE", requires = "backing", value_parser = rate)]
    pub cold_slab: Option<f64>,
}

impl Backed {
    /// The flags that say the same to another process.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments = Vec::new();
        if let Some(path) = &self.backing {
            let path = std::path::absolute(path).context("--backing")?;
            arguments.extend(["--backing".into(), path.into_os_string()]);
        }
        let rates = [
            ("--hot-slab", self.hot_slab),
            ("--cold-slab", self.cold_slab),
        ];
        for (flag, rate) in rates {
            if let Some(rate) = rate {
                arguments.extend([flag.into(), rate.to_string().into()]);
            }
        }
        Ok(arguments)
    }

    fn open(&self, size_bytes: u64) -> Result<Option<Backing>> {
        let Some(path) = &self.backing else {
            return Ok(None);
        };
        let mut backing = Backing::open(path, size_bytes)
            .map_err(|error| Failure::new(error.to_string(), "use another --backing"))?;
        backing.hot_slab = self.hot_slab.unwrap_or(backing.hot_slab);
        backing.cold_slab = self.cold_slab.unwrap_or(backing.cold_slab);
        if backing.hot_slab > 0.0 && backing.cold_slab > backing.hot_slab {
            let what = "--cold-slab above --hot-slab would drop slabs right after they are mapped";
            return Err(Failure::usage(what, "use a lower --cold-slab").into());
        }
        Ok(Some(backing))
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate >= 0.0 => Ok(rate),
        _ => Err("a rate is a number that is at least 0".into()),
    }
}

/// An open volume and the right to it. Dropping it gives the volume's memory back, or leaves it to
/// the next owner.
pub struct Serving {
    /// The volume.
    pub volume: Arc<Volume>,
    /// Its name in the folder.
    pub name: String,
    /// Its description.
    pub spec: Spec,
    volumes: Volumes,
    owner: Arc<Owner>,
    scrubbing: Arc<Scrubbing>,
    end: End,
    /// A new volume that nobody has been told of: it does not outlive a failure.
    is_unannounced: bool,
}

/// What becomes of a volume's content when its server ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// It stays with the hosts, for the next owner.
    Keep,
    /// It goes.
    GiveBack,
    /// It goes, and so does the volume's description.
    Forget,
}

impl Serving {
    /// Opens the volume and answers questions about it from then on. A new one is forgotten with this
    /// unless it is [announced](Self::announced): the same command is right once it can be served.
    ///
    /// # Errors
    /// There is no such volume, another process owns it, too few hosts answer, or what the last
    /// owner left cannot be taken over. With [`End::GiveBack`] also that it left anything.
    pub fn open(loaded: &Loaded, which: &WhichVolume, end: End) -> Result<Self> {
        let volumes = Volumes::new(&loaded.dir);
        let name = which.name();
        volumes.forget_unnamed(&name)?;
        let end = match which.volume {
            Some(_) => end,
            None => End::Forget,
        };
        if let Some(size) = which.size {
            let usual = which.backed.backing.as_ref().map_or("rs:8+2", |_| "plain");
            let scheme = which.scheme.as_deref().unwrap_or(usual);
            let mut spec = Spec::new(check_size(size)?, check_scheme(scheme)?)?;
            spec.expect(which.expected.of(scheme)?);
            spec.placement = which.placement.map(|placement| placement.to_string());
            which.protected.describe(&mut spec)?;
            volumes.create(&name, &spec)?;
        } else if which.expected.is_given() {
            let what = "--mode and --delta are for a new volume; this volume has its own";
            return Err(Failure::usage(what, "cenote volume set").into());
        }
        let mut opened = volumes.own(&name).and_then(|owner| {
            if end == End::GiveBack {
                refuse_content(&volumes, &owner)?;
            }
            let opened = Self::open_with(
                loaded,
                volumes.clone(),
                Arc::new(owner),
                end,
                &which.backed,
                Some(&which.protected),
                which.page_traffic.unwrap_or(loaded.page_traffic),
            )?;
            // From then on it follows the volume's mode.
            opened.scrubbing.begin(&opened.volume, which.scrub_rate)?;
            Ok(opened)
        });
        if let (Ok(serving), Some(rate)) = (&opened, which.repair_rate) {
            serving.volume.pace_repairs(rate.bytes(), true);
        }
        match &mut opened {
            Ok(serving) => serving.is_unannounced = which.size.is_some(),
            // What this very command described does not outlive its failure.
            Err(_) if which.size.is_some() => volumes.delete(&name)?,
            Err(_) => {}
        }
        opened
    }

    /// Whoever wanted the volume knows that it is served: a new one stays from now on.
    pub fn announced(&mut self) {
        self.is_unannounced = false;
    }

    /// As [`Serving::open`], of a volume that there is.
    ///
    /// # Errors
    /// As [`Serving::open`].
    pub fn open_named(loaded: &Loaded, volumes: Volumes, name: &str, end: End) -> Result<Self> {
        let (backed, protected) = (Backed::default(), Protected::default());
        let owner = Arc::new(volumes.own(name)?);
        Self::open_with(
            loaded,
            volumes,
            owner,
            end,
            &backed,
            Some(&protected),
            loaded.page_traffic,
        )
    }

    /// As [`Serving::open_named`], of a volume whose content goes: its pages are not read, so that a
    /// key that is lost does not stand in the way. The caller stays its owner, so that nobody opens
    /// the volume before its content is forgotten.
    ///
    /// # Errors
    /// As [`Serving::open`].
    pub fn open_to_give_back(
        loaded: &Loaded,
        volumes: Volumes,
        owner: &Arc<Owner>,
    ) -> Result<Self> {
        volumes.forget_tags(owner)?;
        Self::open_with(
            loaded,
            volumes,
            Arc::clone(owner),
            End::GiveBack,
            &Backed::default(),
            None,
            loaded.page_traffic,
        )
    }

    fn open_with(
        loaded: &Loaded,
        volumes: Volumes,
        owner: Arc<Owner>,
        end: End,
        backed: &Backed,
        protected: Option<&Protected>,
        page_traffic: WireProtection,
    ) -> Result<Self> {
        let is_read = protected.is_some();
        let name = owner.name();
        let spec = volumes.load(name)?;
        let _span = tracing::info_span!(
            "open volume",
            cenote.volume = name,
            cenote.scheme = spec.scheme,
            cenote.hosts = loaded.cluster.hosts.len() as i64,
        )
        .entered();
        let size_bytes = spec.size()?.bytes();
        let hosts = hosts(loaded)?;
        let resilience = spec.resilience()?;
        let placement = match spec.placement()? {
            Some(placement) => placement,
            None => {
                let scheme = resilience.scheme();
                let usual = Placement::usual(scheme.k(), scheme.r(), hosts.len());
                volumes.set_placement(name, usual)?;
                usual
            }
        };
        let config = VolumeConfig {
            name: name.to_owned(),
            id: spec.id()?,
            protection: protected.map_or(Ok(Protection::None), |said| said.of(name, &spec))?,
            resilience,
            placement,
            size_bytes,
            size_bytes_max: size_bytes.saturating_mul(GROWTH_MAX),
            hosts,
            return_max: RETURN_MAX,
        };
        let key = loaded.key.clone();
        let connector = Arc::new(cenote_fabric::connector_with(key, page_traffic));
        let opened = if let Some(backing) = backed.open(size_bytes)? {
            Volume::open_backed(config, backing, connector)
        } else if end == End::Forget {
            Volume::open(config, connector)
        } else {
            let kept = volumes.kept(name)?;
            let kept = match is_read {
                true => kept,
                false => kept.given_up(),
            };
            Volume::open_kept(config, kept, connector)
        };
        let volume = opened.map_err(|e| {
            let hint = match e {
                _ if e.is_for_want_of_room() => {
                    "free space on the disk of the cluster folder; nothing is lost".to_owned()
                }
                VolumeError::Unlisted { .. } => format!(
                    "list them in {} again, or discard the volume's content: cenote volume reset \
                     {name}",
                    loaded.file.display()
                ),
                VolumeError::Beyond { .. }
                | VolumeError::Outgrown { .. }
                | VolumeError::Size { .. } => format!("cenote volume resize {name} --size SIZE"),
                VolumeError::Journal(JournalError::DamagedEnd { at }) => {
                    let cut = quoted(&loaded.dir.folder().join(&format!("volumes/{name}.journal")));
                    format!(
                        "truncate -s {at} {cut} gives up what the batch said, and pages that only \
                         it knows of are errors then; cenote volume reset {name} discards all"
                    )
                }
                VolumeError::Marks(_)
                | VolumeError::Journal(_)
                | VolumeError::Foreign
                | VolumeError::Superseded => {
                    format!("cenote volume reset {name} discards its content")
                }
                VolumeError::Tags(TagsError::Key) => {
                    format!("give the key that {name} was made with: --seal FILE")
                }
                _ => format!("cenote status --cluster {}", quoted(&loaded.file)),
            };
            Failure::new(format!("open volume {name}: {e}"), hint)
        })?;
        if is_read {
            warn_of_few_domains(loaded, name, resilience.scheme());
        }
        let volume = Arc::new(volume);
        let scrubbing = Arc::new(Scrubbing::new(spec.protection.is_some()));
        let (asked, folder) = (Arc::clone(&volume), volumes.clone());
        let (called, scrubs) = (name.to_owned(), Arc::clone(&scrubbing));
        owner.answer(move |question| answer(&asked, &folder, &called, &scrubs, question))?;
        Ok(Self {
            volume,
            name: name.to_owned(),
            spec,
            volumes,
            owner,
            scrubbing,
            end,
            is_unannounced: false,
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.is_unannounced {
            self.end = End::Forget;
        }
        let _span = tracing::info_span!(
            "close volume",
            cenote.volume = self.name,
            cenote.end = match self.end {
                End::Keep => "keep",
                End::GiveBack => "give back",
                End::Forget => "forget",
            },
        )
        .entered();
        match self.end {
            End::Keep => self.volume.detach(),
            End::GiveBack | End::Forget => self.volume.close(),
        }
        if self.end == End::Forget
            && let Err(error) = self.volumes.forget(&self.owner)
        {
            tracing::warn!(error = cenote_cli::failure::chain(&error), "forget volume");
        }
    }
}

/// Refuses a volume whose content somebody may want: whoever opens it here gives all of it back.
fn refuse_content(volumes: &Volumes, owner: &Owner) -> Result<()> {
    let name = owner.name();
    // A journal that is damaged is refused when it is opened.
    let Ok(Some(_)) = volumes.left(name) else {
        return Ok(());
    };
    // The way out is in the message: `swap on` passes only that on.
    Err(Failure::new(
        format!(
            "volume {name} holds data, which would be lost; cenote volume reset {name} discards it"
        ),
        "use another volume, or reset this one",
    )
    .into())
}

/// A volume is served with fewer failure domains than its pages have parts: they bear less, and who
/// counts on more is told at once.
fn warn_of_few_domains(loaded: &Loaded, name: &str, scheme: Scheme) {
    let hosts = loaded.cluster.hosts.iter();
    let lenders = hosts.filter(|host| host.lends && !host.retired);
    let domains: BTreeSet<&str> = lenders.map(|host| host.domain.as_str()).collect();
    let (domains, members) = (domains.len(), scheme.members());
    if domains < members {
        let file = loaded.file.display();
        stderr::say(format_args!(
            "warning: volume {name}: pages of {scheme} have {members} parts, but {file} has hosts \
             in {domains} failure domains: they survive the loss of {} hosts in place of {}",
            domains.saturating_sub(scheme.k()),
            scheme.r()
        ));
    }
}

fn hosts(loaded: &Loaded) -> Result<Vec<HostConfig>> {
    let mut hosts = Vec::new();
    for host in &loaded.cluster.hosts {
        let address = host
            .address
            .parse()
            .with_context(|| format!("host {}", host.name))?;
        hosts.push(HostConfig {
            name: host.name.clone(),
            address,
            domain: host.domain.clone(),
            power: host.power.clone(),
            retired: host.retired,
            lends: host.lends,
        });
    }
    Ok(hosts)
}

fn answer(
    volume: &Volume,
    volumes: &Volumes,
    name: &str,
    scrubbing: &Scrubbing,
    question: Question,
) -> Result<serde_json::Value> {
    match question {
        Question::Status => Ok(serde_json::to_value(volume.status()?)?),
        Question::Scrub => {
            volume.begin_scrub()?;
            Ok(serde_json::Value::Null)
        }
        Question::Repair { bytes_per_s } => {
            volume.pace_repairs(bytes_per_s, true);
            Ok(serde_json::Value::Null)
        }
        Question::Resize { bytes } => {
            volume.reserve(bytes).map_err(|error| match error {
                // Of those who ask over a socket each sees the text alone.
                VolumeError::Growth { size_bytes_max, .. } => anyhow!(
                    "{} is more than {}, {GROWTH_MAX} times the size with which its server was \
                     started: stop the server, resize the volume, and serve it again",
                    Size(bytes),
                    Size(size_bytes_max)
                ),
                error => error.into(),
            })?;
            // First: an owner refuses what was written beyond the size that it finds.
            volumes.set_size(name, Size(bytes))?;
            volume.resize(bytes)?;
            Ok(serde_json::Value::Null)
        }
        Question::Set {
            scheme,
            mode,
            delta,
        } => {
            let wanted = Resilience::new(scheme.parse()?, mode.parse()?, delta)?;
            volume.check_resilience(wanted)?;
            // First: whoever owns it next goes on with what this one may not end.
            volumes.set_resilience(name, wanted)?;
            volume.set_resilience(wanted)?;
            scrubbing.follow(volume, wanted)?;
            Ok(serde_json::Value::Null)
        }
    }
}

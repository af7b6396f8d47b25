//! The volumes of a cluster folder: what they are, and who owns each right now.
//!
//! A volume has one owner at a time, the process that holds the lock on `NAME.lock`.
//! The lock goes with its process, so a file left behind means nothing. The owner
//! answers on `NAME.sock`: one JSON request per line, one JSON answer per line.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_volume::{JournalFile, Kept, Left, Placement, Resilience, Scheme};
use serde::{Deserialize, Serialize};

use crate::ask::random_u128;
use crate::folder::Folder;
use crate::lock::{is_locked, try_lock};
use crate::place::ClusterDir;
use crate::process::Identity;

mod owner;
mod seen;

pub use owner::Owner;

/// How long the owner of a volume may take to answer, and to be asked.
const OWNER_LIMIT: Duration = Duration::from_secs(10);

/// Begins the name of a volume that nobody named; it is forgotten with its owner.
pub const UNNAMED: &str = "unnamed-";

/// What an owner leaves to the next beside the journal, which says what it is about. The marks of pages
/// come first: where the journal names slabs, nobody opens the volume without them.
const BESIDE_JOURNAL: [&str; 4] = ["pages", "images", "tags", "sides"];
/// The journal, and what older versions left when they were killed while they wrote it.
const JOURNAL: [&str; 2] = ["journal", "journal.new"];

/// What a volume is; the content of its file.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// 128 bits in hex, drawn when the volume is created.
    pub id: String,
    /// As `--size` takes it.
    pub size: String,
    /// As `--scheme` takes it.
    pub scheme: String,
    /// As `--mode` takes it; none of a volume that is older than modes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// As `--delta` takes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<usize>,
    /// As `--placement` takes it; from the volume's first owner on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<String>,
    /// `checksum` or `sealed`, where its pages are protected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protection: Option<String>,
    /// Where the key of a sealed volume is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Spec {
    /// A volume that nobody has made before.
    ///
    /// # Errors
    /// The system has no randomness.
    pub fn new(size: Size, scheme: &str) -> Result<Self> {
        Ok(Self {
            id: format!("{:032x}", random_u128()?),
            size: size.to_string(),
            scheme: scheme.to_owned(),
            mode: None,
            delta: None,
            placement: None,
            protection: None,
            key: None,
        })
    }

    /// Its identity as a number.
    ///
    /// # Errors
    /// The file was edited into something else.
    pub fn id(&self) -> Result<u128> {
        u128::from_str_radix(&self.id, 16).with_context(|| format!("volume id {:?}", self.id))
    }

    /// What it expects of its hosts.
    ///
    /// # Errors
    /// The file was edited into something else.
    pub fn resilience(&self) -> Result<Resilience> {
        let scheme: Scheme = self.scheme.parse()?;
        let mode = self.mode.as_deref().map(str::parse).transpose();
        let mode = mode.context("volume file")?.unwrap_or_default();
        Resilience::new(scheme, mode, self.delta.unwrap_or(0)).context("volume file")
    }

    /// Notes what it expects of its hosts, for this owner and those after it.
    pub fn expect(&mut self, resilience: Resilience) {
        self.mode = Some(resilience.mode().to_string());
        self.delta = Some(resilience.delta());
    }

    /// How its hosts are chosen; `None` of one that nobody has opened yet.
    ///
    /// # Errors
    /// The file was edited into something else.
    pub fn placement(&self) -> Result<Option<Placement>> {
        let parse = |text: &str| {
            text.parse()
                .with_context(|| format!("volume placement {text:?}"))
        };
        self.placement.as_deref().map(parse).transpose()
    }

    /// Its size.
    ///
    /// # Errors
    /// The file was edited into something else.
    pub fn size(&self) -> Result<Size> {
        self.size
            .parse()
            .with_context(|| format!("volume size {:?}", self.size))
    }
}

/// What the owner of a volume is asked.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// Extents, health, regeneration, memory.
    Status,
    /// Look at every page once, and put right what is wrong.
    Scrub,
    /// Another limit on what is rebuilt and moved.
    Repair {
        /// Bytes of slabs per second; 0: none but what requests leave.
        bytes_per_s: u64,
    },
    /// Another size.
    Resize {
        /// In bytes.
        bytes: u64,
    },
    /// Expect something else of hosts.
    Set {
        /// As `--scheme` takes it.
        scheme: String,
        /// As `--mode` takes it.
        mode: String,
        /// As `--delta` takes it.
        delta: usize,
    },
}

impl Question {
    /// Asks for another resilience.
    #[must_use]
    pub fn set(wanted: Resilience) -> Self {
        Self::Set {
            scheme: wanted.scheme().to_string(),
            mode: wanted.mode().to_string(),
            delta: wanted.delta(),
        }
    }
}

/// The folder of volumes.
#[derive(Clone, Debug)]
pub struct Volumes {
    dir: ClusterDir,
}

impl Volumes {
    /// Those of a cluster folder.
    pub fn new(dir: &ClusterDir) -> Self {
        Self { dir: dir.clone() }
    }

    /// Where a volume is known, or of a name that none has, would be.
    fn folder(&self, name: &str) -> Result<Folder> {
        check_name(name)?;
        self.dir.volumes()?.ok_or_else(|| none_of(name))
    }

    /// The names of all volumes, sorted. What their files say is not looked at: one that cannot be read
    /// must not stand in the way of the others.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn names(&self) -> Result<Vec<String>> {
        let Some(folder) = self.dir.volumes()? else {
            return Ok(Vec::new());
        };
        let files = folder.names()?;
        let names = files.iter().filter_map(|file| file.strip_suffix(".toml"));
        let names = names.filter(|name| check_name(name).is_ok());
        Ok(names.map(str::to_owned).collect())
    }

    /// One volume.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn load(&self, name: &str) -> Result<Spec> {
        read_spec(&self.folder(name)?, name)?.ok_or_else(|| none_of(name))
    }

    /// Describes a new volume; its memory is taken when it is written to.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn create(&self, name: &str, spec: &Spec) -> Result<()> {
        check_name(name)?;
        let text = toml::to_string(spec).context("volume file")?;
        match self
            .dir
            .make_volumes()?
            .write_new(&file(name, "toml"), &text)
        {
            Err(error) if error.is_taken() => Err(Failure::new(
                format!("volume {name} already exists"),
                format!("use another name, or cenote volume delete {name}"),
            )
            .into()),
            other => Ok(other?),
        }
    }

    /// Notes another size.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_size(&self, name: &str, size: Size) -> Result<()> {
        self.edit(name, |spec| spec.size = size.to_string())
    }

    /// Notes what the volume expects of its hosts, for this owner and those after it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_resilience(&self, name: &str, resilience: Resilience) -> Result<()> {
        self.edit(name, |spec| {
            spec.scheme = resilience.scheme().to_string();
            spec.expect(resilience);
        })
    }

    /// Notes how hosts are chosen, for this owner and those after it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn set_placement(&self, name: &str, placement: Placement) -> Result<()> {
        self.edit(name, |spec| spec.placement = Some(placement.to_string()))
    }

    /// Changes a volume's description, and loses no change that another process makes meanwhile: an
    /// owner notes one thing while a command notes another.
    fn edit(&self, name: &str, change: impl FnOnce(&mut Spec)) -> Result<()> {
        let folder = self.folder(name)?;
        // Given back when it is dropped.
        let _lock = folder.lock()?;
        folder.remove_drafts(&file(name, "toml"))?;
        let mut spec = self.load(name)?;
        change(&mut spec);
        let text = toml::to_string(&spec).context("volume file")?;
        Ok(folder.write(&file(name, "toml"), &text)?)
    }

    /// Forgets a volume that nobody owns. Hosts that hold some of it are not told.
    ///
    /// # Errors
    /// It is in use, or not there.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.forget(&self.own(name)?)
    }

    /// Forgets the volume that this process owns. Hosts that hold some of it are not told.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget(&self, owner: &Owner) -> Result<()> {
        // Nothing is written, so that a full disk gets room by it. Cut off in between, it leaves the
        // journal of a volume that is gone, which another one of that name refuses.
        owner.remove(&["toml"])?;
        owner.remove(&BESIDE_JOURNAL)?;
        owner.remove(&JOURNAL)?;
        owner.remove(&["sock", "lock"])
    }

    /// Where what the owner leaves to the next is kept; see `cenote_volume::Kept`.
    ///
    /// # Errors
    /// The files cannot be opened.
    pub fn kept(&self, name: &str) -> Result<Kept> {
        let folder = self.folder(name)?;
        let path = |kind| folder.join(&file(name, kind));
        let (journal, marks) = (path("journal"), path("pages"));
        let (tags, layouts) = (path("tags"), path("sides"));
        Kept::in_files(&journal, &marks, &path("images"))
            .with_context(|| marks.display().to_string())?
            .with_tags(&tags)
            .with_context(|| tags.display().to_string())?
            .with_layouts(&layouts)
            .with_context(|| layouts.display().to_string())
    }

    /// What the last owner left on hosts; `None` when that is nothing.
    ///
    /// # Errors
    /// The journal is damaged.
    pub fn left(&self, name: &str) -> Result<Option<Left>> {
        let path = self.folder(name)?.join(&file(name, "journal"));
        let left = Kept::summary(&mut JournalFile::new(&path))
            .with_context(|| format!("{}", path.display()))?;
        Ok(left.filter(|left| left.slabs > 0))
    }

    /// Forgets what the last owner left. Hosts that hold some of it are not told, so that the
    /// volume is another one from then on: to them, and to a device that waits for its server.
    ///
    /// # Errors
    /// The system refuses. If it refuses the new identity the volume cannot be opened until this is
    /// done again.
    pub fn forget_content(&self, owner: &Owner) -> Result<()> {
        let id = format!("{:032x}", random_u128()?);
        // In this order a crash leaves no volume that looks empty and has its old identity: hosts have
        // slabs of that one, and a device that waits for its server would go on with other bytes.
        // Without the marks a journal that names slabs is refused, and one of another identity always.
        // The marks go before the identity is written: a full disk has room for it then.
        owner.remove(&BESIDE_JOURNAL)?;
        self.edit(owner.name(), |spec| spec.id = id)?;
        owner.remove(&JOURNAL)
    }

    /// Forgets what is kept of a volume's protected pages: they can no longer be read. The volume is no
    /// protected one from then on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget_tags(&self, owner: &Owner) -> Result<()> {
        let spec = self.load(owner.name())?;
        if spec.protection.is_some() {
            owner.remove(&["tags"])?;
        }
        Ok(())
    }

    /// Becomes the one owner of a volume, until the guard is dropped.
    ///
    /// # Errors
    /// Another process owns it, or it is not there.
    pub fn own(&self, name: &str) -> Result<Owner> {
        if let Some(owner) = self.own_if_free(name)? {
            return Ok(owner);
        }
        if !self.is_there(name)? {
            return Err(none_of(name));
        }
        Err(Failure::new(
            format!("volume {name} is in use by another process"),
            format!(
                "cenote volume status {name} shows it; stop its mount, nbd server or swap first"
            ),
        )
        .into())
    }

    /// As [`Volumes::own`]; `None` of one that another process owns, or that is gone.
    fn own_if_free(&self, name: &str) -> Result<Option<Owner>> {
        if !self.is_there(name)? {
            return Ok(None);
        }
        let folder = self.folder(name)?;
        let Some(lock) = try_lock(&folder, &file(name, "lock"))? else {
            return Ok(None);
        };
        // Whoever had the lock may have deleted it, and with it the file that is locked.
        if !self.is_there(name)? {
            folder.remove(&file(name, "lock"))?;
            return Ok(None);
        }
        // Only owners write it: whoever began these is gone.
        folder.remove_drafts(&file(name, "journal"))?;
        Ok(Some(Owner {
            folder,
            name: name.to_owned(),
            _lock: lock,
        }))
    }

    /// Whether there is a volume of that name, whatever its file says.
    fn is_there(&self, name: &str) -> Result<bool> {
        Ok(self.folder(name)?.has(&file(name, "toml"))?)
    }

    /// Whether a process owns the volume.
    ///
    /// # Errors
    /// The lock cannot be tried.
    pub fn is_owned(&self, name: &str) -> Result<bool> {
        let (folder, lock) = (self.folder(name)?, file(name, "lock"));
        Ok(folder.has(&lock)? && is_locked(&folder, &lock)?)
    }

    /// Names of the volumes that a process owns.
    ///
    /// # Errors
    /// As [`Volumes::names`].
    pub fn in_use(&self) -> Result<Vec<String>> {
        let mut used = Vec::new();
        for name in self.names()? {
            if self.is_owned(&name)? {
                used.push(name);
            }
        }
        Ok(used)
    }

    /// Removes what is of no use once all hosts are gone: contents of volumes, sockets of owners
    /// that were killed, and volumes without a name. Those that a process owns stay as they are.
    /// Names of volumes that hosts had slabs of.
    ///
    /// # Errors
    /// The folder cannot be read. A volume that cannot be cleared is none: it does not keep the others.
    pub fn clear(&self) -> Result<Vec<String>> {
        let mut held = Vec::new();
        for name in self.names()? {
            // What a damaged journal says nobody knows.
            let had_slabs = !matches!(self.left(&name), Ok(None));
            if had_slabs && !name.starts_with(UNNAMED) {
                held.push(name.clone());
            }
            if let Err(error) = self.clear_one(&name) {
                tracing::warn!(
                    volume = name,
                    error = cenote_cli::failure::chain(&error),
                    "the volume's content is lost, but not forgotten: cenote volume reset"
                );
            }
        }
        Ok(held)
    }

    fn clear_one(&self, name: &str) -> Result<()> {
        match self.own_if_free(name)? {
            Some(owner) if name.starts_with(UNNAMED) => self.forget(&owner),
            Some(owner) => self.forget_content(&owner),
            None => Ok(()),
        }
    }

    /// Forgets volumes without a name whose process was killed: nobody can ask for them. To be called before this
    /// process makes one that is called `ours`: what has that name by then is of an earlier process of the same
    /// number, as in a container, where the first process has the same one each time.
    ///
    /// # Errors
    /// As [`Volumes::names`], or one of them cannot be removed.
    pub fn forget_unnamed(&self, ours: &str) -> Result<()> {
        for name in self.names()? {
            let process = name.strip_prefix(UNNAMED).and_then(|pid| pid.parse().ok());
            // One that is just being made is not owned yet.
            let is_past = |pid: &u32| name == ours || Identity::of(*pid).is_err();
            let Some(pid) = process.filter(is_past) else {
                continue;
            };
            if let Some(owner) = self.own_if_free(&name)? {
                tracing::info!(
                    volume = name,
                    pid,
                    "its process was killed; the volume is forgotten"
                );
                self.forget(&owner)?;
            }
        }
        Ok(())
    }

    /// Asks the owner of a volume; what it answers.
    ///
    /// # Errors
    /// Nobody owns it, or the owner refuses or is silent.
    pub fn ask(&self, name: &str, question: Question) -> Result<serde_json::Value> {
        self.ask_within(name, question, OWNER_LIMIT)
    }

    /// As [`Volumes::ask`], of an owner that takes no longer than `limit` to read or to answer.
    ///
    /// # Errors
    /// As [`Volumes::ask`].
    pub fn ask_within(
        &self,
        name: &str,
        question: Question,
        limit: Duration,
    ) -> Result<serde_json::Value> {
        let folder = self.folder(name)?;
        owner::ask(&folder.socket(&file(name, "sock")), name, &question, limit)
    }
}

/// The name of one of a volume's files.
fn file(name: &str, kind: &str) -> String {
    format!("{name}.{kind}")
}

/// What a volume's file says; `None`: there is none.
fn read_spec(folder: &Folder, name: &str) -> Result<Option<Spec>> {
    let file = file(name, "toml");
    let Some(text) = folder.read(&file)? else {
        return Ok(None);
    };
    let path = folder.join(&file);
    match toml::from_str(&text) {
        Ok(spec) => Ok(Some(spec)),
        // In one line: it also stands in tables.
        Err(error) => bail!("{}: {}", path.display(), error.message()),
    }
}

fn none_of(name: &str) -> anyhow::Error {
    Failure::new(
        format!("there is no volume {name}"),
        "cenote volume list shows all volumes",
    )
    .into()
}

/// Names become file names.
fn check_name(name: &str) -> Result<()> {
    check_name_of("volume", name)
}

/// Whether something of this kind may have the name.
///
/// # Errors
/// It may not.
pub fn check_name_of(kind: &str, name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-'])
    {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{name:?} is not a valid {kind} name"),
        "use 1 to 64 letters, digits, '-', '_' and '.', starting with a letter or digit",
    )
    .into())
}

#[cfg(test)]
mod tests;

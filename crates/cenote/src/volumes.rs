//! The volumes of a cluster folder: what they are, and who owns each right now.
//!
//! A volume has one owner at a time, the process that holds the lock on `NAME.lock`.
//! The lock goes with its process, so a file left behind means nothing. The owner
//! answers on `NAME.sock`: one JSON request per line, one JSON answer per line.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use cenote_volume::{JournalFile, Kept, Left, Placement, Resilience, Scheme};
use serde::{Deserialize, Serialize};

use crate::ask::random_u128;
use crate::failure::Failure;
use crate::place::{ClusterDir, create_private, is_locked, try_lock};
use crate::process::remove_if_there;
use crate::size::Size;

/// Longest request line in bytes; far above what any request needs.
const REQUEST_BYTES_MAX: u64 = 4096;
/// Longest answer in bytes: a status lists every extent of a volume.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// How long the owner of a volume may take to answer, and to be asked.
const OWNER_LIMIT: Duration = Duration::from_secs(10);

/// Begins the name of a volume that nobody named; it is forgotten with its owner.
pub const UNNAMED: &str = "unnamed-";

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

/// What it says.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// The folder of volumes.
#[derive(Clone, Debug)]
pub struct Volumes {
    folder: PathBuf,
}

impl Volumes {
    /// Those of a cluster folder.
    pub fn new(dir: &ClusterDir) -> Self {
        Self {
            folder: dir.root().join("volumes"),
        }
    }

    fn file(&self, name: &str, kind: &str) -> PathBuf {
        self.folder.join(format!("{name}.{kind}"))
    }

    /// Every volume, by name.
    ///
    /// # Errors
    /// The folder cannot be read, or holds a file that makes no sense.
    pub fn list(&self) -> Result<Vec<(String, Spec)>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.with_context(|| self.folder.display().to_string())?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let file_name = entry?.file_name();
            let Some(name) = file_name
                .to_str()
                .and_then(|name| name.strip_suffix(".toml"))
            else {
                continue;
            };
            // Another command may be making it or deleting it.
            let is_there = fs::metadata(self.file(name, "toml")).is_ok_and(|file| file.len() > 0);
            match self.load(name) {
                Ok(spec) => found.push((name.to_owned(), spec)),
                Err(_) if !is_there => {}
                Err(error) => return Err(error),
            }
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// One volume.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn load(&self, name: &str) -> Result<Spec> {
        check_name(name)?;
        let path = self.file(name, "toml");
        let text = fs::read_to_string(&path).map_err(|e| {
            Failure::new(
                format!("volume {name}: {}: {e}", path.display()),
                "cenote volume list shows those there are",
            )
        })?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }

    /// Describes a new volume; its memory is taken when it is written to.
    ///
    /// # Errors
    /// There is one of that name.
    pub fn create(&self, name: &str, spec: &Spec) -> Result<()> {
        check_name(name)?;
        create_private(&self.folder)?;
        let path = self.file(name, "toml");
        let text = toml::to_string(spec).context("volume file")?;
        let mut file = File::create_new(&path).map_err(|e| match e.kind() {
            ErrorKind::AlreadyExists => Failure::new(
                format!("volume {name} is there already"),
                format!("another name, or cenote volume delete {name}"),
            ),
            _ => Failure::new(format!("{}: {e}", path.display()), ""),
        })?;
        file.write_all(text.as_bytes())
            .with_context(|| path.display().to_string())
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
        let folder = File::open(&self.folder).with_context(|| self.folder.display().to_string())?;
        // Given back with the descriptor.
        folder
            .lock()
            .with_context(|| self.folder.display().to_string())?;
        let mut spec = self.load(name)?;
        change(&mut spec);
        self.store(name, &spec)
    }

    fn store(&self, name: &str, spec: &Spec) -> Result<()> {
        let (path, beside) = (self.file(name, "toml"), self.file(name, "new"));
        let text = toml::to_string(spec).context("volume file")?;
        fs::write(&beside, text).with_context(|| beside.display().to_string())?;
        fs::rename(&beside, &path).with_context(|| path.display().to_string())
    }

    /// Forgets a volume that nobody owns. Hosts that hold some of it are not told.
    ///
    /// # Errors
    /// It is in use, or not there.
    pub fn delete(&self, name: &str) -> Result<()> {
        self.load(name)?;
        let _owner = self.own(name)?;
        self.forget_content(name)?;
        for kind in ["sock", "toml", "lock"] {
            remove_if_there(&self.file(name, kind))?;
        }
        Ok(())
    }

    /// Where what the owner leaves to the next is kept; see `cenote_volume::Kept`.
    ///
    /// # Errors
    /// The files cannot be opened.
    pub fn kept(&self, name: &str) -> Result<Kept> {
        let (journal, marks) = (self.file(name, "journal"), self.file(name, "pages"));
        let (tags, sides) = (self.file(name, "tags"), self.file(name, "sides"));
        Kept::in_files(&journal, &marks)
            .with_context(|| marks.display().to_string())?
            .with_tags(&tags)
            .with_context(|| tags.display().to_string())?
            .with_sides(&sides)
            .with_context(|| sides.display().to_string())
    }

    /// What the last owner left on hosts; `None` when that is nothing.
    ///
    /// # Errors
    /// The journal is damaged.
    pub fn left(&self, name: &str) -> Result<Option<Left>> {
        let path = self.file(name, "journal");
        let left = Kept::summary(&mut JournalFile::new(&path))
            .with_context(|| format!("{}", path.display()))?;
        Ok(left.filter(|left| left.slabs > 0))
    }

    /// Forgets what the last owner left. Hosts that hold some of it are not told, so that the
    /// volume is another one from then on: to them, and to a device that waits for its server.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget_content(&self, name: &str) -> Result<()> {
        let id = format!("{:032x}", random_u128()?);
        self.edit(name, |spec| spec.id = id)?;
        for kind in ["journal", "journal.new", "pages", "tags", "sides"] {
            remove_if_there(&self.file(name, kind))?;
        }
        Ok(())
    }

    /// Forgets what is kept of a volume's protected pages: they can no longer be read. The volume is no
    /// protected one from then on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn forget_tags(&self, name: &str) -> Result<()> {
        let spec = self.load(name)?;
        if spec.protection.is_some() {
            remove_if_there(&self.file(name, "tags"))?;
        }
        Ok(())
    }

    /// Becomes the one owner of a volume, until the guard is dropped.
    ///
    /// # Errors
    /// Another process owns it.
    pub fn own(&self, name: &str) -> Result<Owner> {
        let path = self.file(name, "lock");
        match try_lock(&path)? {
            Some(lock) => Ok(Owner {
                volumes: self.clone(),
                name: name.to_owned(),
                _lock: lock,
            }),
            None => Err(Failure::new(
                format!("volume {name} is in use by another process"),
                format!("cenote volume status {name}; end its nbd server or swap first"),
            )
            .into()),
        }
    }

    /// Whether a process owns the volume.
    ///
    /// # Errors
    /// The lock cannot be tried.
    pub fn is_owned(&self, name: &str) -> Result<bool> {
        let path = self.file(name, "lock");
        Ok(path.exists() && is_locked(&path)?)
    }

    /// Names of the volumes that a process owns.
    ///
    /// # Errors
    /// As [`Volumes::list`].
    pub fn in_use(&self) -> Result<Vec<String>> {
        let mut used = Vec::new();
        for (name, _) in self.list()? {
            if self.is_owned(&name)? {
                used.push(name);
            }
        }
        Ok(used)
    }

    /// Removes what is of no use once all hosts are gone: contents of volumes, sockets of owners
    /// that were killed, and volumes without a name.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn clear(&self) -> Result<()> {
        for (name, _) in self.list()? {
            if self.is_owned(&name)? {
                continue;
            }
            if name.starts_with(UNNAMED) {
                self.delete(&name)?;
            } else {
                remove_if_there(&self.file(&name, "sock"))?;
                self.forget_content(&name)?;
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
        let path = self.file(name, "sock");
        let mut stream = UnixStream::connect(&path)
            .with_context(|| format!("ask the owner of volume {name}"))?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        let mut line = serde_json::to_string(&question)?;
        line.push('\n');
        stream.write_all(line.as_bytes())?;
        let mut text = String::new();
        BufReader::new(stream.take(ANSWER_BYTES_MAX))
            .read_line(&mut text)
            .with_context(|| format!("answer of the owner of volume {name}"))?;
        match serde_json::from_str(&text)
            .with_context(|| format!("answer of the owner of volume {name}"))?
        {
            Answer::Ok(value) => Ok(value),
            Answer::Error(why) => bail!("volume {name}: {why}"),
        }
    }
}

/// The right to a volume; given back when dropped.
#[derive(Debug)]
pub struct Owner {
    volumes: Volumes,
    name: String,
    _lock: File,
}

impl Owner {
    /// Answers questions on a thread of its own until the process ends.
    ///
    /// # Errors
    /// The socket cannot be bound.
    pub fn answer(
        &self,
        mut reply: impl FnMut(Question) -> Result<serde_json::Value> + Send + 'static,
    ) -> Result<()> {
        let path = self.volumes.file(&self.name, "sock");
        // We hold the lock: a socket that is there belongs to an owner that is gone.
        remove_if_there(&path)?;
        let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
        let name = self.name.clone();
        let serve = move || {
            for stream in listener.incoming() {
                let done = stream
                    .map_err(anyhow::Error::from)
                    .and_then(|stream| converse(&stream, &mut reply));
                if let Err(error) = done {
                    tracing::debug!(
                        volume = name,
                        error = format!("{error:#}"),
                        "question dropped"
                    );
                }
            }
        };
        std::thread::Builder::new()
            .name("volume-owner".to_owned())
            .spawn(serve)
            .context("start the thread that answers questions")?;
        Ok(())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let path = self.volumes.file(&self.name, "sock");
        if let Err(error) = remove_if_there(&path) {
            tracing::warn!(error = format!("{error:#}"), "clear socket");
        }
    }
}

/// One line in, one line out.
fn converse(
    stream: &UnixStream,
    reply: &mut impl FnMut(Question) -> Result<serde_json::Value>,
) -> Result<()> {
    stream.set_read_timeout(Some(OWNER_LIMIT))?;
    stream.set_write_timeout(Some(OWNER_LIMIT))?;
    let mut line = String::new();
    BufReader::new(Read::take(stream, REQUEST_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => {
            reply(question).map_or_else(|e| Answer::Error(format!("{e:#}")), Answer::Ok)
        }
        Err(error) => Answer::Error(format!("not a request: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    let mut stream = stream;
    stream.write_all(text.as_bytes())?;
    Ok(())
}

/// Names become file names.
fn check_name(name: &str) -> Result<()> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if (1..=64).contains(&name.len()) && name.chars().all(allowed) && !name.starts_with(['.', '-'])
    {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{name:?} is no name for a volume"),
        "1 to 64 letters, digits, '-', '_' and '.', beginning with a letter or digit",
    )
    .into())
}

#[cfg(test)]
mod tests;

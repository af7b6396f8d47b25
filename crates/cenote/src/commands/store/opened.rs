//! A store in its folder, locked.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cenote_store::{DetachedMedium, FileMedium, Medium, Pool, PoolConfig, Recovered, StoreError};

use crate::ask::random_u128;
use crate::failure::Failure;
use crate::folder::Folder;

/// The file in the folder.
const POOL: &str = "pool";
/// Sectors of any disk.
const SECTOR_BYTES: u64 = 512;

/// An open pool. Nobody else opens it while this lives.
pub struct Opened<M> {
    shown: String,
    pool: Pool<M>,
    /// What opening it found.
    pub recovered: Recovered,
    _lock: OwnedFd,
}

/// Makes a store of so many bytes.
///
/// # Errors
/// There is one already, the sizes make no sense, or the disk refuses.
pub fn create(dir: &Path, len: u64, keys: u64) -> Result<()> {
    let folder = Folder::create(dir)?;
    let _lock = folder.lock()?;
    let path = folder.join(POOL);
    if folder.has(POOL)? {
        let what = format!("store {}: there is one already", dir.display());
        return Err(Failure::new(what, "cenote store check says what is in it").into());
    }
    // A store of sectors, of which half of the places for keys stay free: they are found at once.
    let len = len / SECTOR_BYTES * SECTOR_BYTES;
    let entries = keys
        .max(1)
        .checked_mul(2)
        .and_then(u64::checked_next_power_of_two);
    let config = PoolConfig {
        entry_count: entries.context("--keys: too many")?,
        seed: random_u128()? as u64,
    };
    ensure!(len > 0, "--size: at least {SECTOR_BYTES} bytes");
    let mut draft = cenote_durable::Replacement::begin(&path, 0o600).context("make the store")?;
    let file = draft.file();
    cenote_durable::allocate(file, len).context("make room for the store")?;
    let medium = FileMedium::open(file.try_clone()?).context("make the store")?;
    Pool::create(medium, config).map_err(|error| match error {
        StoreError::Size { .. } => {
            Failure::usage(error.to_string(), "a larger --size, or fewer --keys").into()
        }
        error => anyhow::Error::new(error),
    })?;
    draft.commit().context("make the store")
}

/// The folder, locked, and its file.
fn find(dir: &Path, write: bool) -> Result<(OwnedFd, File)> {
    let none = || {
        let what = format!("store {}: there is none", dir.display());
        let remedy = format!("cenote store create {} --size 64M", dir.display());
        Failure::new(what, remedy)
    };
    let folder = match Folder::open(dir) {
        Err(error) if error.is_missing() => return Err(none().into()),
        folder => folder?,
    };
    let lock = folder.lock()?;
    let path = folder.join(POOL);
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let file = match file {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(none().into()),
        file => file.with_context(|| path.display().to_string())?,
    };
    ensure!(
        file.metadata()?.is_file(),
        "{}: no ordinary file",
        path.display()
    );
    Ok((lock, file))
}

impl Opened<FileMedium> {
    /// Opens a store to work with it, as it was left or as a crash left it.
    ///
    /// # Errors
    /// There is none, or it is damaged: nothing was changed then.
    pub fn open(dir: &Path) -> Result<Self> {
        let (lock, file) = find(dir, true)?;
        let shown = format!("store {}", dir.display());
        let medium = FileMedium::open(file).with_context(|| shown.clone())?;
        Self::with(shown, lock, medium)
    }
}

impl Opened<DetachedMedium> {
    /// Looks at what is there, as [`Opened::open`] would find it, and leaves it as it is.
    ///
    /// # Errors
    /// As [`Opened::open`].
    pub fn look(dir: &Path) -> Result<Self> {
        let (lock, file) = find(dir, false)?;
        let shown = format!("store {}", dir.display());
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut &file, &mut bytes).with_context(|| shown.clone())?;
        Self::with(shown, lock, DetachedMedium::new(bytes))
    }

    /// All keys that begin with `prefix`, in order.
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        let keys = self.pool.keys(prefix.as_bytes());
        let mut keys: Vec<String> = keys
            .map(|key| String::from_utf8_lossy(key).into_owned())
            .collect();
        keys.sort();
        keys
    }

    /// Bytes of the log that are used, and all of them.
    pub fn log_bytes(&self) -> (u64, u64) {
        self.pool.log_bytes()
    }
}

impl<M: Medium> Opened<M> {
    fn with(shown: String, lock: OwnedFd, medium: M) -> Result<Self> {
        let (pool, recovered) = Pool::open(medium).with_context(|| shown.clone())?;
        Ok(Self {
            shown,
            pool,
            recovered,
            _lock: lock,
        })
    }

    /// Does something with an object; where there is no room for it, once more in a log that was cleaned.
    ///
    /// # Errors
    /// Those of the store, with what to do.
    pub fn change<T>(
        &mut self,
        key: &str,
        act: impl Fn(&mut Pool<M>, &[u8]) -> Result<T, StoreError>,
    ) -> Result<T> {
        let mut done = act(&mut self.pool, key.as_bytes());
        if matches!(done, Err(StoreError::Full)) {
            // Nothing waits for its value here: one pass is all.
            done = self
                .pool
                .clean(usize::MAX)
                .and_then(|_| act(&mut self.pool, key.as_bytes()));
        }
        done.map_err(|error| {
            let what = |why: &str| format!("{}: {key}: {why}", self.shown);
            match &error {
                StoreError::Full => {
                    let remedy = "copy what is in it to a larger one: cenote store create";
                    Failure::new(what("there is no room left"), remedy).into()
                }
                StoreError::Condition(found) => {
                    let found = match found {
                        Some(version) => format!("its version is {version}"),
                        None => "there is no such object".to_owned(),
                    };
                    let remedy = "get --json says its version; nothing was changed";
                    Failure::new(what(&found), remedy).into()
                }
                StoreError::Key(_) | StoreError::Value(_) => {
                    Failure::usage(what(&error.to_string()), "cenote store put --help").into()
                }
                _ => anyhow::Error::new(error).context(self.shown.clone()),
            }
        })
    }
}

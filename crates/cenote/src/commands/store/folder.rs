//! A store in its folder, locked.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_durable::Replacement;
use cenote_store::{
    Condition, ENTRY_COUNT_MAX, FileMedium, Identity as PoolIdentity, Medium, POOL_BYTES_MAX, Pool,
    PoolConfig, Recovered, SHARD_COUNT_MAX, StoreError, identify, shard_of,
};

use super::secret;
use super::shown::{shown, unmet};
use crate::ask::random_u128;
use crate::folder::Folder;
use crate::lock::{is_locked, try_lock};
use crate::process::Identity;
use crate::shell::quoted;

/// The first file in the folder.
const POOL: &str = "pool";
/// Locked by who serves the store.
const SERVED: &str = "served";
/// Blocks of any disk and file system.
const BLOCK_BYTES: u64 = 4096;

/// An open store. Nobody else opens it while this lives.
pub struct Opened {
    shown: String,
    /// One for each shard.
    pools: Vec<Pool<FileMedium>>,
    /// What opening it found.
    pub recovered: Recovered,
    _lock: OwnedFd,
}

/// The file of a shard.
fn name(shard: usize) -> String {
    match shard {
        0 => POOL.to_owned(),
        shard => format!("{POOL}.{shard}"),
    }
}

/// Makes a store of so many bytes, in so many shards: all of its files, or none, and then no folder
/// that was not there.
///
/// # Errors
/// There is one already, or a part of one; the sizes make no sense; or the disk refuses.
pub fn create(dir: &Path, size: Size, keys: u64, shards: usize) -> Result<()> {
    refuse_address(dir)?;
    let (len, config) = shard(size, keys, shards as u64)?;
    let absent = dir.ancestors().take_while(|path| !path.exists());
    let absent: Vec<&Path> = absent.collect();
    let made = make(dir, len, config, shards);
    if made.is_err() {
        // None that has anything in it, of another command perhaps, is removed.
        let removed = absent.iter().try_for_each(fs::remove_dir);
        tracing::debug!(?removed, "folders of a store that was not made");
    }
    made
}

/// Bytes of each shard, and how it is made.
///
/// # Errors
/// Sizes that no store has.
fn shard(size: Size, keys: u64, shards: u64) -> Result<(u64, PoolConfig)> {
    // A store of blocks.
    let len = size.bytes() / shards / BLOCK_BYTES * BLOCK_BYTES;
    if len == 0 {
        let what = format!("--size {size}: must be at least {BLOCK_BYTES} bytes per shard");
        return Err(Failure::usage(what, "--size 64M").into());
    }
    if len > POOL_BYTES_MAX {
        let most = Size(POOL_BYTES_MAX);
        let what = format!("--size {size}: at most {most} per shard");
        let enough = size.bytes().div_ceil(POOL_BYTES_MAX);
        let remedy = match enough <= SHARD_COUNT_MAX as u64 {
            true => format!("use --shards {enough}, or a smaller --size"),
            false => {
                let all = Size(POOL_BYTES_MAX * SHARD_COUNT_MAX as u64);
                format!("use at most --size {all}, with --shards {SHARD_COUNT_MAX}")
            }
        };
        return Err(Failure::usage(what, remedy).into());
    }
    // Half of the places for keys stay free: they are found at once.
    let entries = (keys / shards)
        .max(1)
        .checked_mul(2)
        .and_then(u64::checked_next_power_of_two)
        .filter(|entries| *entries <= ENTRY_COUNT_MAX);
    let Some(entry_count) = entries else {
        let what = format!("--keys {keys}: at most {} per shard", ENTRY_COUNT_MAX / 2);
        return Err(Failure::usage(what, "use fewer --keys, or more --shards").into());
    };
    let config = PoolConfig {
        entry_count,
        seed: random_u128()? as u64,
    };
    if config.check(len).is_err() {
        let what = format!("--size {size}: too small for {keys} keys");
        return Err(Failure::usage(what, "use a larger --size, or fewer --keys").into());
    }
    Ok((len, config))
}

/// # Errors
/// The address of a served store, where the folder of one is wanted.
pub fn refuse_address(dir: &Path) -> Result<()> {
    let text = dir.to_string_lossy();
    let is_address = ["tcp:", "shm:", "rdma:"]
        .iter()
        .any(|start| text.starts_with(start));
    if !is_address {
        return Ok(());
    }
    let what = format!("store {text}: this is an address, and not a folder");
    let remedy = "name the folder of the store, on the machine that it is on";
    Err(Failure::usage(what, remedy).into())
}

fn make(dir: &Path, len: u64, config: PoolConfig, shards: usize) -> Result<()> {
    let folder = Folder::create(dir)?;
    let _lock = lock(&folder, dir)?;
    refuse_if_any(&folder, dir)?;
    // A create that was killed leaves drafts, with their room on the disk.
    for shard in 0..SHARD_COUNT_MAX {
        folder.remove_drafts(&name(shard))?;
    }
    // All before the first gets its name: a disk that is full leaves none.
    let drafts = (0..shards).map(|shard| {
        let number = (shard as u16, shards as u16);
        draft(&folder.join(&name(shard)), len, config, number)
    });
    let mut drafts = drafts.collect::<Result<Vec<_>>>()?;
    // One that is left without a store is taken by the next.
    secret::of_new_store(&folder, dir)?;
    // The first file last: with it there is a store.
    let named = drafts.iter_mut().rev().try_for_each(Replacement::commit);
    if named.is_err() {
        for shard in 0..shards {
            // What the disk says to this is not what went wrong.
            drop(folder.remove(&name(shard)));
        }
    }
    named.context("make the store")
}

/// Writes an empty shard, under a name of its own.
fn draft(path: &Path, len: u64, config: PoolConfig, number: (u16, u16)) -> Result<Replacement> {
    let mut draft = Replacement::begin(path, 0o600).context("make the store")?;
    let file = draft.file();
    cenote_durable::allocate(file, len).context("make room for the store")?;
    let medium = FileMedium::open(file.try_clone()?).context("make the store")?;
    let pool = Pool::create_shard(medium, config, number)?;
    pool.close().context("make the store")?;
    Ok(draft)
}

/// # Errors
/// A store is there, or files of one whose first file is missing: they may have objects.
fn refuse_if_any(folder: &Folder, dir: &Path) -> Result<()> {
    if folder.has(POOL)? {
        let what = format!("store {}: already exists", dir.display());
        return Err(Failure::new(what, "cenote store check verifies it").into());
    }
    let Some(other) = first_file(folder, 1)? else {
        return Ok(());
    };
    let what = format!(
        "store {}: its file {POOL} is missing, and its file {} is there",
        dir.display(),
        name(other)
    );
    let remedy = format!("restore {POOL}; or, if its objects are not needed, remove {POOL}.*");
    Err(Failure::new(what, remedy).into())
}

/// The first shard from `from` on whose file is there.
fn first_file(folder: &Folder, from: usize) -> Result<Option<usize>> {
    for shard in from..SHARD_COUNT_MAX {
        if folder.has(&name(shard))? {
            return Ok(Some(shard));
        }
    }
    Ok(None)
}

/// Waits until nobody else works with the store.
///
/// # Errors
/// It is being served, perhaps since others were waited for.
fn lock(folder: &Folder, dir: &Path) -> Result<OwnedFd> {
    folder.lock_unless(|| {
        if folder.has(SERVED)? && is_locked(folder, SERVED)? {
            let what = format!("store {}: it is being served", dir.display());
            let server = match Identity::load(folder)? {
                Some(server) if server.open()?.is_some() => format!("kill {} stops", server.pid),
                _ => "stop".to_owned(),
            };
            let remedy = format!(
                "{server} its server; put, get, list and delete also take its address and --key"
            );
            return Err(Failure::new(what, remedy).into());
        }
        Ok(())
    })
}

/// A store's files, in a folder that is locked.
pub struct Files {
    /// One for each shard.
    pools: Vec<File>,
    folder: Folder,
    /// They are to be written.
    write: bool,
    pub lock: OwnedFd,
}

/// The files of a store.
///
/// # Errors
/// There is no store, or its files are of another kind.
pub fn find(dir: &Path, write: bool) -> Result<Files> {
    refuse_address(dir)?;
    let none = || {
        let what = format!("store {}: does not exist", dir.display());
        let remedy = format!("cenote store create {} --size 64M", quoted(dir));
        Failure::new(what, remedy)
    };
    let folder = match Folder::open(dir) {
        Err(error) if error.is_missing() => return Err(none().into()),
        folder => folder?,
    };
    let lock = lock(&folder, dir)?;
    let mut files = Vec::new();
    for shard in 0..SHARD_COUNT_MAX {
        let path = folder.join(&name(shard));
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path);
        let file = match file {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The last ones are missed by what the others say, if they do.
                if first_file(&folder, shard + 1)?.is_some() {
                    let shown = format!("store {}", dir.display());
                    return Err(missing(&shown, shard).into());
                }
                if shard == 0 {
                    return Err(none().into());
                }
                break;
            }
            file => file.with_context(|| path.display().to_string())?,
        };
        ensure!(
            file.metadata()?.is_file(),
            "{}: not a regular file",
            path.display()
        );
        files.push(file);
    }
    Ok(Files {
        pools: files,
        folder,
        write,
        lock,
    })
}

/// A store without one of its files is not opened: most keys would be looked for in another one.
fn missing(shown: &str, shard: usize) -> Failure {
    let what = format!("{shown}: its file {} is missing", name(shard));
    Failure::new(what, "restore it; without it its objects cannot be found")
}

/// Checks that the pools are all of a store's, each in its own place.
///
/// # Errors
/// They are not.
fn check_shards(shown: &str, pools: &[PoolIdentity]) -> Result<()> {
    ensure!(
        pools.windows(2).all(|two| two[0].seed == two[1].seed),
        "{shown}: its files belong to different stores"
    );
    for (shard, pool) in pools.iter().enumerate() {
        let Some((number, count)) = pool.shard else {
            continue;
        };
        ensure!(
            number == shard,
            "{shown}: its file {} should be named {}",
            name(shard),
            name(number)
        );
        if count > pools.len() {
            return Err(missing(shown, pools.len()).into());
        }
        ensure!(
            count == pools.len(),
            "{shown}: its file {} is not one of its {count} shards",
            name(count)
        );
    }
    Ok(())
}

/// Has other commands say that the store is being served, until this is dropped.
///
/// # Errors
/// The folder cannot be written to.
pub fn mark_served(dir: &Path) -> Result<Option<File>> {
    try_lock(&Folder::open(dir)?, SERVED)
}

/// Whether a store is there, and served now.
///
/// # Errors
/// There is none, or others may change its folder.
pub fn is_served(dir: &Path) -> Result<bool> {
    let folder = Folder::open(dir)?;
    if !folder.has(POOL)? && first_file(&folder, 1)?.is_some() {
        return Err(missing(&format!("store {}", dir.display()), 0).into());
    }
    ensure!(folder.has(POOL)?, "there is no store");
    Ok(folder.has(SERVED)? && is_locked(&folder, SERVED)?)
}

/// Pools of a store's media, opened side by side, and what that found. A store that was made before
/// stores had secrets gets its own, if it is to be written.
///
/// # Errors
/// Files that do not belong together, of which none is changed; or one is damaged.
pub fn recover<M: Medium + 'static>(
    shown: &str,
    files: &mut Files,
    open: impl Fn(File) -> std::io::Result<M> + Sync,
) -> Result<(Vec<Pool<M>>, Recovered)> {
    let of = |shard| format!("its file {}", name(shard));
    let heads = files.pools.iter().enumerate().map(|(shard, file)| {
        let head = identify(file).with_context(|| of(shard));
        head.with_context(|| shown.to_owned())
    });
    check_shards(shown, &heads.collect::<Result<Vec<_>>>()?)?;
    // Not before it is known that this is a store: nothing is made beside other files.
    let secret = match files.write {
        true => secret::of_store(&files.folder, shown)?,
        false => secret::of_look(&files.folder, shown),
    };
    let files = std::mem::take(&mut files.pools);
    let span = tracing::info_span!("recover store", cenote.store.shards = files.len() as i64);
    let one =
        |file: File| -> Result<_> { Ok(span.in_scope(|| Pool::open_with(open(file)?, secret))?) };
    let one = |shard, file| one(file).with_context(|| of(shard));
    let opened: Vec<Result<_>> = std::thread::scope(|scope| {
        let threads: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(shard, file)| scope.spawn(move || one(shard, file)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("a panic has ended the process"))
            .collect()
    });
    let mut pools = Vec::new();
    let mut all = Recovered::default();
    for (shard, opened) in opened.into_iter().enumerate() {
        let (pool, found) = opened.with_context(|| shown.to_owned())?;
        log_damage(shown, &name(shard), &found);
        all.objects += found.objects;
        all.versions += found.versions;
        all.completed += found.completed;
        all.rolled_back += found.rolled_back;
        all.invalid += found.invalid;
        all.damaged += found.damaged;
        all.lost += found.lost;
        all.lost_bytes += found.lost_bytes;
        all.torn += found.torn;
        pools.push(pool);
    }
    Ok((pools, all))
}

/// Says what opening a file found, and where in it.
fn log_damage(store: &str, file: &str, found: &Recovered) {
    if let Some(first_at) = found.damaged_at {
        let versions = found.damaged;
        tracing::error!(
            store,
            file,
            first_at,
            versions,
            "values are not what was written"
        );
    }
    if let Some(first_at) = found.lost_at {
        let (stretches, bytes) = (found.lost, found.lost_bytes);
        tracing::error!(
            store,
            file,
            first_at,
            stretches,
            bytes,
            "a log is damaged: objects are lost"
        );
    }
    if found.has_other_secret {
        tracing::warn!(
            store,
            file,
            "the file secret is missing, or not the one that this log was written with, or the log's \
             note of it is damaged: until the log has been cleaned, a crash or damage may have values \
             taken for objects"
        );
    }
}

impl Opened {
    /// Opens a store to work with it, as it was left or as a crash left it.
    ///
    /// # Errors
    /// There is none, or it is damaged. Where a head is refused nothing was changed.
    pub fn open(dir: &Path) -> Result<Self> {
        Self::with(dir, true, FileMedium::open)
    }

    /// Looks at what is there, as [`Opened::open`] would find it, and leaves it as it is.
    ///
    /// # Errors
    /// As [`Opened::open`].
    pub fn look(dir: &Path) -> Result<Self> {
        Self::with(dir, false, FileMedium::look)
    }

    fn with(
        dir: &Path,
        write: bool,
        open: impl Fn(File) -> std::io::Result<FileMedium> + Sync,
    ) -> Result<Self> {
        let mut files = find(dir, write)?;
        let shown = format!("store {}", dir.display());
        let (pools, recovered) = recover(&shown, &mut files, open)?;
        Ok(Self {
            shown,
            pools,
            recovered,
            _lock: files.lock,
        })
    }

    /// All keys that begin with `prefix`, in order.
    pub fn keys(&self, prefix: &[u8]) -> Vec<Vec<u8>> {
        let pools = self.pools.iter();
        let keys = pools.flat_map(|pool| pool.keys(prefix));
        let mut keys: Vec<Vec<u8>> = keys.collect();
        keys.sort();
        keys
    }

    /// Bytes of the log that are used, and all of them.
    pub fn log_bytes(&self) -> (u64, u64) {
        let each = self.pools.iter().map(Pool::log_bytes);
        each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// Ends the work with it.
    ///
    /// # Errors
    /// The disk's.
    pub fn close(self) -> Result<()> {
        for pool in self.pools {
            pool.close().with_context(|| self.shown.clone())?;
        }
        Ok(())
    }

    /// Does something with an object, on a condition that `act` holds it to; where there is no room for
    /// it, once more in a log that was cleaned.
    ///
    /// # Errors
    /// Those of the store, with what to do.
    pub fn change<T>(
        &mut self,
        key: &[u8],
        condition: Condition,
        act: impl Fn(&mut Pool<FileMedium>, &[u8]) -> Result<T, StoreError>,
    ) -> Result<T> {
        let shard = match self.pools.len() {
            1 => 0,
            count => shard_of(self.pools[0].hashing().0, key, count),
        };
        let pool = &mut self.pools[shard];
        let mut done = act(pool, key);
        if matches!(done, Err(StoreError::Full)) {
            // Nothing waits for its value here: one pass is all.
            done = pool.clean(usize::MAX).and_then(|_| act(pool, key));
        }
        done.map_err(|error| {
            let key = shown(key);
            let what = |why: &str| format!("{}: {key}: {why}", self.shown);
            match &error {
                StoreError::Full => {
                    let remedy =
                        "delete objects, or copy them to a larger store: cenote store create";
                    Failure::new(what("the store is full"), remedy).into()
                }
                StoreError::Condition(found) => {
                    let remedy = "get --json shows its version; nothing was changed";
                    Failure::new(what(&unmet(condition, *found)), remedy).into()
                }
                StoreError::Key(_) | StoreError::Value(_) => {
                    Failure::usage(what(&error.to_string()), "cenote store put --help").into()
                }
                _ => anyhow::Error::new(error).context(self.shown.clone()),
            }
        })
    }
}

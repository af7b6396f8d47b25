//! Opening a store after its process ended, however it did.
//!
//! The index comes from the checkpoint file, and is brought forward with the log behind it: page by
//! page up to the first that is not whole, of which what is behind the last cut does not count.
//! What stands there is cut off before anything is written, so that it cannot be taken for a
//! continuation of the new log later.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::checkpoint::Image;
use super::error::Error;
use super::injected_faults::{InjectedFault, is_injected};
use super::page::Page;
use super::session::Pause;
use super::settings::Settings;
use super::store::{Merge, Store};
use super::tiers::{Request, Tier};

/// A key's hash and where its record is, in the order of the log.
type Found = Vec<(u64, u64)>;

impl Store {
    /// Opens the store whose checkpoint file is at `file`. The last tier has its log; the others
    /// start empty. Everything that was committed is there, and of the rest a prefix.
    ///
    /// # Errors
    /// [`Error::Checkpoint`]: the file is none, or does not fit the settings or the log.
    /// [`Error::Io`]: a disk refuses; nothing was changed, so it may be tried again.
    pub fn recover(
        settings: Settings,
        merge: Arc<dyn Merge>,
        mut tiers: Vec<Box<dyn Tier>>,
        file: PathBuf,
    ) -> Result<Arc<Self>, Error> {
        settings.check()?;
        let image = read_file(&file, &settings)?;
        let wrong = |what| Error::Checkpoint {
            path: file.clone(),
            what,
        };
        let last = tiers.last_mut().ok_or(Error::NoTier)?.as_mut();
        let store = image.secret.store;
        let (found, end) = scan(last, &image)?;
        if end < image.end {
            return Err(wrong("the log ends before it, or is not whole"));
        }
        // Of checkpoints that a kill cut short; nobody else writes the file of this log. They take room
        // and do no harm: one that stays is no reason not to recover.
        drop(cenote_durable::remove_drafts(&file));
        if !is_injected(InjectedFault::StaleTail) {
            ask(
                last,
                Request::Cut { address: end },
                "cut the log's tail off",
            )?;
            ask(last, Request::Sync, "sync the log")?;
        }
        let count = tiers.len();
        for tier in &mut tiers[..count - 1] {
            // One that is lost by now is found out later.
            drop(ask(
                tier.as_mut(),
                Request::Cut { address: 0 },
                "empty a tier",
            ));
        }
        debug_assert_eq!(store, image.secret.store);
        let opened = Self::at(
            settings,
            image.secret,
            merge,
            tiers,
            Some(file.clone()),
            image.begin,
            end,
        )?;
        for (place, address) in &image.chains {
            opened.install(*place, *address)?;
        }
        if !is_injected(InjectedFault::NoReplay) {
            for (hash, address) in found {
                opened.install(opened.index.place(hash), address)?;
            }
        }
        Ok(Arc::new(opened))
    }

    /// Puts an address in front of its chain unless a newer one is there.
    fn install(&self, place: super::index::BucketTag, address: u64) -> Result<(), Error> {
        let entry = self
            .index
            .find_or_add(place)
            .map_err(|_| Error::IndexFull)?;
        if entry.address() < address {
            let is_replaced = entry.replace(address);
            debug_assert!(is_replaced, "nobody else is here");
        }
        Ok(())
    }
}

/// Reads the checkpoint file, no longer than an index of these settings makes it.
fn read_file(path: &Path, settings: &Settings) -> Result<Image, Error> {
    let wrong = |what| Error::Checkpoint {
        path: path.to_owned(),
        what,
    };
    let failed = |source| Error::Io {
        what: "read the checkpoint file",
        source,
    };
    let chains = (settings.index_buckets_max + settings.overflow_buckets) * 7;
    let max = Image::len_bytes(chains) as u64;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(wrong("it has more chains than the index has room for"));
    }
    let image = Image::parse(&bytes).map_err(wrong)?;
    if image.page_bytes != settings.page_bytes as u64 {
        return Err(wrong("its page_bytes differ from those of the settings"));
    }
    if image.buckets != settings.index_buckets as u64 {
        return Err(wrong("its index_buckets differ from those of the settings"));
    }
    Ok(image)
}

/// Reads the log behind the checkpoint. The records up to the last cut, and where that is.
fn scan(tier: &mut dyn Tier, image: &Image) -> Result<(Found, u64), Error> {
    let (mut found, mut kept) = (Found::new(), 0);
    // Of a log of which nothing is to be read again, the last page says that it is so long.
    let mut end = match image.replay_from == image.end && ends_in_cut(tier, image)? {
        true => image.end,
        false => 0,
    };
    let mut address = image.replay_from & !(image.page_bytes - 1);
    loop {
        // An error may hide what was committed; only bytes that are there and wrong are torn.
        let bytes = read_page(tier, address, image)?;
        if bytes.len() as u64 != image.page_bytes {
            break;
        }
        let Some(page) = Page::parse(&bytes, address, image.secret.store) else {
            break;
        };
        let mut is_whole = true;
        for record in page.records() {
            match record {
                Some((at, record)) if at >= image.replay_from => {
                    found.push((image.secret.hash(record.key), at));
                }
                Some(_) => {}
                None => is_whole = false,
            }
        }
        if !is_whole {
            break;
        }
        address += image.page_bytes;
        if page.is_cut {
            end = address;
            kept = found.len();
        }
    }
    if is_injected(InjectedFault::TornTail) {
        return Ok((found, address.max(end)));
    }
    found.truncate(kept);
    Ok((found, end))
}

/// Whether the page before a checkpoint's end is there, and ends what was committed; or the log is empty.
fn ends_in_cut(tier: &mut dyn Tier, image: &Image) -> Result<bool, Error> {
    if image.begin == image.end {
        return Ok(true);
    }
    let address = image.end - image.page_bytes;
    let bytes = read_page(tier, address, image)?;
    let page = Page::parse(&bytes, address, image.secret.store);
    Ok(page.is_some_and(|page| page.is_cut))
}

/// Reads a page, or what the log has of it. A read may end early: the log ends where no more comes.
fn read_page(tier: &mut dyn Tier, address: u64, image: &Image) -> Result<Vec<u8>, Error> {
    let page_bytes = image.page_bytes as usize;
    let mut bytes = Vec::new();
    while bytes.len() < page_bytes {
        let request = Request::Read {
            address: address + bytes.len() as u64,
            len_bytes: page_bytes - bytes.len(),
        };
        let more = ask(tier, request, "read the log")?;
        if more.is_empty() {
            break;
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

/// Has a tier do one thing, and waits for it.
fn ask(tier: &mut dyn Tier, request: Request, what: &'static str) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Io { what, source };
    let mut pause = Pause::default();
    let mut ended = Vec::new();
    while tier.start(0, request.clone()).is_err() {
        tier.poll(&mut ended).map_err(failed)?;
        pause.after(false);
    }
    loop {
        tier.poll(&mut ended).map_err(failed)?;
        if let Some(end) = ended.pop() {
            return end.result.map_err(|source: io::Error| failed(source));
        }
        pause.after(false);
    }
}

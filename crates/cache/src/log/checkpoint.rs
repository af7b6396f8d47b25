//! Making the log durable up to a cut, and the index with it.
//!
//! A *commit* cuts the log, waits until the slowest tier has all before the cut, and has it synced.
//! A *checkpoint* also puts the index into a file, so that a recovery reads only the log behind it:
//!
//! 1. `replay_from` = tail; wait until everybody who had a record below it has put it into its chain;
//! 2. copy the index, while others change it: it has every chain below `replay_from`;
//! 3. commit: the cut is behind every address of the copy, so nothing has to be rolled back;
//! 4. write the file beside, sync, rename, sync the folder; now the space below the log's begin of
//!    step 1 is not needed any more, and is given back.
//!
//! Byte table of the file: `docs/formats/log.md`.

use std::path::Path;

use super::error::Error;
use super::index::BucketTag;
use super::injected_faults::{InjectedFault, is_injected};
use super::operations::Completion;
use super::record::{ADDRESS_END, word_at};
use super::session::{Pause, Session};
use super::store::{Secret, Store};
use super::tiers::{Request, Started};

/// What a checkpoint file says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Image {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Of the store.
    pub secret: Secret,
    /// First address of the log.
    pub begin: u64,
    /// Records from here on may be missing in `chains`.
    pub replay_from: u64,
    /// The log is whole up to here, at least.
    pub end: u64,
    /// Buckets that the index began with.
    pub buckets: u64,
    /// Where each chain begins.
    pub chains: Vec<(BucketTag, u64)>,
}

const MAGIC: &[u8; 8] = b"CENLOG01";
/// Bytes in front of the chains.
const HEADER_BYTES: usize = 88;
const CHAIN_BYTES: usize = 16;
const SUM_BYTES: usize = 8;

impl Image {
    /// The file's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::len_bytes(self.chains.len()));
        bytes.extend_from_slice(MAGIC);
        let words = [
            self.page_bytes,
            self.secret.store,
            self.begin,
            self.replay_from,
            self.end,
            self.buckets,
            self.chains.len() as u64,
            0,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(&self.secret.hash_key);
        for (place, address) in &self.chains {
            let place = place.bucket as u64 | place.tag << 48;
            bytes.extend_from_slice(&place.to_le_bytes());
            bytes.extend_from_slice(&address.to_le_bytes());
        }
        bytes.extend_from_slice(&sum(&bytes).to_le_bytes());
        bytes
    }

    /// Bytes of a file with so many chains.
    #[must_use]
    pub fn len_bytes(chains: usize) -> usize {
        HEADER_BYTES + chains * CHAIN_BYTES + SUM_BYTES
    }

    /// Parses a file. The memory used is as much as `bytes`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        if bytes.len() < Self::len_bytes(0) || &bytes[..8] != MAGIC {
            return Err("it is no checkpoint of a log store");
        }
        let (body, end) = bytes.split_at(bytes.len() - SUM_BYTES);
        if sum(body) != word_at(end, 0) {
            return Err("its checksum is wrong");
        }
        let word = |number: usize| word_at(body, 8 + number * 8);
        let chains = &body[HEADER_BYTES..];
        if chains.len() % CHAIN_BYTES != 0 || word(6) != (chains.len() / CHAIN_BYTES) as u64 {
            return Err("its length does not fit the number of chains");
        }
        if word(7) != 0 {
            return Err("its reserved word is not 0");
        }
        let mut image = Self {
            page_bytes: word(0),
            secret: Secret {
                store: word(1),
                hash_key: body[72..HEADER_BYTES].try_into().expect("sixteen bytes"),
            },
            begin: word(2),
            replay_from: word(3),
            end: word(4),
            buckets: word(5),
            chains: Vec::new(),
        };
        let is_page = |address: u64| address.is_multiple_of(image.page_bytes);
        if !image.page_bytes.is_power_of_two() || !image.buckets.is_power_of_two() {
            return Err("its sizes are no powers of two");
        }
        if !is_page(image.begin) || !is_page(image.end) || image.end > ADDRESS_END {
            return Err("its addresses are none of pages");
        }
        if !(image.begin..=image.end).contains(&image.replay_from) {
            return Err("its addresses are in no order");
        }
        for chain in chains.chunks_exact(CHAIN_BYTES) {
            let (place, address) = (word_at(chain, 0), word_at(chain, 8));
            let (bucket, tag) = (place & ((1 << 48) - 1), place >> 48);
            let is_address = address % 8 == 0 && address < image.end;
            if bucket >= image.buckets || tag >= 1 << 14 || !is_address {
                return Err("a chain of it is out of range");
            }
            let place = BucketTag {
                bucket: bucket as usize,
                tag,
            };
            image.chains.push((place, address));
        }
        Ok(image)
    }
}

fn sum(bytes: &[u8]) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes)
}

/// Writes the file of an empty store, if it is to have one.
pub fn write_first(store: &Store) -> Result<(), Error> {
    let Some(path) = &store.file else {
        return Ok(());
    };
    let image = image_of(store, (0, 0, 0), Vec::new());
    cenote_durable::create(path, &image.to_bytes(), 0o600).map_err(|source| Error::Io {
        what: "make the checkpoint file",
        source,
    })
}

fn image_of(
    store: &Store,
    (begin, replay_from, end): (u64, u64, u64),
    chains: Vec<(BucketTag, u64)>,
) -> Image {
    Image {
        page_bytes: store.page_bytes(),
        secret: store.secret,
        begin,
        replay_from,
        end,
        buckets: store.index.first_buckets() as u64,
        chains,
    }
}

/// A commit under way. [`Session::advance_commit`] goes on with it.
#[derive(Debug, Default)]
pub struct Commit {
    stage: Stage,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    New,
    /// Pages up to the cut are on their way.
    Writing {
        end: u64,
    },
    /// The tier syncs.
    Syncing {
        end: u64,
        tier: usize,
        token: u64,
    },
    Done {
        end: u64,
    },
}

impl Commit {
    /// Where the log was cut, once it was: what was written before is what a recovery comes back to.
    #[must_use]
    pub fn cut(&self) -> Option<u64> {
        match self.stage {
            Stage::New => None,
            Stage::Writing { end } | Stage::Syncing { end, .. } | Stage::Done { end } => Some(end),
        }
    }
}

/// A checkpoint under way. [`Session::advance_checkpoint`] goes on with it.
#[derive(Debug, Default)]
pub struct Checkpoint {
    begin: u64,
    replay_from: u64,
    /// The epoch of those who may have records that are in no chain yet.
    epoch: Option<u64>,
    chains: Option<Vec<(BucketTag, u64)>>,
    commit: Commit,
}

impl Checkpoint {
    /// As [`Commit::cut`].
    #[must_use]
    pub fn cut(&self) -> Option<u64> {
        self.commit.cut()
    }
}

impl Session {
    /// Goes on with a commit, without waiting; poll in between. Once it returns an address
    /// everything that any session had written before the commit began survives a crash, and a
    /// recovery comes back to this address or one behind it.
    ///
    /// # Errors
    /// [`Error::Busy`], after which it can go on; [`Error::Storage`]: the tier does not take a page, as
    /// a full disk does, after which it can go on as well; or a sync failed, and nothing is durable from
    /// then on until a recovery; [`Error::NotDurable`], also after that; the tier's error.
    pub fn advance_commit(&mut self, commit: &mut Commit) -> Result<Option<u64>, Error> {
        let store = std::sync::Arc::clone(&self.store);
        store.advance();
        let tier = store.tiers.count().wrapping_sub(1);
        if store.tiers.count() == 0 || !store.tiers.is_durable(tier) {
            return Err(Error::NotDurable);
        }
        let has_failed = || store.tiers.has_sync_failed(tier);
        // Who waits for a sync is told how that one ended.
        if has_failed() && !matches!(commit.stage, Stage::Syncing { .. }) {
            return Err(Error::NotDurable);
        }
        loop {
            match commit.stage {
                Stage::New => {
                    let end = store.flow.wait().cut(&store)?;
                    commit.stage = Stage::Writing { end };
                    store.advance();
                }
                Stage::Writing { end } => {
                    if store.tiers.range(tier).is_none_or(|held| held.end < end) {
                        return store.refusal().map_or(Ok(None), Err);
                    }
                    if is_injected(InjectedFault::NoSync) {
                        commit.stage = Stage::Done { end };
                        continue;
                    }
                    let token = store.tiers.token(self.inbox());
                    match store.tiers.start(tier, token, Request::Sync) {
                        Started::UnderWay => {
                            self.expect(token);
                            commit.stage = Stage::Syncing { end, tier, token };
                        }
                        Started::Busy => return Ok(None),
                        Started::Lost => return Err(Error::NotDurable),
                    }
                }
                Stage::Syncing { end, tier, token } => {
                    let Some(ended) = self.answer(token) else {
                        return Ok(None);
                    };
                    // Its answer is taken. Who goes on after an error is told `NotDurable`.
                    commit.stage = Stage::Writing { end };
                    if let Err(source) = ended.result {
                        return Err(Error::Storage {
                            tier: store.tiers.name(tier),
                            source,
                        });
                    }
                    // A sync before this one, of any session: its error is not told again.
                    if has_failed() {
                        return Err(Error::NotDurable);
                    }
                    commit.stage = Stage::Done { end };
                }
                Stage::Done { end } => return Ok(Some(end)),
            }
            if matches!(commit.stage, Stage::Syncing { .. }) {
                return Ok(None);
            }
        }
    }

    /// Commits, and blocks until it is done.
    ///
    /// # Errors
    /// As [`Session::advance_commit`], but `Busy`.
    pub fn commit(&mut self, ended: &mut Vec<Completion>) -> Result<u64, Error> {
        let mut commit = Commit::default();
        self.until(ended, |session| session.advance_commit(&mut commit))
    }

    /// Goes on with a checkpoint, as [`Session::advance_commit`] with a commit. Its last step writes
    /// the file, and blocks for that.
    ///
    /// # Errors
    /// As [`Session::advance_commit`]; the file cannot be written, and the one before stays: it can go
    /// on once there is room; [`Error::NotDurable`] when the store has no file.
    pub fn advance_checkpoint(&mut self, point: &mut Checkpoint) -> Result<Option<u64>, Error> {
        let store = std::sync::Arc::clone(&self.store);
        let path = store.file.as_deref().ok_or(Error::NotDurable)?;
        store.advance();
        let Some(epoch) = point.epoch else {
            point.begin = store.addresses.begin.load();
            point.replay_from = store.addresses.tail.load();
            point.epoch = Some(store.epochs.bump());
            return Ok(None);
        };
        if !store.epochs.is_past(epoch) {
            return Ok(None);
        }
        let is_ahead = is_injected(InjectedFault::IndexAhead);
        if point.chains.is_none() && !is_ahead {
            point.chains = Some(chains_of(&store, point.begin));
        }
        let Some(end) = self.advance_commit(&mut point.commit)? else {
            return Ok(None);
        };
        let chains = match point.chains.take() {
            Some(chains) => chains,
            None => chains_of(&store, point.begin),
        };
        let image = image_of(
            &store,
            (point.begin, point.replay_from.min(end), end),
            chains,
        );
        if let Err(error) = self.write_file(path, &image) {
            // For another try: the index has gone on since, and the cut has not.
            point.chains = Some(image.chains);
            return Err(error);
        }
        Ok(Some(end))
    }

    /// Checkpoints, and blocks until it is done.
    ///
    /// # Errors
    /// As [`Session::advance_checkpoint`], but `Busy`.
    pub fn checkpoint(&mut self, ended: &mut Vec<Completion>) -> Result<u64, Error> {
        let mut point = Checkpoint::default();
        self.until(ended, |session| session.advance_checkpoint(&mut point))
    }

    fn write_file(&self, path: &Path, image: &Image) -> Result<(), Error> {
        // Of two checkpoints at a time the older one may come last.
        let mut begin = self.store.file_begin.lock().expect("nobody panics with it");
        if image.begin < *begin {
            return Ok(());
        }
        cenote_durable::replace(path, &image.to_bytes(), 0o600).map_err(|source| Error::Io {
            what: "write the checkpoint file",
            source,
        })?;
        *begin = image.begin;
        drop(begin);
        self.store.give_back(image.begin);
        Ok(())
    }

    /// Calls `step` until it has a result, polling in between.
    pub(super) fn until<T>(
        &mut self,
        ended: &mut Vec<Completion>,
        mut step: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let mut pause = Pause::default();
        loop {
            match step(self) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) | Err(Error::Busy) => {}
                Err(error) => return Err(error),
            }
            self.poll(ended);
            pause.after(false);
        }
    }
}

/// Where each chain that reaches above `begin` has its front.
fn chains_of(store: &Store, begin: u64) -> Vec<(BucketTag, u64)> {
    let mut chains = Vec::new();
    store.index.for_each(|place, address| {
        if address >= begin {
            chains.push((place, address));
        }
    });
    chains
}

impl Store {
    /// Gives the space below `begin` back: no chain and no checkpoint needs it.
    pub(super) fn give_back(&self, begin: u64) {
        for tier in 0..self.tiers.count() {
            self.tiers.forget_below(tier, begin);
            let token = self.tiers.token(super::tiers::Inbox(0));
            // One that is too busy gives it back with the next.
            let _started = self
                .tiers
                .start(tier, token, Request::Drop { address: begin });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_whose_reserved_word_is_not_zero_is_refused() {
        let image = Image {
            page_bytes: 4096,
            secret: Secret {
                store: 7,
                hash_key: [8; 16],
            },
            begin: 4096,
            replay_from: 8192,
            end: 8192,
            buckets: 16,
            chains: Vec::new(),
        };
        let mut bytes = image.to_bytes();
        assert_eq!(Image::parse(&bytes), Ok(image));
        let sum_at = bytes.len() - SUM_BYTES;
        bytes[64] = 1;
        let sum = sum(&bytes[..sum_at]).to_le_bytes();
        bytes[sum_at..].copy_from_slice(&sum);
        assert!(Image::parse(&bytes).is_err());
    }
}

//! Encrypting pages so that no nonce is ever used twice, whatever owners a volume has.
//!
//! AES-256-GCM. Each **owner** draws 128 random bits, its salt, and derives a key of its own from
//! the volume's; within it a page's nonce is a number that only counts up. So owners need not
//! know how far earlier ones counted: one that comes back with an older counter, because its
//! files did, has another key. A page's number is authenticated with it.
//!
//! A **seal** is the owner's index and the number (a word), and the tag (two words).
//! Concurrency: any thread; workers take numbers in blocks.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, KeyType, Salt};

use super::protection::SealKey;

/// What the client keeps of a sealed page: owner and number, then the tag.
pub type Seal = [u64; 3];

/// Random bits of one owner.
pub type OwnerSalt = [u64; 2];

/// Owners whose pages a volume may hold at a time.
pub const OWNERS_MAX: usize = 4096;

/// Bits of a number; above them is the owner's index. 2^48 pages are 2^60 bytes per owner.
const NUMBER_BITS: u32 = 48;

/// Numbers that a worker takes at a time; those that it leaves are never used.
pub const NUMBER_BLOCK: u64 = 4096;

/// Length of a tag in bytes.
const TAG_BYTES: usize = 16;

/// Keys of the owners whose pages a volume may hold, and the numbers of this one.
pub struct Sealer {
    key: SealKey,
    owners: Vec<Option<Owner>>,
    owner: usize,
    own_key: LessSafeKey,
    next: AtomicU64,
    volume: u128,
}

/// One that sealed pages before: its key is derived when the first of them is read. Most have none left.
struct Owner {
    salt: OwnerSalt,
    key: OnceLock<Option<LessSafeKey>>,
}

/// Says how long a derived key is.
struct Bytes(usize);

impl KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

impl Sealer {
    /// For a new owner, which has this salt and gets the `owner`-th place among those whose pages the
    /// volume may hold.
    ///
    /// # Errors
    /// The cipher refuses.
    pub fn new(
        key: &SealKey,
        volume: u128,
        owners: impl IntoIterator<Item = Option<OwnerSalt>>,
        (owner, salt): (usize, OwnerSalt),
    ) -> io::Result<Self> {
        let earlier = |salt| Owner {
            salt,
            key: OnceLock::new(),
        };
        let owners = owners.into_iter().map(|salt| salt.map(earlier));
        Ok(Self {
            key: key.clone(),
            owners: owners.collect(),
            owner,
            own_key: owner_key(key, volume, &salt)?,
            next: AtomicU64::new(0),
            volume,
        })
    }

    /// The key of an owner, if the volume may hold pages of it.
    fn key_of(&self, owner: usize) -> Option<&LessSafeKey> {
        if owner == self.owner {
            return Some(&self.own_key);
        }
        let earlier = self.owners.get(owner)?.as_ref()?;
        let derive = || owner_key(&self.key, self.volume, &earlier.salt).ok();
        earlier.key.get_or_init(derive).as_ref()
    }

    /// First of [`NUMBER_BLOCK`] numbers that nobody else gets.
    ///
    /// # Panics
    /// When 2^48 pages were sealed by one owner.
    pub fn take_numbers(&self) -> u64 {
        let first = self.next.fetch_add(NUMBER_BLOCK, Ordering::Relaxed);
        assert!(first >> NUMBER_BITS == 0, "an owner sealed 2^48 pages");
        first
    }

    /// Encrypts a page into `sealed` under a number that was never used before.
    pub fn seal(&self, page: u64, number: u64, plain: &[u8], sealed: &mut [u8]) -> Seal {
        let name = (self.owner as u64) << NUMBER_BITS | number;
        sealed.copy_from_slice(plain);
        let aad = Aad::from(self.place(page));
        let tag = self
            .own_key
            .seal_in_place_separate_tag(nonce(number), aad, sealed);
        let tag = tag.expect("a page is far below the cipher's limit");
        let (low, high) = tag.as_ref().split_at(8);
        let word = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("8 bytes"));
        [name, word(low), word(high)]
    }

    /// Decrypts a page into `plain` if it is what the seal was made of; else `plain` is unspecified, and
    /// nothing of the page.
    #[must_use]
    pub fn open(&self, page: u64, seal: &Seal, sealed: &[u8], plain: &mut [u8]) -> bool {
        let Some(key) = self.key_of(owner_of(seal)) else {
            return false;
        };
        let number = seal[0] & ((1 << NUMBER_BITS) - 1);
        let mut tag = [0; TAG_BYTES];
        tag[..8].copy_from_slice(&seal[1].to_le_bytes());
        tag[8..].copy_from_slice(&seal[2].to_le_bytes());
        let aad = Aad::from(self.place(page));
        plain.copy_from_slice(sealed);
        key.open_in_place_separate_tag(nonce(number), aad, tag.into(), plain, 0..)
            .is_ok()
    }

    /// What is authenticated besides: which page of which volume.
    fn place(&self, page: u64) -> [u8; 24] {
        let mut place = [0; 24];
        place[..16].copy_from_slice(&self.volume.to_le_bytes());
        place[16..].copy_from_slice(&page.to_le_bytes());
        place
    }
}

/// Which owner made a seal.
pub fn owner_of(seal: &Seal) -> usize {
    usize::try_from(seal[0] >> NUMBER_BITS).expect("16 bits")
}

/// A number that only the key's holder can make: tells whether it is a volume's key.
///
/// # Errors
/// The system's cryptography refuses.
pub fn fingerprint(key: &SealKey, volume: u128) -> io::Result<u64> {
    let mut bytes = [0; 8];
    derive(key, volume, &[b"cenote seal fingerprint"], &mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

fn owner_key(key: &SealKey, volume: u128, salt: &OwnerSalt) -> io::Result<LessSafeKey> {
    let mut bytes = [0; SealKey::BYTES];
    let (low, high) = (salt[0].to_le_bytes(), salt[1].to_le_bytes());
    derive(
        key,
        volume,
        &[b"cenote seal owner", &low, &high],
        &mut bytes,
    )?;
    let key = UnboundKey::new(&AES_256_GCM, &bytes);
    Ok(LessSafeKey::new(key.map_err(refused)?))
}

fn derive(key: &SealKey, volume: u128, info: &[&[u8]], out: &mut [u8]) -> io::Result<()> {
    let salt = Salt::new(HKDF_SHA256, &volume.to_le_bytes());
    let derived = salt.extract(key.bytes());
    let expanded = derived.expand(info, Bytes(out.len())).map_err(refused)?;
    expanded.fill(out).map_err(refused)
}

fn refused(_: ring::error::Unspecified) -> io::Error {
    io::Error::other("the cipher refuses")
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Of the last of these owners.
    fn sealer(owners: &[OwnerSalt]) -> Sealer {
        let (salt, earlier) = owners.split_last().unwrap();
        let earlier = earlier.iter().copied().map(Some);
        let owner = (owners.len() - 1, *salt);
        Sealer::new(&SealKey::new([7; 32]), 9, earlier, owner).unwrap()
    }

    #[test]
    fn a_page_opens_as_what_it_was_and_nowhere_else() {
        let sealer = sealer(&[[1, 2]]);
        let (plain, mut sealed, mut out) = ([3; PAGE], [0; PAGE], [0; PAGE]);
        let seal = sealer.seal(5, 0, &plain, &mut sealed);
        assert_ne!(sealed, plain);
        assert!(sealer.open(5, &seal, &sealed, &mut out));
        assert_eq!(out, plain);
        assert!(!sealer.open(6, &seal, &sealed, &mut out), "another page");
        sealed[4095] ^= 1;
        assert!(!sealer.open(5, &seal, &sealed, &mut out), "changed");
        let strange = [seal[0] | 9 << NUMBER_BITS, seal[1], seal[2]];
        assert!(
            !sealer.open(5, &strange, &sealed, &mut out),
            "no such owner"
        );
    }

    #[test]
    fn an_owner_with_the_same_numbers_has_another_key() {
        let (first, second) = (sealer(&[[1, 2]]), sealer(&[[1, 3]]));
        let (plain, mut a, mut b) = ([3; PAGE], [0; PAGE], [0; PAGE]);
        let _ = (
            first.seal(0, 0, &plain, &mut a),
            second.seal(0, 0, &plain, &mut b),
        );
        assert_ne!(a, b);
        let mut out = [0; PAGE];
        let next = sealer(&[[1, 2], [1, 3]]);
        let seal = first.seal(4, 1, &plain, &mut a);
        assert!(next.open(4, &seal, &a, &mut out), "an earlier owner's page");
        let seal = next.seal(4, 1, &plain, &mut b);
        assert_eq!(seal[0] >> NUMBER_BITS, 1);
        assert!(!first.open(4, &seal, &b, &mut out));
    }

    #[test]
    fn numbers_are_taken_once() {
        let sealer = sealer(&[[1, 2]]);
        let (a, b) = (sealer.take_numbers(), sealer.take_numbers());
        assert_eq!(a + NUMBER_BLOCK, b);
    }

    #[test]
    fn a_fingerprint_is_of_one_key_and_volume() {
        let of = |key, volume| fingerprint(&SealKey::new([key; 32]), volume).unwrap();
        assert_eq!(of(1, 1), of(1, 1));
        assert_ne!(of(1, 1), of(2, 1));
        assert_ne!(of(1, 1), of(1, 2));
    }
}

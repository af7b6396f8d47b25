//! Two hashes of a key: one that everybody may compute, and one that depends on a secret.
//!
//! [`place_hash`] chooses the partition. Clients compute it, too, so it is public, and who wants to load
//! one partition with many keys can. [`KeyHasher`] orders the keys within a partition: who knew it could
//! choose keys that fall together there. All processes of a group have the same one, since they tell each
//! other keys in its order; it comes from the cluster's key, or from the system for a server alone.

use std::fmt;

use cenote_fabric::ClusterKey;
use siphasher::sip::SipHasher13;

/// Bytes of the secret.
pub const SECRET_BYTES: usize = 16;

/// The low half of the XXH3-64 of a key: of n partitions it is in number `(hash * n) >> 32`.
pub fn place_hash(key: &[u8]) -> u32 {
    (cenote_codec::xxh3(key) & 0xffff_ffff) as u32
}

/// SipHash-1-3 under a secret.
#[derive(Clone, Copy)]
pub struct KeyHasher(Kind);

#[derive(Clone, Copy)]
enum Kind {
    Secret([u8; SECRET_BYTES]),
    /// For tests of keys that fall together.
    #[cfg(test)]
    Given(fn(&[u8]) -> u64),
}

impl KeyHasher {
    /// The hash under this secret.
    pub const fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self(Kind::Secret(secret))
    }

    /// The hash of a cluster's nodes.
    pub fn of_cluster(key: &ClusterKey, cluster: &str) -> Self {
        let secret = key.derive(&format!("order of keys in cluster {cluster}"));
        Self::new(*secret.first_chunk().expect("it is longer"))
    }

    /// The hash under a secret of this process alone.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret)?;
        Ok(Self::new(secret))
    }

    #[cfg(test)]
    pub(super) fn given(hash: fn(&[u8]) -> u64) -> Self {
        Self(Kind::Given(hash))
    }

    /// The hash of a key.
    pub fn hash(&self, key: &[u8]) -> u64 {
        match &self.0 {
            Kind::Secret(secret) => SipHasher13::new_with_key(secret).hash(key),
            #[cfg(test)]
            Kind::Given(hash) => hash(key),
        }
    }
}

/// Without the secret.
impl fmt::Debug for KeyHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By an implementation in another language, whose SipHash-2-4 gives the vectors of its authors.
    #[test]
    fn it_is_siphash_1_3() {
        let hasher = KeyHasher::new(std::array::from_fn(|index| index as u8));
        assert_eq!(hasher.hash(b""), 0xabac_0158_050f_c4dc);
        let text = [0, 1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(hasher.hash(&text), 0x25a4_8eb3_6c06_3de4);
    }

    #[test]
    fn another_secret_gives_another_order_and_is_not_shown() {
        let (one, other) = (KeyHasher::new([1; 16]), KeyHasher::new([2; 16]));
        assert_ne!(one.hash(b"key"), other.hash(b"key"));
        assert_eq!(one.hash(b"key"), KeyHasher::new([1; 16]).hash(b"key"));
        assert_eq!(format!("{one:?}"), "KeyHasher(..)");
        assert_eq!(
            u64::from(place_hash(b"abc")),
            0x78af_5f94_892f_3950 & 0xffff_ffff
        );
    }
}

//! The power goes at every single write, cut, and sync; files from hostile hands.

use std::sync::{Arc, Mutex};

use cenote_cache::log::tiers::memory::MemoryTier;
use cenote_cache::log::{Error, Image, Secret, Session, Store};
use proptest::prelude::*;

use crate::harness::{Conditions, Harness, Op, settings};
use crate::medium::{Disk, DiskTier};
use crate::values::{SECRET, add, keys, value_of};
use cenote_test_kit::Random;

/// A life with everything in it but crashes and compactions, which follow by themselves.
fn life(seed: u64) -> (Conditions, Vec<Op>) {
    let mut random = Random(seed);
    let conditions = Conditions {
        torn: 0,
        ..Conditions::random(&mut random)
    };
    let mut ops: Vec<Op> = (0..150).map(|_| Op::random(&mut random)).collect();
    ops.retain(|op| !matches!(op, Op::Crash(_)));
    (conditions, ops)
}

#[test]
fn a_store_comes_back_whenever_the_power_goes() {
    for seed in 0..4 {
        let (conditions, ops) = life(seed);
        let mut whole = Harness::new(conditions);
        whole.run(&ops).unwrap();
        let taken = whole.disk.lock().unwrap().taken;
        assert!(taken > 20, "{taken}");
        for budget in 1..=taken {
            let mut harness = Harness::new(conditions);
            harness.disk.lock().unwrap().budget = Some(budget);
            let outcome = harness
                .run(&ops)
                .and_then(|()| harness.crash(budget))
                // What was cut off must not come back behind what is written now.
                .and_then(|()| harness.run(&ops[..30]))
                .and_then(|()| harness.crash(!budget));
            assert!(
                outcome.is_ok(),
                "seed {seed}, after {budget} changes: {}",
                outcome.unwrap_err()
            );
        }
    }
}

#[test]
fn a_read_that_ends_early_while_a_store_recovers_is_not_taken_for_the_end_of_the_log() {
    for has_checkpoint in [false, true] {
        for reads in 0..6 {
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("checkpoint");
            let disk = Arc::new(Mutex::new(Disk::default()));
            let tier = || Box::new(DiskTier::new(Arc::clone(&disk), 1, u64::MAX));
            let path = Some(file.clone());
            let store = Store::create(settings(0), SECRET, Arc::new(add), vec![tier()], path);
            let mut session = store.unwrap().session().unwrap();
            let mut ended = Vec::new();
            for key in keys() {
                let upsert = |session: &mut Session| session.upsert(&key, &value_of(7));
                session.wait(&mut ended, upsert).unwrap();
            }
            let end = match has_checkpoint {
                true => session.checkpoint(&mut ended).unwrap(),
                false => session.commit(&mut ended).unwrap(),
            };
            drop(session);
            disk.lock().unwrap().halves_read = Some(reads);
            let store = Store::recover(settings(0), Arc::new(add), vec![tier()], file).unwrap();
            assert_eq!(store.extent().tail, end, "read {reads}");
        }
    }
}

#[test]
fn a_recovery_removes_checkpoints_that_a_kill_cut_short_and_no_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    std::fs::write(&file, image().to_bytes()).unwrap();
    for name in [".checkpoint.12-3.new", ".other.12-3.new", "checkpoint.old"] {
        std::fs::write(folder.path().join(name), b"half").unwrap();
    }
    let recover = |bytes: &[u8]| {
        std::fs::write(&file, bytes).unwrap();
        let tier = Box::new(MemoryTier::new("disk", None));
        Store::recover(settings(0), Arc::new(add), vec![tier], file.clone())
    };
    let count = || std::fs::read_dir(folder.path()).unwrap().count();
    assert!(recover(b"no checkpoint").is_err());
    assert_eq!(count(), 4, "it may be another's file");
    recover(&image().to_bytes()).unwrap();
    assert_eq!(count(), 3);
    assert!(!folder.path().join(".checkpoint.12-3.new").exists());
}

/// Bytes of a checkpoint that is right.
fn image() -> Image {
    Image {
        page_bytes: 256,
        secret: SECRET,
        begin: 0,
        replay_from: 0,
        end: 0,
        buckets: 1,
        chains: Vec::new(),
    }
}

fn recover(bytes: &[u8]) -> Result<Arc<Store>, Error> {
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let file = folder.path().join("checkpoint");
    std::fs::write(&file, bytes).unwrap();
    let tier = Box::new(MemoryTier::new("disk", None));
    Store::recover(settings(0), Arc::new(add), vec![tier], file)
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_with_its_reason() {
    assert!(recover(&image().to_bytes()).is_ok());
    let refused = |image: Image| recover(&image.to_bytes()).err().unwrap().to_string();
    assert!(
        refused(Image {
            page_bytes: 512,
            ..image()
        })
        .ends_with("its page_bytes differ from those of the settings")
    );
    assert!(
        refused(Image {
            buckets: 2,
            ..image()
        })
        .ends_with("its index_buckets differ from those of the settings")
    );
    assert!(
        refused(Image {
            begin: 512,
            ..image()
        })
        .ends_with("its addresses are in no order")
    );
    assert!(
        refused(Image {
            end: 512,
            ..image()
        })
        .ends_with("the log ends before it, or is not whole")
    );
    // Also where nothing of the log is to be read again.
    for end in [512, 1 << 47] {
        let claim = Image {
            replay_from: end,
            end,
            ..image()
        };
        assert!(refused(claim).ends_with("the log ends before it, or is not whole"));
    }
    assert!(
        refused(Image {
            end: 100,
            ..image()
        })
        .ends_with("its addresses are none of pages")
    );
    let mut long = image().to_bytes();
    long.resize(100_000, 0);
    let error = recover(&long).err().unwrap();
    assert!(
        error.is_corruption()
            && error
                .to_string()
                .ends_with("it has more chains than the index has room for")
    );
    let folder = tempfile::tempdir().unwrap();
    let tier = Box::new(MemoryTier::new("disk", None));
    let error = Store::recover(
        settings(0),
        Arc::new(add),
        vec![tier],
        folder.path().join("none"),
    );
    assert!(matches!(error, Err(Error::Io { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_checkpoint_is_parsed_as_it_was_written_and_refused_with_any_bit_flipped(
        words in proptest::array::uniform4(0u64..1 << 20),
        chains in proptest::collection::vec((0usize..64, 0u64..1 << 14, 4u64..99), 0..20),
        bit in any::<proptest::sample::Index>(),
    ) {
        let mut image = Image {
            begin: words[0] * 256,
            replay_from: (words[0] + words[1]) * 256 + words[2] % 32 * 8,
            end: (words[0] + words[1] + words[2] + 1) * 256,
            buckets: 64,
            secret: Secret { store: words[3], ..SECRET },
            ..image()
        };
        let source = recover_chains(&chains, image.end);
        image.chains = source;
        let mut bytes = image.to_bytes();
        prop_assert_eq!(Image::parse(&bytes), Ok(image));
        let bit = bit.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Image::parse(&bytes).is_err());
    }

    /// With the checksum made right by who is hostile.
    #[test]
    fn any_checkpoint_is_opened_or_refused(
        words in proptest::array::uniform7(prop_oneof![Just(0), Just(1), Just(256), any::<u64>()]),
        aim in 0u32..4,
        chains in proptest::collection::vec(any::<u64>(), 0..6),
    ) {
        let mut bytes = b"CENLOG01".to_vec();
        let mut words = words;
        if aim > 0 {
            words[0] = 256;
            words[5] = 1;
            words[6] = chains.len() as u64 / 2;
        }
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend_from_slice(&[0; 24]);
        bytes.extend(chains.iter().flat_map(|word| (*word >> (aim * 16)).to_le_bytes()));
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        if let Err(error) = recover(&bytes) {
            prop_assert!(error.is_corruption(), "{}", error);
        }
    }

    #[test]
    fn any_bytes_are_a_checkpoint_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(Image::parse(&bytes).is_err());
    }
}

/// Chains within a log that ends at `end`.
fn recover_chains(
    chains: &[(usize, u64, u64)],
    end: u64,
) -> Vec<(cenote_cache::log::BucketTag, u64)> {
    let chain = |&(bucket, tag, word): &(usize, u64, u64)| {
        let place = cenote_cache::log::BucketTag { bucket, tag };
        (place, word * 8 % end)
    };
    chains.iter().map(chain).collect()
}

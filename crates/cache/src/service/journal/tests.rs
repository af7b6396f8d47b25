use std::io::ErrorKind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_fabric::Time;
use proptest::prelude::*;

use super::*;
use crate::fleet::{Demand, Fleet, Shape};
use crate::links::HostConfig;
use crate::owner::{Access, Copy, Record};
use crate::providers::Machine;

const IDENTITY: Identity = Identity {
    cache: 0xcac4e,
    slab_bytes: 1 << 20,
    slabs_per_region: 4,
    copies: 2,
};

/// A disk that keeps a limited number of bytes, and then tears what is written.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<(Vec<u8>, Option<usize>)>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().0.clone()
    }

    fn limit(&self, room: Option<usize>) {
        self.0.lock().unwrap().1 = room;
    }
}

impl Log for Memory {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, room) = &mut *self.0.lock().unwrap();
        let fits = room.unwrap_or(bytes.len()).min(bytes.len());
        kept.extend(&bytes[..fits]);
        match fits < bytes.len() {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, room) = &mut *self.0.lock().unwrap();
        if room.is_some_and(|room| room < bytes.len()) {
            return Err(ErrorKind::StorageFull.into());
        }
        *kept = bytes.to_vec();
        Ok(())
    }
}

fn host(name: &str) -> KeptHost {
    KeptHost {
        name: name.to_owned(),
        address: "tcp:127.0.0.1:7000".to_owned(),
        domain: "rack".to_owned(),
    }
}

fn fresh() -> Image {
    Image {
        hosts: vec![host("a"), host("b"), host("c")],
        epoch: 1,
        ..Image::fresh(IDENTITY)
    }
}

fn entry(region: u32, generation: u64, hosts: &[usize]) -> Entry {
    let windows = Vec::new();
    Entry {
        region,
        generation,
        access: match hosts {
            [] => Access::Absent,
            _ => Access::Open,
        },
        copies: hosts
            .iter()
            .map(|&h| Copy::new(h, windows.clone()))
            .collect(),
        losses: 0,
        fell_back_ms: 0,
        next: Vec::new(),
    }
}

fn record(entries: &[Entry]) -> Record {
    Record {
        hosts: ["a", "b", "c"].map(str::to_owned).into(),
        entries: entries.to_vec(),
        ..Record::default()
    }
}

fn loaded(memory: &Memory) -> Image {
    Journal::load(&mut memory.clone())
        .unwrap()
        .expect("it begins")
}

#[test]
fn the_next_manager_finds_what_was_written() {
    let memory = Memory::default();
    let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
    journal.set_record(&record(&[entry(0, 3, &[0, 2]), entry(1, 1, &[])]));
    journal.write().unwrap();
    journal.set_record(&Record {
        leaving: vec![1],
        outdated: [(1, 99)].into(),
        duration: Some(Duration::from_secs(77)),
        ..record(&[entry(0, 4, &[1, 2]), entry(1, 1, &[])])
    });
    journal.write().unwrap();
    let image = loaded(&memory);
    assert_eq!(image.regions[0].hosts, [1, 2]);
    assert_eq!(image.regions[0].generation, 4);
    assert_eq!(image.duration, Some(Duration::from_secs(77)));
    assert_eq!(image.leaving, [1]);
    assert_eq!(image.outdated, [(1, 99)].into());
    assert_eq!(image.record().outdated, [(1, 99)].into());
    assert_eq!(&image, journal.wanted());
    let copies = &image.record().entries[0].copies;
    assert_eq!(copies[1].host, 2);
    assert_eq!(copies[1].windows.len(), 4, "one for each slab");
}

#[test]
fn a_full_disk_is_told_and_made_good_for_by_the_next_write() {
    let memory = Memory::default();
    let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
    journal.set_record(&record(&[entry(0, 1, &[0])]));
    journal.write().unwrap();
    memory.limit(Some(9));
    journal.set_record(&record(&[entry(0, 2, &[1])]));
    assert_eq!(journal.write().unwrap_err().kind(), ErrorKind::StorageFull);
    assert_eq!(
        loaded(&memory).regions[0].generation,
        1,
        "half a batch is none"
    );
    assert_eq!(journal.write().unwrap_err().kind(), ErrorKind::StorageFull);
    memory.limit(None);
    journal.set_record(&record(&[entry(0, 3, &[2])]));
    journal.write().unwrap();
    assert_eq!(loaded(&memory), *journal.wanted());
}

#[test]
fn a_long_history_is_rewritten() {
    let memory = Memory::default();
    let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
    for generation in 1..5000 {
        journal.set_record(&record(&[entry(0, generation, &[0])]));
        journal.write().unwrap();
    }
    assert!(memory.bytes().len() < 80 << 10, "{}", memory.bytes().len());
    assert_eq!(loaded(&memory).regions[0].generation, 4999);
}

#[test]
fn a_damaged_batch_with_others_behind_it_is_refused() {
    let memory = Memory::default();
    let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
    let at = memory.bytes().len();
    for generation in 1..4 {
        journal.set_record(&record(&[entry(0, generation, &[0])]));
        journal.write().unwrap();
    }
    memory.0.lock().unwrap().0[at + 14] ^= 1;
    let damaged = Journal::load(&mut memory.clone()).unwrap_err();
    assert!(matches!(damaged, JournalError::Damaged { at: found, .. } if found == at));
}

#[test]
fn hosts_keep_their_numbers_whatever_becomes_of_the_cluster_file() {
    let config = |name: &str, port: u16| HostConfig {
        name: name.to_owned(),
        address: format!("tcp:127.0.0.1:{port}").parse().unwrap(),
        domain: "d".to_owned(),
    };
    let cluster = [config("d", 1), config("c", 2), config("a", 3)];
    let hosts = fresh().hosts_in(&cluster);
    let said: Vec<String> = hosts
        .iter()
        .map(|h| format!("{} {}", h.name, h.address))
        .collect();
    let expected = [
        "a tcp:127.0.0.1:3",
        "b tcp:127.0.0.1:7000",
        "c tcp:127.0.0.1:2",
        "d tcp:127.0.0.1:1",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_host_that_was_renamed_is_the_same_and_nobody_is_looked_for_at_anothers_address() {
    let config = |name: &str, port: u16| HostConfig {
        name: name.to_owned(),
        address: format!("tcp:127.0.0.1:{port}").parse().unwrap(),
        domain: "d".to_owned(),
    };
    let said = |image: &Image, cluster: &[HostConfig]| -> Vec<(String, Listed)> {
        let hosts = image.hosts_in(cluster).into_iter();
        hosts
            .map(|host| (host.name.clone(), listed(&host, cluster)))
            .collect()
    };
    let expected = |hosts: &[(&str, Listed)]| -> Vec<(String, Listed)> {
        hosts.iter().map(|(n, l)| ((*n).to_owned(), *l)).collect()
    };
    let mut image = Image {
        hosts: vec![host("a"), host("b")],
        ..fresh()
    };
    image.hosts[1].address = "tcp:127.0.0.1:7001".to_owned();
    let renamed = [config("z", 7000), config("b", 7001)];
    assert_eq!(
        said(&image, &renamed),
        expected(&[("z", Listed::There), ("b", Listed::There)])
    );
    // The one that is retired, or lends no more, is left out of what is listed.
    assert_eq!(
        said(&image, &[config("a", 7000)]),
        expected(&[("a", Listed::There), ("b", Listed::NoMore)])
    );
    // A host that is known moved to where another one was.
    assert_eq!(
        said(&image, &[config("b", 7000)]),
        expected(&[("a", Listed::Displaced), ("b", Listed::There)])
    );
    // Two were at the address by now: it is the one that regions are on.
    image.hosts[1] = host("b");
    image.regions = vec![KeptRegion {
        generation: 1,
        access: Access::Open,
        losses: 0,
        fell_back_ms: 0,
        hosts: vec![0],
    }];
    assert_eq!(
        said(&image, &[config("z", 7000)]),
        expected(&[("z", Listed::There), ("b", Listed::Displaced)])
    );
}

#[test]
fn a_manager_writes_nothing_to_the_journal_of_a_later_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    let begin = |epoch| {
        let image = Image { epoch, ..fresh() };
        Journal::begin(Box::new(JournalFile::new(&path)), image)
    };
    let mut first = begin(1).unwrap();
    first.set_record(&record(&[entry(0, 1, &[0])]));
    first.write().unwrap();
    let second = begin(2).unwrap();
    first.set_record(&record(&[entry(0, 2, &[1])]));
    // The first time it would append, from then on write all again.
    for _ in 0..2 {
        let error = first.write().unwrap_err();
        assert!(Superseded::is_in(&error), "{error}");
    }
    assert!(Superseded::is_in(&begin(1).err().unwrap()));
    let said = Journal::load(&mut JournalFile::new(&path))
        .unwrap()
        .unwrap();
    assert_eq!(&said, second.wanted());
}

#[test]
fn a_manager_writes_nothing_over_a_journal_of_a_later_one_that_it_cannot_read() {
    use cenote_durable::journal::batch;

    let write = |later: Vec<u8>| {
        let memory = Memory::default();
        let mut first = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
        memory.0.lock().unwrap().0 = later.clone();
        // It was written to by somebody: all is to be written again.
        first.log = KnownLog::new(Box::new(memory.clone()));
        (first.write(), memory.bytes() == later)
    };
    let of_epoch = |epoch| format::whole(&Image { epoch, ..fresh() });
    let unknown = batch(&[255, 1, 2, 3]);
    let (mut later, mut earlier) = (of_epoch(fresh().epoch + 1), of_epoch(fresh().epoch));
    later.extend(&unknown);
    earlier.extend(&unknown);
    let (written, is_kept) = write(later);
    assert!(is_kept && Superseded::is_in(&written.unwrap_err()));
    let (written, is_kept) = write(earlier);
    assert!(!is_kept && written.is_ok(), "its own, damaged");
    // Of later versions that have another beginning.
    let other = [&b"cenoteC1"[..], &unknown].concat();
    for other in [b"cenoteC2 and more".to_vec(), other] {
        let (written, is_kept) = write(other);
        assert!(is_kept && written.is_err());
    }
    // Cut off before it said whose it is.
    for cut in [0, 3, 8, 20] {
        let (written, _) = write(of_epoch(9)[..cut].to_vec());
        assert!(written.is_ok(), "{cut}");
    }
}

#[test]
fn what_an_earlier_manager_wrote_over_a_journal_is_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let [path, beside] = ["journal", "journal beside"].map(|name| folder.path().join(name));
    let begin = |path, epoch| {
        let image = Image { epoch, ..fresh() };
        Journal::begin(Box::new(JournalFile::new(path)), image).unwrap()
    };
    let mut second = begin(&path, 2);
    // The first had looked, was stopped for as long as the second took to begin, and went on.
    begin(&beside, 1);
    std::fs::rename(&beside, &path).unwrap();
    second.set_record(&record(&[entry(0, 2, &[1])]));
    second.write().unwrap();
    let said = Journal::load(&mut JournalFile::new(&path)).unwrap();
    assert_eq!(said.as_ref(), Some(second.wanted()));
}

proptest! {
    #[test]
    fn a_journal_that_is_cut_off_says_what_it_said_at_some_time(
        changes in proptest::collection::vec((0_u32..4, proptest::sample::subsequence(vec![0, 1, 2], 0..3)), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let memory = Memory::default();
        let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
        let mut entries: Vec<Entry> = (0..4).map(|region| entry(region, 1, &[])).collect();
        let mut states = vec![journal.wanted().clone()];
        let begun = memory.bytes().len();
        for (generation, (region, hosts)) in (2..).zip(changes) {
            entries[region as usize] = entry(region, generation, &hosts);
            journal.set_record(&record(&entries));
            journal.write().unwrap();
            states.push(journal.wanted().clone());
        }
        let bytes = memory.bytes();
        let kept = begun + cut.index(bytes.len() - begun + 1);
        memory.0.lock().unwrap().0.truncate(kept);
        prop_assert!(states.contains(&loaded(&memory)));
    }

    #[test]
    fn no_bytes_are_too_strange_to_be_refused(
        random in proptest::collection::vec(any::<u8>(), 0..300),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let memory = Memory::default();
        let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
        journal.set_record(&record(&[entry(0, 3, &[0, 2]), entry(1, 1, &[])]));
        journal.write().unwrap();
        for (at, with) in flips {
            let bytes = &mut memory.0.lock().unwrap().0;
            let at = at.index(bytes.len());
            bytes[at] ^= with;
        }
        // Whatever it says by now, nothing panics; records that no checksum protects are tried as well.
        drop(Journal::load(&mut memory.clone()));
        let mut forged = b"cenoteC1".to_vec();
        forged.extend(&random);
        drop(format::parse(&forged));
        let mut sealed = b"cenoteC1".to_vec();
        sealed.extend(cenote_durable::journal::batch(&random));
        drop(format::parse(&sealed));
    }
}

/// Each place of it has the frame of a batch that reaches to its end: to sum them all takes hours, where there
/// are megabytes.
#[test]
fn a_tail_of_made_up_batches_is_refused_before_it_is_summed_again_and_again() {
    let mut bytes = format::whole(&fresh());
    let (there, len) = (bytes.len(), bytes.len() + (256 << 10));
    while bytes.len() + 12 < len {
        let left = (len - bytes.len() - 12) as u32;
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &left.to_le_bytes());
        bytes.extend(left.to_le_bytes());
        bytes.extend((sum as u32).to_le_bytes());
        bytes.extend([7; 4]);
    }
    bytes.resize(len, 0);
    let error = format::parse(&bytes).unwrap_err();
    assert!(
        matches!(error, JournalError::Damaged { at, .. } if at == there),
        "{error}"
    );
    // A batch that is torn, and nothing else, never came to be.
    let torn = &bytes[..there + 12];
    assert_eq!(format::parse(torn).unwrap(), Some(fresh()));
}

#[test]
fn a_machine_with_a_long_address_is_kept_by_its_order_alone() {
    let catalogue = "\
[[machine]]
name = \"small\"
provider = \"cloud\"
cores = 2
memory_mib = 4096
price_per_hour = 0.1
count = 1
";
    let shape = Shape {
        cache: IDENTITY.cache,
        region_bytes: 4 << 20,
        slab_bytes: 1 << 20,
        copies: 1,
        server_threads: 0,
        is_spot_allowed: false,
    };
    let (catalogue, limit) = (catalogue.parse().unwrap(), |_: &str| Duration::ZERO);
    let mut fleet = Fleet::new(shape, 1, catalogue, Vec::new(), limit, Time(1));
    let demand = Demand {
        regions: 1,
        remaining: None,
    };
    fleet.handle_tick(Time(1), &|_| unreachable!("there is no host"), demand);
    let order = fleet.kept()[0].order;
    let machine = |name: &str| Machine {
        order: order.name(IDENTITY.cache),
        id: "vm-17".to_owned(),
        host: HostConfig {
            name: "vm-17".to_owned(),
            address: format!("tcp:{name}:7000").parse().unwrap(),
            domain: "vm-17".to_owned(),
        },
    };
    let memory = Memory::default();
    let mut journal = Journal::begin(Box::new(memory.clone()), fresh()).unwrap();
    let mut keep = |name: &str| {
        fleet.handle_no_machine(Time(1), order, Some(&machine(name)), "too long");
        journal.set_machines(fleet.kept());
        journal.write().unwrap();
        loaded(&memory).machines[0].clone()
    };
    let label = "h".repeat(61);
    let kept = keep(&[&*label; 4].join("."));
    assert_eq!((&*kept.id, &*kept.address), ("", ""));
    assert_eq!(keep(&label).id, "vm-17");
}

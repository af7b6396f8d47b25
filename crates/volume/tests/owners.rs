//! A volume that outlives its owners: what one left, the next finds.

mod support;

use cenote_volume::{
    Health, IoError, Op, PAGE_BYTES, Request, Volume, VolumeConfig, VolumeError, Worker,
};
use support::{Cluster, Random, Transport, wait_for, wait_for_health};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;
const PAGES: u64 = SIZE / PAGE_BYTES as u64;

fn page_of(seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    (0..PAGE_BYTES / 8)
        .flat_map(|_| random.next().to_le_bytes())
        .collect()
}

fn offset(page: u64) -> u64 {
    page * PAGE_BYTES as u64
}

fn read(worker: &mut Worker, page: u64) -> Result<Vec<u8>, IoError> {
    let mut bytes = vec![0xa5; PAGE_BYTES];
    worker.read(offset(page), &mut bytes).map(|()| bytes)
}

fn read_all(volume: &Volume) -> Vec<Vec<u8>> {
    let mut worker = volume.worker().unwrap();
    (0..PAGES)
        .map(|page| read(&mut worker, page).unwrap_or_else(|e| panic!("page {page}: {e}")))
        .collect()
}

/// Fills some pages, discards some of those again; what the volume then holds.
fn fill(volume: &Volume, seed: u64) -> Vec<Vec<u8>> {
    let mut worker = volume.worker().unwrap();
    let mut random = Random(seed);
    let mut model = read_all(volume);
    for _ in 0..PAGES {
        let page = random.below(PAGES);
        if random.below(4) == 0 {
            worker.discard(offset(page), PAGE_BYTES as u64).unwrap();
            model[page as usize] = vec![0; PAGE_BYTES];
        } else {
            model[page as usize] = page_of(random.next());
            worker.write(offset(page), &model[page as usize]).unwrap();
        }
    }
    model
}

/// Ends the owner in the middle of writes, as a kill does; the pages it was writing, and what to.
fn end_in_the_middle(volume: Volume, seed: u64) -> Vec<(u64, Vec<u8>)> {
    let mut worker = volume.worker().unwrap();
    let mut random = Random(seed);
    let mut begun = Vec::new();
    for tag in 0..100 {
        let (page, bytes) = (random.below(PAGES), page_of(random.next()));
        let is_first = begun.iter().all(|&(known, _)| known != page);
        if is_first {
            let request = Request {
                tag,
                offset: offset(page),
                op: Op::Write(bytes.clone()),
            };
            worker.submit(request).expect("far from the bound");
            begun.push((page, bytes));
        }
        if random.below(3) == 0 {
            worker.poll(&mut Vec::new());
        }
    }
    worker.abandon();
    volume.detach();
    begun
}

const SCHEMES: [(&str, usize); 4] = [("rs:4+2", 7), ("rs:2+1", 4), ("mirror:3", 4), ("plain", 2)];

#[test]
fn the_next_owner_finds_every_byte() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for (scheme, hosts) in SCHEMES {
            let cluster = Cluster::start(hosts, transport, 32 << 20, SLAB);
            let mut model = vec![vec![0; PAGE_BYTES]; PAGES as usize];
            for round in 0..3 {
                let volume = cluster.kept_volume(scheme, SIZE).unwrap();
                assert_eq!(read_all(&volume), model, "{scheme}, owner {round}");
                model = fill(&volume, round);
                volume.detach();
            }
            // Closed, it holds nothing.
            cluster.kept_volume(scheme, SIZE).unwrap().close();
            let volume = cluster.kept_volume(scheme, SIZE).unwrap();
            assert_eq!(volume.status().unwrap().lent_bytes, 0);
            assert!(read_all(&volume).iter().flatten().all(|&byte| byte == 0));
        }
    }
}

#[test]
fn pages_that_were_being_written_agree_again() {
    for transport in [Transport::Shm, Transport::Tcp] {
        for (scheme, hosts) in &SCHEMES[..3] {
            for seed in 0..4 {
                let mut cluster = Cluster::start(*hosts, transport, 32 << 20, SLAB);
                let volume = cluster.kept_volume(scheme, SIZE).unwrap();
                let before = fill(&volume, seed);
                let begun = end_in_the_middle(volume, seed);
                let volume = cluster.kept_volume(scheme, SIZE).unwrap();
                let after = read_all(&volume);
                for page in 0..PAGES as usize {
                    let new = begun.iter().find(|&&(begun, _)| begun == page as u64);
                    let new = new.map_or(&before[page], |(_, bytes)| bytes);
                    assert!(
                        [new, &before[page]].contains(&&after[page]),
                        "{scheme}, seed {seed}: page {page} is neither old nor new"
                    );
                }
                // Whichever slab goes now, what remains says the same.
                cluster.stop(seed as usize % hosts);
                assert_eq!(read_all(&volume), after, "{scheme}, seed {seed}");
            }
        }
    }
}

/// Pages of which some splits were written and others were not, whichever hosts are lost besides.
#[test]
fn pages_that_were_being_written_are_whole_though_hosts_are_lost() {
    let mut redone = 0;
    for (scheme, hosts, losses) in [("rs:2+1", 5, 1), ("rs:4+2", 8, 2), ("mirror:3", 5, 2)] {
        for seed in 0..3 {
            let mut cluster = Cluster::start(hosts, Transport::Tcp, 32 << 20, SLAB);
            let volume = cluster.kept_volume(scheme, SIZE).unwrap();
            let before = fill(&volume, seed);
            // Some before the owner, some after it.
            let lost = |count| (0..losses).map(move |at| (seed as usize + at + count) % hosts);
            let early = seed as usize % (losses + 1);
            lost(0).take(early).for_each(|host| cluster.stop(host));
            let begun = end_in_the_middle(volume, seed);
            lost(0).skip(early).for_each(|host| cluster.stop(host));
            let volume = cluster.kept_volume(scheme, SIZE).unwrap();
            assert_eq!(volume.status().unwrap().torn_pages, 0, "{scheme}, {seed}");
            let after = read_all(&volume);
            for page in 0..PAGES as usize {
                let new = begun.iter().find(|&&(begun, _)| begun == page as u64);
                let (old, found) = (&before[page], &after[page]);
                let is_new = new.is_some_and(|(_, new)| new == found);
                assert!(
                    is_new || found == old,
                    "{scheme}, seed {seed}: page {page} is neither old nor new"
                );
                redone += u64::from(is_new);
            }
            wait_for_health(&volume, Health::Healthy);
            assert_eq!(read_all(&volume), after, "{scheme}, seed {seed}");
        }
    }
    assert!(redone > 0, "no write was under way");
}

/// An owner that ends while it redoes what the last one left leaves it to the next.
#[test]
fn owners_that_end_one_after_another_lose_nothing() {
    for seed in 0..4 {
        let mut cluster = Cluster::start(5, Transport::Tcp, 32 << 20, SLAB);
        let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
        let mut may_be: Vec<Vec<Vec<u8>>> =
            fill(&volume, seed).into_iter().map(|p| vec![p]).collect();
        let mut volume = Some(volume);
        for round in 0..4 {
            let owner = volume.take().unwrap();
            for (page, bytes) in end_in_the_middle(owner, seed * 100 + round) {
                may_be[page as usize].push(bytes);
            }
            let next = cluster.kept_volume("rs:2+1", SIZE).unwrap();
            for (page, found) in read_all(&next).into_iter().enumerate() {
                assert!(
                    may_be[page].contains(&found),
                    "seed {seed}, owner {round}: page {page}"
                );
                may_be[page] = vec![found];
            }
            volume = Some(next);
        }
        cluster.stop(seed as usize % 5);
        for (page, found) in read_all(&volume.unwrap()).into_iter().enumerate() {
            assert_eq!(vec![found], may_be[page], "seed {seed}: page {page}");
        }
    }
}

#[test]
fn more_losses_than_the_scheme_survives_are_errors_and_nothing_else() {
    let mut cluster = Cluster::start(3, Transport::Tcp, 32 << 20, SLAB);
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    fill(&volume, 1);
    let allocated: Vec<bool> = (0..PAGES)
        .map(|page| volume.allocation(offset(page), offset(page + 1)).0)
        .collect();
    volume.detach();
    for index in [0, 1] {
        cluster.stop(index);
    }
    // They may still come back with what they hold.
    match cluster.kept_volume("rs:2+1", SIZE) {
        Err(VolumeError::Unreachable { hosts }) => assert_eq!(hosts, "h00, h01"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    // They do not: these are new processes.
    for index in [0, 1] {
        cluster.restart(index);
    }
    // Nor do they become zeros for the next owner, or the one after that.
    for _ in 0..3 {
        let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
        let mut worker = volume.worker().unwrap();
        for page in 0..PAGES {
            let expected = if allocated[page as usize] {
                Err(IoError::Lost)
            } else {
                Ok(vec![0; PAGE_BYTES])
            };
            assert_eq!(read(&mut worker, page), expected, "page {page}");
        }
        drop(worker);
        volume.detach();
    }
    // What is discarded whole is as good as new.
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    let mut worker = volume.worker().unwrap();
    worker.discard(0, SIZE).unwrap();
    wait_for(&volume, |_| worker.write(0, &page_of(1)).is_ok());
    assert_eq!(read(&mut worker, 0).unwrap(), page_of(1));
    assert_eq!(read(&mut worker, 1).unwrap(), vec![0; PAGE_BYTES]);
}

#[test]
fn what_another_volume_left_is_refused() {
    let cluster = Cluster::start(4, Transport::Shm, 32 << 20, SLAB);
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    let model = fill(&volume, 3);
    volume.detach();
    for scheme in ["rs:4+1", "mirror:2"] {
        let refused = cluster.kept_volume(scheme, SIZE).map(|_| ());
        assert!(matches!(refused, Err(VolumeError::Foreign)), "{refused:?}");
    }
    let small = cluster.kept_volume("rs:2+1", SIZE / 4).map(|_| ());
    assert!(
        matches!(small, Err(VolumeError::Beyond { .. })),
        "{small:?}"
    );
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    assert_eq!(read_all(&volume), model);
}

/// The least slabs there are: a volume has at most 2^20 of them in a row, which is 4 GiB.
#[test]
fn a_volume_that_has_grown_is_opened_again() {
    const SLAB: u64 = 4096;
    const MOST: u64 = SLAB << 20;
    let cluster = Cluster::start(2, Transport::Shm, 64 * SLAB, SLAB);
    let open = |size_bytes| {
        let config = VolumeConfig {
            size_bytes_max: 8 * size_bytes,
            ..cluster.config("plain", size_bytes)
        };
        Volume::open_kept(config, cluster.kept(), cluster.connector())
    };
    let first = MOST / 8;
    let volume = open(first).unwrap();
    volume.worker().unwrap().write(0, &page_of(1)).unwrap();
    for size_bytes in [2 * first, MOST] {
        volume.resize(size_bytes).unwrap();
    }
    volume.detach();
    let volume = open(MOST).unwrap();
    assert_eq!(read(&mut volume.worker().unwrap(), 0), Ok(page_of(1)));
    let refused = volume.resize(MOST + SLAB);
    assert!(
        matches!(
            refused,
            Err(VolumeError::Growth {
                size_bytes_max: MOST,
                ..
            })
        ),
        "{refused:?}"
    );
    volume.detach();
    // It says what the slabs allow, and nothing of it is lost.
    let refused = open(MOST + SLAB).map(|_| ());
    assert!(
        matches!(
            refused,
            Err(VolumeError::Outgrown {
                size_bytes_max: MOST,
                ..
            })
        ),
        "{refused:?}"
    );
    let volume = open(MOST).unwrap();
    assert_eq!(read(&mut volume.worker().unwrap(), 0), Ok(page_of(1)));
}

#[test]
fn an_owner_that_another_has_followed_is_refused() {
    let cluster = Cluster::start(4, Transport::Tcp, 32 << 20, SLAB);
    let volume = cluster.kept_volume("rs:2+1", SIZE).unwrap();
    fill(&volume, 3);
    volume.detach();
    let folder = tempfile::tempdir().unwrap();
    let copy = |kind| {
        let to = folder.path().join(kind);
        std::fs::copy(cluster.path().join(format!("volume.{kind}")), &to).unwrap();
        to
    };
    let stale = cenote_volume::Kept::in_files(&copy("journal"), &copy("pages"), &copy("images"));
    let stale = stale.unwrap();
    for _ in 0..2 {
        cluster.kept_volume("rs:2+1", SIZE).unwrap().detach();
    }
    let refused = Volume::open_kept(cluster.config("rs:2+1", SIZE), stale, cluster.connector());
    assert!(
        matches!(refused, Err(VolumeError::Superseded)),
        "{:?}",
        refused.map(|_| ())
    );
}

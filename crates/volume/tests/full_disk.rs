//! What the owner of a volume leaves to the next, on a disk that is full.

mod support;

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_pool::control::Drain;
use cenote_volume::{
    Health, JournalFile, Kept, Log, Op, PAGE_BYTES, Protection, Request, SealKey, Volume,
    VolumeConfig, VolumeError,
};
use support::operator::Operator;
use support::{Cluster, Transport, wait_for, wait_for_health};

const SLAB: u64 = 1 << 20;
const SIZE: u64 = 4 << 20;

/// A file system of 4 MiB in memory, unmounted when dropped.
struct SmallDisk {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl SmallDisk {
    /// `None`, and says so, where nothing may be mounted.
    fn mount() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4M", "small"])
            .arg(&path)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self {
                path,
                _folder: folder,
            });
        }
        eprintln!("skipped: mounting a small tmpfs needs root");
        None
    }

    fn kept(&self) -> Kept {
        let path = |kind| self.path.join(format!("volume.{kind}"));
        let kept = Kept::in_files(&path("journal"), &path("pages"), &path("images"));
        let kept = kept.and_then(|kept| kept.with_tags(&path("tags")));
        kept.and_then(|kept| kept.with_layouts(&path("sides")))
            .unwrap()
    }

    /// Leaves room for so many bytes and no more.
    fn fill(&self, left_bytes: usize) {
        let mut file = File::create(self.path.join("fill")).unwrap();
        let block = [0; PAGE_BYTES];
        let full = loop {
            if let Err(error) = file.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        let len = file.metadata().unwrap().len() as usize;
        file.set_len((len - left_bytes) as u64).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.path.join("fill")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.path).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.path.display());
        }
    }
}

fn open(
    cluster: &Cluster,
    disk: &SmallDisk,
    protection: &Protection,
) -> Result<Volume, VolumeError> {
    let config = VolumeConfig {
        protection: protection.clone(),
        // As a server opens it: with addresses for much more than it has.
        size_bytes_max: 16 * SIZE,
        ..cluster.config("rs:2+1", SIZE)
    };
    Volume::open_kept(config, disk.kept(), cluster.connector())
}

fn write_all(volume: &Volume, byte: u8) {
    let mut worker = volume.worker().unwrap();
    for page in 0..SIZE / PAGE_BYTES as u64 {
        let offset = page * PAGE_BYTES as u64;
        worker.write(offset, &[byte; PAGE_BYTES]).unwrap();
    }
}

fn assert_all(volume: &Volume, byte: u8) {
    let mut worker = volume.worker().unwrap();
    let mut bytes = vec![0; SIZE as usize];
    worker.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|&found| found == byte));
}

/// A store to a page of a mapped file that the disk has no room for would end this process.
#[test]
fn a_volume_has_room_for_its_files_or_is_not_opened() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let cluster = Cluster::start(4, Transport::Shm, 32 << 20, SLAB);
    let sealed = Protection::Sealed(SealKey::new([1; 32]));
    for protection in [Protection::None, Protection::Checksum, sealed] {
        // From no room to enough, in steps: every file is refused once.
        let mut left_bytes = 0;
        let volume = loop {
            disk.fill(left_bytes);
            let opened = open(&cluster, &disk, &protection);
            // Whatever a refused attempt left is looked at by the next, with no room at all.
            if let Err(error) = &opened {
                assert!(
                    error.is_for_want_of_room(),
                    "{left_bytes} bytes left: {error}"
                );
                disk.fill(0);
                let again = open(&cluster, &disk, &protection).err();
                let again = again.expect("there is no room");
                assert!(
                    again.is_for_want_of_room(),
                    "{left_bytes} bytes left: {again}"
                );
            }
            disk.make_room();
            match opened {
                Ok(volume) => break volume,
                Err(_) => left_bytes += 32 << 10,
            }
        };
        disk.fill(0);
        write_all(&volume, 7);
        volume.detach();
        drop(volume);
        // What the last one left has its room already; only the journal is written again.
        disk.fill(PAGE_BYTES);
        let volume = open(&cluster, &disk, &protection).unwrap();
        assert_all(&volume, 7);
        disk.make_room();
        volume.close();
        drop(volume);
        for file in fs::read_dir(&disk.path).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }
}

/// A journal in a file of which nothing can be written while it is told so.
struct Refusing {
    file: JournalFile,
    is_full: Arc<AtomicBool>,
}

impl Refusing {
    fn kept(folder: &Path, is_full: &Arc<AtomicBool>) -> Kept {
        let path = |kind| folder.join(format!("volume.{kind}"));
        let kept = Kept::in_files(&path("journal"), &path("pages"), &path("images")).unwrap();
        Kept {
            journal: Box::new(Self {
                file: JournalFile::new(&path("journal")),
                is_full: Arc::clone(is_full),
            }),
            ..kept
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

impl Log for Refusing {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        self.file.read()
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        // All of it is there, and is not believed.
        self.file.append(bytes)?;
        self.check()
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.replace(bytes)
    }
}

#[test]
fn a_journal_that_cannot_be_written_is_told_and_writes_go_on_once_it_can() {
    let mut cluster = Cluster::start(4, Transport::Tcp, 32 << 20, SLAB);
    let is_full = Arc::new(AtomicBool::new(false));
    let folder = tempfile::tempdir().unwrap();
    let open = |cluster: &Cluster| {
        let kept = Refusing::kept(folder.path(), &is_full);
        Volume::open_kept(cluster.config("rs:2+1", SIZE), kept, cluster.connector())
    };
    let volume = open(&cluster).unwrap();
    write_all(&volume, 1);
    let journal = || volume.status().unwrap().journal.expect("it is kept");
    assert_eq!(journal().error, None);

    is_full.store(true, Ordering::SeqCst);
    let lost = volume.status().unwrap().extents[0].hosts[0].clone();
    let lost = (0..4).find(|&host| Some(&cluster.configs[host].name) == lost.as_ref());
    cluster.stop(lost.unwrap());
    wait_for(&volume, |_| journal().error.is_some());
    // Writes of an extent that has lost a slab wait for the journal: more pages than go at once.
    const WRITE_BYTES: usize = 64 * PAGE_BYTES;
    let mut worker = volume.worker().unwrap();
    for tag in 0..6 {
        let op = Op::Write(vec![2; WRITE_BYTES]);
        let offset = tag * WRITE_BYTES as u64;
        let write = Request { tag, offset, op };
        worker.submit(write).expect("far from the bound");
    }
    // A read does not.
    let op = Op::Read(vec![0; WRITE_BYTES]);
    let offset = SIZE - WRITE_BYTES as u64;
    let read = Request { tag: 6, offset, op };
    worker.submit(read).expect("far from the bound");
    let mut done = Vec::new();
    wait_for(&volume, |_| {
        worker.poll(&mut done);
        !done.is_empty() && journal().failing_s >= Some(1)
    });
    let [read] = &done[..] else {
        panic!("acknowledged before the journal says so: {done:?}");
    };
    assert_eq!(read.result, Ok(()));
    assert!(matches!(&read.op, Op::Read(bytes) if bytes == &[1; WRITE_BYTES]));

    is_full.store(false, Ordering::SeqCst);
    wait_for(&volume, |_| {
        worker.poll(&mut done);
        done.len() == 7 && journal().error.is_none()
    });
    assert!(done.iter().all(|done| done.result.is_ok()));
    wait_for_health(&volume, Health::Healthy);
    drop(worker);
    volume.detach();
    drop(volume);
    // The next owner finds it.
    let volume = open(&cluster).unwrap();
    let mut page = vec![0; PAGE_BYTES];
    volume.worker().unwrap().read(0, &mut page).unwrap();
    assert_eq!(page, [2; PAGE_BYTES]);
    volume.close();
}

#[test]
fn a_copy_that_is_whole_outlives_its_original_while_the_journal_cannot_name_it() {
    let mut cluster = Cluster::start(2, Transport::Tcp, 32 << 20, SLAB);
    let is_full = Arc::new(AtomicBool::new(false));
    let folder = tempfile::tempdir().unwrap();
    let kept = Refusing::kept(folder.path(), &is_full);
    let volume =
        Volume::open_kept(cluster.config("plain", SLAB), kept, cluster.connector()).unwrap();
    let bytes = vec![7; SLAB as usize];
    volume.worker().unwrap().write(0, &bytes).unwrap();
    let holder = volume.status().unwrap().extents[0].hosts[0].clone();
    let holder = (0..2).find(|&host| Some(&cluster.configs[host].name) == holder.as_ref());
    let holder = holder.unwrap();

    // The copy is noted once it is whole, and by nothing else is the journal written meanwhile.
    is_full.store(true, Ordering::SeqCst);
    Operator::of(&cluster, holder).drain(Drain::On);
    wait_for(&volume, |status| {
        status.journal.as_ref().unwrap().error.is_some()
    });
    cluster.stop(holder);
    wait_for(&volume, |status| status.extents[0].hosts[0].is_none());

    is_full.store(false, Ordering::SeqCst);
    wait_for(&volume, |status| status.counters.slabs_moved == 1);
    let mut seen = vec![0; SLAB as usize];
    volume.worker().unwrap().read(0, &mut seen).unwrap();
    assert!(seen == bytes);
    wait_for_health(&volume, Health::Healthy);
    volume.close();
}

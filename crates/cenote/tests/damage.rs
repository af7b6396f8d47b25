//! What goes on where the memory of a slab is cut short, or a file of a cluster's folder is
//! damaged.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cache_load::open;
use support::nbd::Client;
use support::{Ended, Folder, runs, signal, wait_ended, words};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const SLAB_BYTES: u64 = 256 << 10;
const MARK: &[u8] = b"in both copies";

fn up(hosts: u32) -> Folder {
    let folder = Folder::new();
    let up = format!("up --hosts {hosts} --memory 16M --slab 256K");
    folder.run(&words(&up)).expect(0);
    folder
}

fn until_whole(folder: &Folder) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let told = folder.run(&words("cache status c0 --json"));
        if told.code == 0 && told.json()["whole"] == true {
            return;
        }
        assert!(Instant::now() < deadline, "{told:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Cuts the slabs of a host short that begin with [`MARK`], as whoever has them mapped can; how
/// many.
fn cut_short(host: u32) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{host}/fd")).unwrap() {
        let path = entry.unwrap().path();
        let target = fs::read_link(&path).unwrap_or_default();
        let len_bytes = fs::metadata(&path).map_or(0, |file| file.len());
        if !target.to_string_lossy().starts_with("/memfd:") || len_bytes != SLAB_BYTES {
            continue;
        }
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut found = [0; MARK.len()];
        file.read_exact_at(&mut found, 0).unwrap();
        if found == MARK {
            file.set_len(0).unwrap();
            count += 1;
        }
    }
    count
}

#[test]
fn a_region_of_two_copies_is_read_and_whole_again_after_a_slab_of_either_was_cut_short() {
    let folder = up(3);
    let create = "cache create c0 --size 1M --region 1M --copies 2";
    folder.run(&words(create)).expect(0);
    until_whole(&folder);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    let mut reader = open(folder.path(), "c0").expect("its manager runs");
    for slab in 0..4 {
        cache.write(slab * SLAB_BYTES, MARK).expect("written");
    }
    let mut cuts = 0;
    for host in ["h00", "h01", "h02"] {
        cuts += cut_short(folder.pid(host));
        for slab in 0..4 {
            let mut found = [0; MARK.len()];
            reader.read(slab * SLAB_BYTES, &mut found).expect("read");
            assert_eq!(found, MARK, "{host}, slab {slab}");
        }
        until_whole(&folder);
        cache.write(SLAB_BYTES, MARK).expect("written");
    }
    assert!(cuts >= 8, "{cuts}: both copies were");
    assert!(reader.take_lost().is_none());
    // None of those is left for the next process of a host to lose.
    for host in ["h00", "h01", "h02"] {
        folder.run(&["host", "upgrade", host]).expect(0);
    }
}

#[test]
fn a_region_of_one_copy_whose_slab_was_cut_short_is_told_of_as_lost_and_used_again() {
    let folder = up(2);
    let create = "cache create c0 --size 1M --region 1M";
    folder.run(&words(create)).expect(0);
    until_whole(&folder);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    cache.write(0, MARK).expect("written");
    let cuts = ["h00", "h01"].map(|host| cut_short(folder.pid(host)));
    assert_eq!(cuts.iter().sum::<usize>(), 1);
    let mut found = [7; MARK.len()];
    cache.read(0, &mut found).expect("read");
    assert_eq!(found, [0; MARK.len()]);
    let lost = cache.take_lost().expect("it is told");
    assert_eq!((lost.region, lost.losses), (0, 1));
    cache.write(0, MARK).expect("written");
    cache.read(0, &mut found).expect("read");
    assert_eq!(found, MARK);
}

#[test]
fn a_volume_is_whole_again_after_a_slab_of_it_was_cut_short() {
    let folder = up(3);
    let volume = cenote::Volume::options()
        .size_bytes(1 << 20)
        .scheme("mirror:2")
        .open(folder.path().join("cluster.toml"))
        .expect("opened");
    let mut page = vec![7; 4096];
    page[..MARK.len()].copy_from_slice(MARK);
    volume.write_at(&page, 0).expect("written");
    let mut cuts = 0;
    for host in ["h00", "h01", "h02"] {
        cuts += cut_short(folder.pid(host));
        let mut back = vec![0; 4096];
        volume.read_at(&mut back, 0).expect("read");
        assert_eq!(back, page, "{host}");
        volume.write_at(&page, 0).expect("written");
        let deadline = Instant::now() + PATIENCE;
        while !volume.status().expect("a status").is_whole {
            assert!(Instant::now() < deadline, "{host}: not whole");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(cuts >= 2, "{cuts}");
}

#[test]
fn a_pid_file_that_is_garbage_keeps_no_other_host_from_being_shown_and_ended() {
    let folder = up(3);
    let pids = ["h00", "h01", "h02"].map(|host| folder.pid(host));
    let file: PathBuf = folder.host("h01").join("pid");
    fs::write(&file, "garbage\n").unwrap();
    let said = file.to_str().expect("UTF-8");
    let shown = folder.run(&["status", "--json"]).expect(3).json();
    assert_eq!(shown["hosts_up"], 3);
    let error_of = |host: usize| shown["hosts"][host]["error"].clone();
    let error = error_of(1);
    assert!(
        error.as_str().is_some_and(|error| error.contains(said)),
        "{error}"
    );
    assert_eq!((error_of(0), error_of(2)), (Value::Null, Value::Null));

    let ended = folder.run(&["down"]).expect(1);
    assert!(ended.stderr.contains(said), "{ended:#?}");
    assert!(ended.stderr.contains("2 hosts ended"), "{ended:#?}");
    assert!(!runs(pids[0]) && !runs(pids[2]), "the others end");
    assert!(runs(pids[1]), "nobody knows that it is ours");

    // As the error says.
    signal(pids[1], "TERM");
    wait_ended(pids[1]);
    fs::remove_file(&file).unwrap();
    folder.run(&["down"]).expect(0);
    folder.run(&words("up --hosts 1 --memory 16M")).expect(0);
}

#[test]
fn a_pid_file_of_a_cache_that_nobody_manages_says_nothing() {
    let folder = up(1);
    folder
        .run(&words("cache create c0 --size 1M --region 1M"))
        .expect(0);
    let file = folder.path().join("caches/c0/pid");
    let pid = fs::read_to_string(&file).unwrap();
    fs::write(&file, "garbage\n").unwrap();
    let refused = folder.run(&["down"]).expect(1);
    assert!(
        refused.stderr.contains(file.to_str().unwrap()),
        "{refused:#?}"
    );
    let pid = pid.trim().parse().expect("a number");
    signal(pid, "KILL");
    wait_ended(pid);
    folder.run(&["down"]).expect(0);
}

#[test]
fn a_damaged_folder_of_a_cache_is_named_and_keeps_nothing_else_out_of_a_bundle_or_from_its_end() {
    let folder = up(1);
    let pid = folder.pid("h00");
    folder
        .run(&words("cache create c0 --size 1M --region 1M"))
        .expect(0);
    let damaged = folder.path().join("caches/damaged");
    std::os::unix::fs::symlink("/nowhere", &damaged).unwrap();
    let said = damaged.to_str().expect("UTF-8");
    let listed = folder.run(&words("cache status --json"));
    let listed = listed.expect(3).json();
    assert_eq!(listed[0]["status"]["whole"], true, "{listed}");
    let error = listed[1]["error"].as_str().expect("it is damaged");
    assert!(error.contains(said), "{error}");

    let out = folder.path().join("report.tar.gz");
    let bundle = ["support-bundle", "--json", "--out", out.to_str().unwrap()];
    let bundle = folder.run(&bundle).expect(0).json();
    let parts = bundle["parts"].as_array().expect("a list");
    let part = |name: &str| {
        let found = parts.iter().find(|part| part["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {bundle:#}"))
    };
    assert_eq!(part("logs/hosts/h00/log")["error"], Value::Null);
    assert_eq!(part("config/caches/c0/cache.toml")["error"], Value::Null);
    let error = part("caches/damaged/")["error"].as_str().expect("named");
    assert!(error.contains(said), "{error}");

    // What that cache has acquired nobody knows.
    let refused = folder.run(&["down"]).expect(1);
    assert!(refused.stderr.contains(said), "{refused:#?}");
    assert!(runs(pid));
    let forced = folder.run(&["down", "--force"]).expect(0);
    assert!(forced.stderr.contains(said), "{forced:#?}");
    assert!(!runs(pid));
}

#[test]
fn a_manager_whose_journal_is_an_old_one_does_not_start_and_says_so() {
    let folder = up(2);
    folder
        .run(&words("cache create c0 --size 2M --region 1M"))
        .expect(0);
    until_whole(&folder);
    let mut cache = open(folder.path(), "c0").expect("its manager runs");
    cache.write(0, MARK).expect("written");
    let journal = folder.path().join("caches/c0/journal");
    folder.run(&words("cache stop c0")).expect(0);
    let old = fs::read(&journal).unwrap();
    for _ in 0..2 {
        folder.run(&words("cache start c0")).expect(0);
        until_whole(&folder);
        folder.run(&words("cache stop c0")).expect(0);
    }
    let newest = fs::read(&journal).unwrap();
    fs::write(&journal, &old).unwrap();
    // Each start counts up, and the old one must not become the newest by that.
    for _ in 0..4 {
        let refused = folder.run(&words("cache start c0")).expect(1);
        assert!(refused.stderr.contains("a later manager"), "{refused:#?}");
    }
    fs::write(&journal, &newest).unwrap();
    folder.run(&words("cache start c0")).expect(0);
    let mut found = [0; MARK.len()];
    cache.read(0, &mut found).expect("read");
    assert_eq!(found, MARK);
    assert!(cache.take_lost().is_none());
}

/// A volume in whose first page something was written, and whose server has ended in good order.
fn written(options: &[&str]) -> Folder {
    let folder = up(3);
    let create = [
        "volume", "create", "v0", "--size", "1M", "--scheme", "plain",
    ];
    folder.run(&[&create, options].concat()).expect(0);
    let mut client = serve(&folder);
    assert_eq!(client.write(0, &[7; 4096]), Ok(()));
    drop(client);
    folder.run(&words("volume stop v0")).expect(0);
    folder
}

fn serve(folder: &Folder) -> Client {
    start(folder).expect(0);
    Client::connect(&folder.path().join("nbd"), "v0")
}

fn start(folder: &Folder) -> Ended {
    let socket = folder.path().join("nbd");
    let socket = socket.to_str().expect("UTF-8");
    folder.run(&["nbd", "--volume", "v0", "--socket", socket, "--background"])
}

/// Flips bits of a byte of one of the volume's files.
fn flip(folder: &Folder, file: &str, at: u64, mask: u8) {
    let path = folder.path().join("volumes").join(file);
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ mask], at).unwrap();
}

/// Where the bits of pages that hold data begin, see docs/protocols/journal.md.
const BITS_AT: u64 = 16896 * 8;

#[test]
fn a_page_is_never_zeros_by_bits_that_flip_while_nobody_serves_its_volume() {
    for options in [&[][..], &["--checksum"]] {
        let folder = written(options);
        flip(&folder, "v0.pages", BITS_AT, 1);
        let mut client = serve(&folder);
        assert_eq!(client.read(0, 4096), Ok(vec![7; 4096]), "{options:?}");
        drop(client);
        folder.run(&words("volume stop v0")).expect(0);
        flip(&folder, "v0.pages", BITS_AT, 0b11);
        let mut client = serve(&folder);
        assert!(client.read(0, 4096).is_err(), "{options:?}");
        let status = folder.run(&words("volume status v0")).expect(3);
        assert!(status.stdout.contains("256 pages lost"), "{status:#?}");
        drop(client);
        folder.run(&words("volume stop v0")).expect(0);
    }
}

#[test]
fn a_last_batch_of_a_volumes_journal_that_is_damaged_is_told_and_can_be_given_up() {
    let folder = written(&[]);
    let journal = folder.path().join("volumes/v0.journal");
    let len = fs::metadata(&journal).unwrap().len();
    flip(&folder, "v0.journal", len - 1, 4);
    let before = fs::read(&journal).unwrap();
    let refused = start(&folder).expect(1);
    let told = refused.stderr.split("journal damaged at byte ").nth(1);
    let told = told.unwrap_or_else(|| panic!("{refused:#?}"));
    let at: u64 = told.split(':').next().unwrap().parse().unwrap();
    assert!(at < len, "{refused:#?}");
    let remedy = format!("truncate -s {at} {}", journal.display());
    assert!(refused.stderr.contains(&remedy), "{refused:#?}");
    assert!(
        refused.stderr.contains("cenote volume reset v0"),
        "{refused:#?}"
    );
    assert_eq!(fs::read(&journal).unwrap(), before, "it stays as it was");

    File::options()
        .write(true)
        .open(&journal)
        .unwrap()
        .set_len(at)
        .unwrap();
    let mut client = serve(&folder);
    assert!(
        client.read(0, 4096).is_err(),
        "no slab has it, as far as is known"
    );
    assert_eq!(client.read(4096, 4096), Ok(vec![0; 4096]));
    drop(client);
    folder.run(&words("volume stop v0")).expect(0);
}

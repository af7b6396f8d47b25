//! A cache that falls back to its checkpoint, with real hosts and managers.

mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::cache_load::open;
use support::small_disk::SmallDisk;
use support::{Folder, run, signal, wait_ended};

/// How long what must happen may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);
const REGION_BYTES: usize = 1 << 20;
const REGIONS: usize = 4;

fn up() -> Folder {
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M", "--slab", "256K"])
        .expect(0);
    let shape = ["--size", "4M", "--region", "1M"];
    folder
        .run(&[&["cache", "create", "c0"][..], &shape].concat())
        .expect(0);
    folder
}

fn status(folder: &Folder) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = folder.run(&["cache", "status", "c0", "--json"]);
        if ended.code == 0 || ended.code == 3 {
            return ended.json()["status"].clone();
        }
        // A manager that has much to do does not answer in the time that a command waits.
        assert!(ended.code == 1 && Instant::now() < deadline, "{ended:#?}");
    }
}

/// Bytes of a region that are of no other, nor of another round.
fn content(region: usize, round: usize) -> Vec<u8> {
    let byte = |at: usize| (at * 3 + region * 29 + round * 71 + (at >> 9)) as u8;
    (0..REGION_BYTES).map(byte).collect()
}

#[test]
fn what_a_host_takes_with_it_comes_back_as_it_was_also_under_the_next_manager() {
    let folder = up();
    let mut cache = open(folder.path(), "c0").expect("the manager is there");
    let put = |cache: &mut cenote_cache::service::Cache, round| {
        for region in 0..REGIONS {
            let address = (region * REGION_BYTES) as u64;
            cache.write(address, &content(region, round)).expect("room");
        }
    };
    put(&mut cache, 1);
    let copy = folder.path().join("kept");
    let copy = copy.to_str().expect("UTF-8");
    let made = folder
        .run(&["cache", "checkpoint", "c0", copy, "--json"])
        .expect(0)
        .json();
    assert_eq!(made["regions"], REGIONS, "{made}");
    let len = std::fs::metadata(copy).expect("the copy").len();
    assert_eq!(made["bytes"], len, "{made}");
    put(&mut cache, 2);

    // The next manager finds the checkpoint by itself.
    folder.run(&["cache", "stop", "c0"]).expect(0);
    folder.run(&["cache", "start", "c0"]).expect(0);
    let before = status(&folder);
    let hosts = before["hosts"].as_array().expect("hosts").iter();
    let busiest = hosts
        .max_by_key(|host| host["regions"].as_u64().expect("a number"))
        .expect("three");
    let name = busiest["name"].as_str().expect("a name");
    let pid = folder.pid(name);
    signal(pid, "KILL");
    wait_ended(pid);
    let deadline = Instant::now() + PATIENCE;
    // Once it is whole again its status says what it has lost.
    let told = loop {
        let ended = folder.run(&["cache", "status", "c0", "--json"]);
        let told = ended.json()["status"].clone();
        let has_lost = told["losses"].as_array().is_some_and(|all| !all.is_empty());
        if ended.code == 0 && has_lost {
            break told;
        }
        assert!(Instant::now() < deadline, "{ended:#?}");
    };
    let losses = told["losses"].as_array().expect("losses");
    let (mut lost, mut fallen) = (Vec::new(), Vec::new());
    while fallen.len() < losses.len() {
        assert!(
            Instant::now() < deadline,
            "{lost:?}, {fallen:?}: {:#}",
            status(&folder)
        );
        let mut ended = Vec::new();
        cache.poll(&mut ended);
        lost.extend(std::iter::from_fn(|| cache.take_lost()));
        fallen.extend(std::iter::from_fn(|| cache.take_fallen_back()));
        cache.wait(Duration::from_millis(20)).expect("a descriptor");
    }
    assert_eq!(lost.len(), fallen.len());
    for region in 0..REGIONS {
        let mut bytes = vec![0; REGION_BYTES];
        let address = (region * REGION_BYTES) as u64;
        cache.read(address, &mut bytes).expect("it is whole");
        let fell_back = fallen.iter().any(|one| one.region as usize == region);
        let round = if fell_back { 1 } else { 2 };
        assert!(bytes == content(region, round), "region {region}");
    }
    for loss in losses {
        let region = loss["region"].as_u64();
        let of = fallen
            .iter()
            .find(|one| Some(u64::from(one.region)) == region);
        assert_eq!(loss["fell_back_to_ms"], of.expect("told as well").taken_ms);
    }
}

#[test]
fn a_checkpoint_of_a_cache_without_a_manager_is_refused() {
    let folder = up();
    folder.run(&["cache", "stop", "c0"]).expect(0);
    let refused = folder.run(&["cache", "checkpoint", "c0"]).expect(1);
    assert!(refused.stderr.contains("no manager"), "{refused:#?}");
    let nobody = run(&["cache", "checkpoint", "c1", "--dir", folder.str()]);
    assert_ne!(nobody.code, 0, "{nobody:#?}");
}

#[test]
fn a_copy_takes_the_place_of_an_older_one_whole_or_not_at_all() {
    let folder = up();
    let mut cache = open(folder.path(), "c0").expect("the manager is there");
    for region in 0..REGIONS {
        let address = (region * REGION_BYTES) as u64;
        cache.write(address, &content(region, 1)).expect("room");
    }
    let copy_to = |path: &Path| {
        let path = path.to_str().expect("UTF-8");
        folder.run(&["cache", "checkpoint", "c0", path, "--json"])
    };
    // Where the cache has it itself.
    let own = folder.path().join("caches/c0/checkpoint");
    let made = copy_to(&own).expect(0).json();
    assert_eq!(
        made["bytes"],
        fs::metadata(&own).expect("it is there").len()
    );
    // By another name, which stays one.
    let (older, link) = (folder.path().join("older"), folder.path().join("link"));
    fs::write(&older, "an older one").expect("a file");
    std::os::unix::fs::symlink(&older, &link).expect("a link");
    let made = copy_to(&link).expect(0).json();
    assert_eq!(made["bytes"], fs::metadata(&older).expect("a file").len());
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    // What is no file is written to.
    copy_to(Path::new("/dev/null")).expect(0);
    assert!(!fs::metadata("/dev/null").expect("a device").is_file());

    let Some(disk) = SmallDisk::mount(&folder, "1M") else {
        return;
    };
    let kept = disk.path().join("kept");
    fs::write(&kept, "an older one").expect("room");
    let refused = copy_to(&kept).expect(1);
    assert!(refused.stderr.contains("disk/kept"), "{refused:#?}");
    assert_eq!(fs::read_to_string(&kept).expect("it stays"), "an older one");
    let mut names: Vec<_> = fs::read_dir(disk.path())
        .expect("a folder")
        .map(|entry| entry.expect("a name").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["cluster.key", "cluster.toml", "kept"]);
}

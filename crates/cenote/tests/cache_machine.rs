//! `cenote cache machine`, which a manager runs to get hosts on its own machine: what can go wrong.

mod support;

use std::fs;
use std::path::PathBuf;

use support::{Ended, Folder, cenote, runs, signal, wait_ended};

/// A cluster with a cache, for whose machines these commands are.
struct World {
    folder: Folder,
}

const NUMBER: &str = "1-9";
const NAME: &str = "c0-m1-9";

impl World {
    fn new() -> Self {
        let folder = Folder::new();
        let up = ["up", "--hosts", "1", "--memory", "8M", "--slab", "256K"];
        folder.run(&up).expect(0);
        let create = ["cache", "create", "c0", "--size", "1M", "--region", "1M"];
        folder.run(&create).expect(0);
        Self { folder }
    }

    /// Where the order's host is noted.
    fn noted(&self) -> PathBuf {
        self.folder.path().join("caches/c0/machines").join(NUMBER)
    }

    fn machine(&self, order: &str) -> Ended {
        let mut command = cenote();
        command
            .args(["cache", "machine", order, "c0", "--dir", self.folder.str()])
            .env("CENOTE_ORDER", format!("00c0ffee-{NUMBER}"))
            .env("CENOTE_MEMORY_BYTES", (4 << 20).to_string())
            .env("CENOTE_SLAB_BYTES", (256 << 10).to_string())
            .env("CENOTE_CORES", "0");
        Ended::from(command.output().expect("the binary runs"))
    }

    /// Processes that are the order's host, by what they were told.
    fn running(&self) -> Vec<u32> {
        let is_it = |pid: &u32| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let text = String::from_utf8_lossy(&words);
            let mut words = text.split('\0');
            words.any(|word| word == NAME) && text.contains(self.folder.str())
        };
        let processes = fs::read_dir("/proc").expect("it is mounted");
        let names =
            processes.filter_map(|one| one.expect("an entry").file_name().into_string().ok());
        let pids = names.filter_map(|name| name.parse().ok());
        pids.filter(is_it).filter(|&pid| runs(pid)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for pid in self.running() {
            signal(pid, "KILL");
        }
    }
}

#[test]
fn a_host_that_cannot_be_noted_is_ended() {
    let world = World::new();
    // What it is noted in cannot be replaced: each file in its turn.
    for file in ["machine", "started", "pid"] {
        let in_its_way = world.noted().join(file);
        fs::create_dir_all(&in_its_way).expect("a folder");
        let refused = world.machine("get").expect(1);
        let said = format!("note host {NAME}");
        assert!(refused.stderr.contains(&said), "{file}: {refused:#?}");
        assert_eq!(refused.stdout, "", "no machine is announced");
        assert_eq!(world.running(), Vec::<u32>::new(), "{file}");
        fs::remove_dir(&in_its_way).expect("it is there");
    }
    // Nothing is in the way any more.
    world.machine("get").expect(0);
    assert_eq!(world.running().len(), 1);
    world.machine("release").expect(0);
    assert_eq!(world.running(), Vec::<u32>::new());
    assert!(!world.noted().exists());
}

#[test]
fn a_host_on_another_machine_is_not_ended_from_here() {
    let world = World::new();
    let got = world.machine("get").expect(0).json();
    assert_eq!(got["id"], NAME);
    let running = world.running();
    assert_eq!(running.len(), 1);
    let machine = world.noted().join("machine");
    let here = fs::read_to_string(&machine).expect("it is noted");
    // The folder is seen from there, too, where the same number is another process.
    let elsewhere = "0123456789abcdef0123456789abcdef";
    assert!(!here.contains(elsewhere));
    fs::write(&machine, format!("{elsewhere}\n")).expect("a file");
    let refused = world.machine("release").expect(1);
    let said = format!("host {NAME} was started in another boot");
    assert!(refused.stderr.contains(&said), "{refused:#?}");
    fs::write(&machine, format!("{elsewhere} 0f1e store1\n")).expect("a file");
    let refused = world.machine("release").expect(1);
    let said = format!("host {NAME} runs on machine store1");
    assert!(refused.stderr.contains(&said), "{refused:#?}");
    assert_eq!(world.running(), running, "it was left alone");
    assert!(world.noted().join("pid").exists(), "and is noted still");
    fs::write(&machine, here).expect("a file");
    world.machine("release").expect(0);
    wait_ended(running[0]);
    assert!(!world.noted().exists());
}

#[test]
fn a_host_of_an_earlier_boot_is_gone_and_released() {
    let world = World::new();
    world.machine("get").expect(0);
    let running = world.running();
    let (machine, started) = (world.noted().join("machine"), world.noted().join("started"));
    let here = fs::read_to_string(&machine).expect("it is noted");
    let Some((boot, name)) = here.split_once(' ') else {
        // Nothing tells this machine from others for good.
        world.machine("release").expect(0);
        return;
    };
    // Its number is that of another process since.
    let earlier = "0123456789abcdef0123456789abcdef";
    fs::write(&machine, format!("{earlier} {name}")).expect("a file");
    let noted = fs::read_to_string(&started).expect("it is noted");
    let (ticks, _) = noted.split_once(' ').expect("ticks and a boot");
    fs::write(&started, format!("{ticks} {earlier}\n")).expect("a file");
    assert_ne!(boot, earlier);
    world.machine("release").expect(0);
    assert!(!world.noted().exists());
    assert_eq!(world.running(), running, "a stranger is left alone");
}

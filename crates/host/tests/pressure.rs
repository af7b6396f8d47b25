//! A host whose machine needs its memory: what it gives up, in which order, and what it gets back.

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use cenote_fabric::{Incoming, Status};
use cenote_host::{Headroom, Share};
use cenote_pool::control::{HostStatus, Reply, Request, SlabActivity, Window};
use support::{Client, DEADLINE, Fabric, Host, Lab, SLAB_BYTES};

/// A host of 16 slabs on a machine of its own that holds 24; 4 are to stay free.
struct Machine {
    file: PathBuf,
    _folder: tempfile::TempDir,
}

const MACHINE_SLABS: u64 = 24;

impl Machine {
    fn host(lab: &Lab, half_slabs_used: u64) -> (Self, Host) {
        let folder = tempfile::tempdir().unwrap();
        let machine = Self {
            file: folder.path().join("meminfo"),
            _folder: folder,
        };
        machine.others_use(half_slabs_used);
        let mut config = lab.config("h", 16);
        config.headroom = Some(Headroom {
            keep: Share::Bytes(4 * SLAB_BYTES),
            floor: Some(Share::Bytes(SLAB_BYTES)),
            meminfo: Some(machine.file.clone()),
            ..Headroom::infiniswap()
        });
        (machine, Host::start(config))
    }

    /// Others use so many half slabs. The file is replaced, as nobody may read a part of it.
    fn others_use(&self, half_slabs: u64) {
        let (total, used) = (MACHINE_SLABS * SLAB_BYTES, half_slabs * SLAB_BYTES / 2);
        let text = format!(
            "MemTotal: {} kB\nMemAvailable: {} kB\n",
            total >> 10,
            (total - used) >> 10
        );
        let next = self.file.with_extension("next");
        std::fs::write(&next, text).unwrap();
        std::fs::rename(&next, &self.file).unwrap();
    }
}

/// A client that answers its host, and what it saw of it.
struct Owner {
    client: Client,
    /// Windows and how active they are.
    held: BTreeMap<u64, (Window, u32)>,
    /// The windows of the last question.
    looked_at: Vec<Window>,
    given_back: Vec<u32>,
}

impl Owner {
    /// Does what the host asks until `wanted` of its own status, which it asks for all the while.
    fn serve_until(&mut self, wanted: impl Fn(&HostStatus) -> bool) -> HostStatus {
        let deadline = Instant::now() + DEADLINE * 3;
        self.client.send(&Request::Status);
        loop {
            assert!(Instant::now() < deadline, "the host stays as it is");
            let Incoming::Message(bytes) = self.client.incoming().unwrap() else {
                panic!("not a message");
            };
            match Reply::decode(&bytes).unwrap() {
                Reply::Status(status) if wanted(&status) => return *status,
                Reply::Status(_) => {
                    self.client.rest();
                    self.client.send(&Request::Status);
                }
                Reply::CheckActivity { request, windows } => {
                    let said = windows.iter().map(|&window| SlabActivity {
                        window,
                        milli: self.held[&window.generation].1,
                    });
                    let slabs = said.collect();
                    self.looked_at = windows;
                    self.client.send(&Request::Activity { request, slabs });
                }
                Reply::Evict { windows } => windows.into_iter().for_each(|w| self.give_back(w)),
                Reply::Unmapped { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn give_back(&mut self, window: Window) {
        // Asked again before it was seen to be given back.
        let Some((_, activity)) = self.held.remove(&window.generation) else {
            return;
        };
        let kept = self.looked_at.iter().filter(|w| **w != window);
        let kept = kept.filter_map(|w| Some(self.held.get(&w.generation)?.1));
        let least = kept.min();
        assert!(
            least.is_some_and(|least| activity < least),
            "{activity} goes, {least:?} stays"
        );
        self.given_back.push(activity);
        self.client.send(&Request::Unmap { window });
    }
}

#[test]
fn prepared_slabs_go_first_then_the_least_active_and_all_comes_back_for_good() {
    let lab = Lab::new(Fabric::Shm);
    // Room for eleven and a half.
    let (machine, host) = Machine::host(&lab, 17);
    let mut client = lab.client(&host, 1);
    let held = (0..10).map(|extent| {
        let window = client.map(7, extent);
        (window.generation, (window, 1000 * (20 - extent)))
    });
    let mut owner = Owner {
        held: held.collect(),
        client,
        looked_at: Vec::new(),
        given_back: Vec::new(),
    };
    let calm = owner.serve_until(|status| status.slabs.prepared == 1);
    assert_eq!((calm.slabs_free(), calm.pressure.slabs_max), (1, 11));
    assert!(calm.uptime_s >= 4, "prepared at once, on the first sample");

    // Room for seven and a half, by and by.
    machine.others_use(25);
    let tight = owner.serve_until(|status| status.pressure.slabs_max == 10);
    assert_eq!((tight.slabs.prepared, tight.slabs.mapped), (0, 10));
    assert_eq!((tight.pressure.evictions_asked, tight.slabs_free()), (0, 0));
    let tighter = owner.serve_until(|s| s.pressure.slabs_max == 7 && s.slabs.mapped == 7);
    let pressure = tighter.pressure;
    assert_eq!((pressure.evictions_asked, pressure.evictions_done), (3, 3));
    assert_eq!((pressure.slabs_taken, owner.given_back.len()), (0, 3));

    machine.others_use(0);
    let again = owner.serve_until(|s| s.pressure.slabs_max == 16 && s.slabs.prepared == 1);
    assert_eq!(again.slabs_free(), 9);
    for extent in 20..23 {
        owner.client.map(7, extent);
    }
    let since = again.uptime_s;
    let later = owner.serve_until(|status| status.uptime_s >= since + 4);
    assert_eq!(later.pressure.evictions_asked, 3, "no swing");
    assert_eq!((later.slabs.mapped, later.pressure.asked_back), (10, 0));
}

#[test]
fn a_silent_client_loses_slabs_only_below_the_floor_and_keeps_the_rest_readable() {
    let lab = Lab::new(Fabric::Shm);
    let (machine, host) = Machine::host(&lab, 17);
    let (mut silent, mut operator) = (lab.client(&host, 1), lab.client(&host, 2));
    let windows: Vec<Window> = (0..10).map(|extent| silent.map(7, extent)).collect();
    let mut mapped: Vec<_> = windows
        .iter()
        .map(|&window| silent.attach(window).unwrap())
        .collect();
    for (index, window) in (0_u8..).zip(&mapped) {
        assert_eq!(silent.write(window, 0, &[index + 1; 64]), Status::Ok);
    }
    // It renews its lease, and that is all that it says.
    let mut status_when = |wanted: &dyn Fn(&HostStatus) -> bool| {
        let mut second = 0;
        operator.status_when(|status| {
            if status.uptime_s > second {
                second = status.uptime_s;
                silent.send(&Request::Ping { sequence: second });
            }
            wanted(status)
        })
    };
    // Room for seven and a half, ten and a half above the floor: asked for, not taken.
    machine.others_use(25);
    let asked = status_when(&|s| s.pressure.asked_back == 3);
    let since = asked.uptime_s;
    let later = status_when(&|s| s.uptime_s >= since + 4);
    assert_eq!((later.slabs.mapped, later.pressure.slabs_taken), (10, 0));

    // Two more must go, or the machine is out of memory.
    machine.others_use(29);
    let taken = status_when(&|s| s.pressure.slabs_taken == 2);
    let since = taken.uptime_s;
    let later = status_when(&|s| s.uptime_s >= since + 3);
    assert_eq!((later.slabs.mapped, later.pressure.slabs_taken), (8, 2));
    assert_eq!(later.pressure.evictions_done, 0);
    let mut lost = 0;
    for (index, window) in (0_u8..).zip(mapped.drain(..)) {
        let mut bytes = [0; 64];
        match silent.read(&window, 0, &mut bytes) {
            Status::Ok => assert_eq!(bytes, [index + 1; 64]),
            Status::Revoked | Status::StaleGeneration => lost += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(lost, 2);
}

#[test]
fn a_client_of_the_version_before_is_asked_for_slabs_and_not_for_its_activity() {
    let lab = Lab::new(Fabric::Tcp);
    let (machine, host) = Machine::host(&lab, 17);
    let mut earlier = lab.client(&host, 1);
    let send = |client: &mut Client, request: &Request| {
        let mut bytes = Vec::new();
        request.encode_as(2, &mut bytes);
        client.session.send(&bytes).unwrap();
    };
    for extent in 0..11 {
        let request = Request::Map {
            request: 1,
            volume: 7,
            extent,
            member: 0,
        };
        send(&mut earlier, &request);
        assert_eq!(earlier.raw_reply()[..2], [2, 2], "mapped");
    }
    machine.others_use(2 * MACHINE_SLABS);
    let first = earlier.raw_reply();
    assert_eq!(first[..2], [2, 8], "no question before");
    let Ok(Reply::Evict { windows }) = Reply::decode(&first) else {
        panic!("{first:?}");
    };
    for window in windows {
        send(&mut earlier, &Request::Unmap { window });
    }
    let mut operator = lab.client(&host, 2);
    operator.status_when(|status| status.pressure.evictions_done > 0);
}

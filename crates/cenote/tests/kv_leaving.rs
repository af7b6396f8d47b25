//! Nodes of `cenote kv` that leave as planned while clients write and read all the time: no request
//! fails, nothing is lost and nothing stale. Without etcd it is left out.

mod support;

use std::sync::atomic::Ordering;
use std::time::Instant;

use support::well::{FIVE, PATIENCE, Well, places};
use support::writer::{Load, WRITERS};
use support::{runs, signal};

const NAMES: [&str; 5] = ["n00", "n01", "n02", "n03", "n04"];

/// Tells a node to end, as a supervisor does, and waits until it has.
fn end(load: &Load, well: &Well, node: usize) {
    let told = &load.told.as_ref().expect("nodes are told")[node];
    let pid = well.pid(&format!("nodes/{}", NAMES[node]));
    told.fetch_add(1, Ordering::SeqCst);
    signal(pid, "TERM");
    let deadline = Instant::now() + PATIENCE;
    while runs(pid) {
        assert!(Instant::now() < deadline, "{} does not end", NAMES[node]);
        std::thread::yield_now();
    }
    told.fetch_add(1, Ordering::SeqCst);
    let log = well.log(NAMES[node]);
    assert!(!log.contains("nobody else has"), "{log}");
}

#[test]
fn five_nodes_are_restarted_one_by_one_and_no_request_fails() {
    let Some(well) = Well::up(&FIVE) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        for (node, name) in NAMES.into_iter().enumerate() {
            end(&load, &well, node);
            load.until_more(100);
            // Where it was: clients keep their list of addresses.
            let address = addresses[node].to_string();
            well.run(&["join", "--name", name, "--clients", &address])
                .expect(0);
            well.until_whole();
            load.until_more(100);
        }
    });
    // Without being told it comes back where it was told to be before.
    end(&load, &well, 0);
    well.run(&["join", "--name", "n00"]).expect(0);
    well.until_whole();
    assert_eq!(well.clients(), addresses);
    let unknown = written.values().filter(|values| values.len() > 1).count();
    assert!(unknown <= WRITERS * NAMES.len(), "{unknown}");
    load.check(&written, &[0, 1, 2, 3, 4]);
}

#[test]
fn what_a_drained_node_has_goes_to_a_spare_and_nothing_is_missing_meanwhile() {
    let Some(well) = Well::up(&[&FIVE[..], &["--lanes", "2"]].concat()) else {
        return;
    };
    let addresses = well.clients();
    let load = Load::new(&addresses, true);
    let written = load.during(|| {
        // With nobody there to take them it gives its places up, and says so.
        let drained = well.run(&["drain", "n01", "--wait"]).expect(3);
        assert!(
            drained.stdout.contains("no node could take"),
            "{drained:#?}"
        );
        well.until("it has nothing", |status| places(status, "n01") == 0);
        well.run(&["join", "--name", "spare"]).expect(0);
        well.until_whole();
        load.until_more(100);

        let address = addresses[1].to_string();
        end(&load, &well, 1);
        well.run(&["join", "--name", "n01", "--clients", &address])
            .expect(0);
        well.until("it is there", |status| status["nodes_up"] == 5);
        let drained = well.run(&["drain", "n02", "--wait"]).expect(0);
        assert!(drained.stdout.contains("others took 5"), "{drained:#?}");
        well.until("it has nothing", |status| {
            places(status, "n02") == 0 && status["whole"] == true
        });
        load.until_more(100);
        end(&load, &well, 2);
    });
    load.check(&written, &[0, 1, 3, 4]);
}

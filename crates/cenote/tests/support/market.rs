//! A cache whose manager gets its machines by commands, and what these wrote down.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cache_load::CacheLoad;
use super::well::until;
use super::{Ended, Folder, runs, signal};

/// How long what must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Gets a machine: a host with a session of its own, which is noted under the order's number. With a file `slow`,
/// it says nothing before there is a file `go`.
const GET: &str = r#"set -e
id=vm-${CENOTE_ORDER#*-}
m=$D/vm/$id
mkdir -p $m
setsid $PROGRAM host --name $id --listen shm:$m/s --memory $((CENOTE_MEMORY_BYTES / 1024))K \
    --slab $((CENOTE_SLAB_BYTES / 1024))K --grace 60s --key $D/cluster.key >$m/out 2>$m/err </dev/null &
echo $! >$m/pid
until grep -q ready $m/out; do sleep 0.05; done
echo "got $id" >>$LOG
if [ -f $D/slow ]; then until [ -f $D/go ]; do sleep 0.05; done; fi
echo "{\"id\":\"$id\",\"address\":\"shm:$m/s\"}"
"#;
const RELEASE: &str = r#"id=${CENOTE_MACHINE_ID:-vm-${CENOTE_ORDER#*-}}
echo "released $id" >>$LOG
[ -f $D/vm/$id/pid ] || exit 0
kill -9 $(cat $D/vm/$id/pid) 2>/dev/null
rm -f $D/vm/$id/pid
exit 0
"#;

pub struct Market {
    pub folder: Folder,
}

/// One type of a catalogue: name, provider, memory in MiB, price.
pub fn machine(name: &str, provider: &str, memory_mib: u32, price: &str) -> String {
    format!(
        "[[machine]]\nname = \"{name}\"\nprovider = \"{provider}\"\ncores = 1\nmemory_mib = {memory_mib}\n\
         price_per_hour = {price}\ncount = 3\n"
    )
}

impl Market {
    pub fn new(more: &str) -> Self {
        let folder = Folder::new();
        folder
            .run(&["up", "--hosts", "1", "--memory", "1M", "--slab", "256K"])
            .expect(0);
        let market = Self { folder };
        market.set_catalogue(more);
        market
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The command's provider is `cloud`; prices are looked at each second.
    pub fn set_catalogue(&self, more: &str) {
        self.write_catalogue("machines.toml", "log", more);
    }

    /// A catalogue of the same machines, whose commands write into a log of their own.
    pub fn write_catalogue(&self, name: &str, log: &str, more: &str) {
        let head = format!(
            "D={}; LOG=$D/{log}; PROGRAM={}\n",
            self.folder.str(),
            env!("CARGO_BIN_EXE_cenote")
        );
        let quoted = |script: &str| format!("'''{head}{script}'''");
        let text = format!(
            "look_every_s = 1\n[[provider]]\nname = \"cloud\"\nkind = \"command\"\nlimit_s = 100\n\
             acquire = [\"sh\", \"-c\", {}]\nrelease = [\"sh\", \"-c\", {}]\n{more}",
            quoted(GET),
            quoted(RELEASE)
        );
        let beside = self.path("machines.new");
        fs::write(&beside, text).expect("a file");
        fs::rename(beside, self.path(name)).expect("in one step");
    }

    /// A cache of 8 regions of 1 MiB.
    pub fn create(&self, more: &[&str]) -> Ended {
        let path = self.path("machines.toml");
        let catalogue = path.to_str().expect("UTF-8");
        let create = ["cache", "create", "c0", "--size", "8M", "--region", "1M"];
        let arguments = ["--slab", "256K", "--catalogue", catalogue];
        self.folder.run(&[&create[..], &arguments, more].concat())
    }

    pub fn status(&self) -> Value {
        let ask = || self.folder.run(&["cache", "status", "c0", "--json"]);
        until("a status is told", ask, |_| true)["status"].take()
    }

    /// Asks until the status is as wanted; a load goes on meanwhile.
    pub fn until(
        &self,
        load: &mut Option<CacheLoad>,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(load) = load {
                load.run_for(Duration::from_millis(50));
            }
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{what}: {status:#} {}",
                self.log()
            );
        }
    }

    pub fn log(&self) -> String {
        self.log_in("log")
    }

    /// A log of another catalogue's commands.
    pub fn log_in(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The processes of machines that commands got and did not take back.
    pub fn running(&self) -> Vec<u32> {
        let Ok(machines) = fs::read_dir(self.path("vm")) else {
            return Vec::new();
        };
        let pid = |path: PathBuf| fs::read_to_string(path.join("pid")).ok();
        let pids = machines.filter_map(|one| pid(one.expect("an entry").path()));
        let pids = pids.filter_map(|text| text.trim().parse().ok());
        pids.filter(|&pid| runs(pid)).collect()
    }

    pub fn pid(&self, id: &str) -> u32 {
        let text = fs::read_to_string(self.path("vm").join(id).join("pid")).expect("it was got");
        text.trim().parse().expect("a number")
    }
}

impl Drop for Market {
    fn drop(&mut self) {
        fs::write(self.path("go"), "").expect("a file");
        if Path::new(&self.path("caches/c0")).exists() {
            drop(self.folder.run(&["cache", "delete", "c0"]));
        }
        for pid in self.running() {
            signal(pid, "KILL");
        }
    }
}

/// Its one machine that is used.
pub fn used(status: &Value) -> Vec<&str> {
    let machines = status["machines"].as_array().expect("machines").iter();
    let used = machines.filter(|one| one["state"] == "used");
    used.map(|one| one["id"].as_str().expect("an id")).collect()
}

pub fn is_only_on(status: &Value, id: &str) -> bool {
    let hosts = status["hosts"].as_array().expect("hosts").iter();
    let mut others = hosts.filter(|host| host["name"] != id);
    others.all(|host| host["regions"] == 0)
}

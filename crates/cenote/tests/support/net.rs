//! Machines of their own: network namespaces on one bridge, and what can be done to their links.
//!
//! The bridge is in a namespace as well, so nothing of the machine's own network changes and
//! all of it goes with the namespaces. Needs root and iproute2.

use std::fs::File;
use std::os::fd::AsFd;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::cenote;

/// Namespaces, each with the interface `eth0` and an address on the bridge.
pub struct Net {
    prefix: String,
    names: Vec<String>,
}

/// The namespace of the bridge, whose ports have the names of the machines.
const SWITCH: &str = "switch";

impl Net {
    /// An empty network; why not, where there cannot be one.
    pub fn new() -> Result<Self, String> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut net = Self {
            prefix: format!("cenote-{}-{count}", std::process::id()),
            names: Vec::new(),
        };
        net.add_namespace(SWITCH)?;
        let switch = net.namespace(SWITCH);
        ip(&format!("-n {switch} link add bridge0 type bridge"))?;
        ip(&format!("-n {switch} link set bridge0 up"))?;
        Ok(net)
    }

    /// A network of these machines; `None`, with the reason printed, where there cannot be one.
    pub fn of<'a>(machines: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let net = Self::new().and_then(|mut net| {
            for (name, address) in machines {
                net.add(name, address)?;
            }
            Ok(net)
        });
        net.inspect_err(|reason| {
            println!("skipped: network namespaces (root and iproute2 are needed): {reason}");
        })
        .ok()
    }

    /// Adds a machine with an address, as in `10.77.0.2`.
    pub fn add(&mut self, name: &str, address: &str) -> Result<(), String> {
        self.add_namespace(name)?;
        let (switch, machine) = (self.namespace(SWITCH), self.namespace(name));
        ip(&format!(
            "-n {switch} link add {name} type veth peer name eth0 netns {machine}"
        ))?;
        ip(&format!("-n {switch} link set {name} master bridge0 up"))?;
        ip(&format!("-n {machine} address add {address}/24 dev eth0"))?;
        ip(&format!("-n {machine} link set lo up"))?;
        ip(&format!("-n {machine} link set eth0 up"))
    }

    /// Gives a machine another address in place of its one.
    pub fn move_to(&self, name: &str, address: &str) {
        let machine = self.namespace(name);
        must(ip(&format!("-n {machine} address flush dev eth0")));
        must(ip(&format!(
            "-n {machine} address add {address}/24 dev eth0"
        )));
    }

    /// Pulls a machine's cable out of the switch.
    pub fn unplug(&self, name: &str) {
        let switch = self.namespace(SWITCH);
        must(ip(&format!("-n {switch} link set {name} down")));
    }

    /// Puts it back.
    pub fn plug(&self, name: &str) {
        let switch = self.namespace(SWITCH);
        must(ip(&format!("-n {switch} link set {name} up")));
    }

    /// Makes a machine drop what it sends to an address; it still hears from there.
    pub fn mute(&self, name: &str, address: &str) {
        let machine = self.namespace(name);
        must(ip(&format!("-n {machine} route add blackhole {address}")));
    }

    /// Ends [`Net::mute`].
    pub fn unmute(&self, name: &str, address: &str) {
        let machine = self.namespace(name);
        must(ip(&format!("-n {machine} route del blackhole {address}")));
    }

    /// Does something on a machine: what it starts, and whom it connects to, is from there.
    pub fn inside<R: Send>(&self, name: &str, what: impl FnOnce() -> R + Send) -> R {
        let path = Path::new("/run/netns").join(self.namespace(name));
        let done = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let namespace = File::open(&path).expect("it was added");
                let kind = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(namespace.as_fd(), kind).expect("it is a namespace");
                what()
            });
            thread.join()
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// The binary under test, on a machine. Its process is the one that is spawned.
    pub fn cenote(&self, name: &str) -> Command {
        let program = cenote();
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name)]);
        command.arg(program.get_program());
        for (key, value) in program.get_envs() {
            match value {
                Some(value) => command.env(key, value),
                None => command.env_remove(key),
            };
        }
        command
    }

    fn add_namespace(&mut self, name: &str) -> Result<(), String> {
        ip(&format!("netns add {}", self.namespace(name)))?;
        self.names.push(name.to_owned());
        Ok(())
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = ip(&format!("netns delete {}", self.namespace(name))) {
                eprintln!("{error}");
            }
        }
    }
}

/// A process that is killed when it is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        if self.0.kill().is_ok() {
            self.0.wait().expect("a child of ours");
        }
    }
}

fn ip(arguments: &str) -> Result<(), String> {
    let ended = Command::new("ip")
        .args(arguments.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("ip: {error}"))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    Err(format!("ip {arguments}: {}", said.trim()))
}

fn must(done: Result<(), String>) {
    if let Err(error) = done {
        panic!("{error}");
    }
}

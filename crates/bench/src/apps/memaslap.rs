//! memaslap, the load that the paper used, as a second opinion on our own.
//!
//! The paper's way: one call that only SETs, then one with ETC's mix. A call reads what it has
//! set itself, never what an earlier one did (seen: not one miss, and as many new items as SETs),
//! so the second pages much less than ETC over all items does.
//! Paper: \[infiniswap17\] section 7.2.2. Debian names the program memcaslap.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;

use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::child::{Killed, confine, detach};
use crate::swap_rig::interrupt::Interrupt;

pub(super) struct Memaslap {
    sizes: Sizes,
    server: Option<Killed>,
}

impl Memaslap {
    pub(super) fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: sizes.clone(),
            server: None,
        }
    }

    fn call(&self, name: &str, set_share: f64, operations: u64) -> anyhow::Result<f64> {
        let config = self.sizes.dir.join(name);
        let get_share = 1.0 - set_share;
        let text = format!(
            "key\n16 16 1\nvalue\n16 512 0.9\n513 4096 0.1\ncmd\n0 {set_share}\n1 {get_share}\n"
        );
        std::fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let mut command = Command::new("memcaslap");
        command
            .args(["-s", &format!("127.0.0.1:{PORT}"), "-T", "1", "-c", "4"])
            .args(["-w", "100k", "-x", &operations.to_string(), "-F"])
            .arg(&config)
            .stdin(Stdio::null());
        detach(&mut command);
        let output = command.output().context("run memcaslap")?;
        let said = String::from_utf8_lossy(&output.stdout);
        match tps(&said) {
            Some(rate) if output.status.success() => Ok(rate),
            _ => bail!("memcaslap: {} {said}", output.status),
        }
    }
}

impl Program for Memaslap {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let mut command = Command::new("memcached");
        command
            .args(["-u", "root", "-l", "127.0.0.1", "-p", PORT])
            .args(["-m", &((self.sizes.bytes >> 20) * 4).to_string()])
            .stdin(Stdio::null());
        confine(&mut command, group)?;
        let child = command.spawn().context("start memcached")?;
        let server = self.server.insert(Killed::new(child, "memcached"));
        super::wait_until(interrupt, "memcached listens", || {
            if let Some(status) = server.child().try_wait()? {
                bail!("memcached ended at once: {status}");
            }
            Ok(std::net::TcpStream::connect(format!("127.0.0.1:{PORT}")).is_ok())
        })?;
        // An item takes about 560 bytes.
        self.call("memaslap-set", 1.0, self.sizes.bytes / 560)
            .map(drop)
    }

    fn measure(&mut self, _interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let operations = (self.sizes.seconds * 25_000.0) as u64;
        self.call("memaslap-etc", 0.05, operations)
            .map(Outcome::Rate)
    }

    fn end(&mut self) {
        self.server = None;
    }
}

/// Operations per second, of the last line: `Run time: 5.8s Ops: 300000 TPS: 51885 Net_rate: ...`.
fn tps(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.starts_with("Run time:"))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "TPS:")?;
    words.next()?.parse().ok()
}

/// Of our own memcached, on loopback, since memaslap speaks to no unix socket; arbitrary.
const PORT: &str = "21311";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_in_what_memaslap_says() {
        let said = "cmd_get: 285000\ncmd_set: 15000\nget_misses: 0\nread_bytes: 135718954\n\
                    object_bytes: 7209936\n\n\
                    Run time: 5.8s Ops: 300000 TPS: 51885 Net_rate: 24.6M/s\n";
        assert_eq!(tps(said), Some(51885.0));
        assert_eq!(tps("Connection refused\n"), None);
    }
}

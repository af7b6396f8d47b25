//! PostgreSQL under pgbench: short transactions that each read and write a random account.
//!
//! Its data folder is on tmpfs, whose pages are swapped out as its shared buffers are: so all
//! paging goes to the swap area under test, and no other disk takes part.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use cenote_block::swap::cgroup::MemoryCgroup;
use hdrhistogram::Histogram;

use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::Folder;
use crate::swap_rig::child::{Killed, confine, detach};
use crate::swap_rig::interrupt::Interrupt;

pub(super) struct Postgres {
    sizes: Sizes,
    programs: PathBuf,
    user: (u32, u32),
    /// Dropped in this order: the server writes to the folder.
    server: Option<Server>,
    folder: Option<Folder>,
}

impl Postgres {
    /// # Errors
    /// When PostgreSQL or its user is not on this machine.
    pub(super) fn new(sizes: &Sizes) -> anyhow::Result<Self> {
        Ok(Self {
            sizes: sizes.clone(),
            programs: programs()
                .context("PostgreSQL is not installed: apt-get install postgresql")?,
            user: user().context("there is no user postgres")?,
            server: None,
            folder: None,
        })
    }

    fn dir(&self) -> PathBuf {
        PathBuf::from(format!("/dev/shm/cenote-bench-pg-{}", std::process::id()))
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command
            .uid(self.user.0)
            .gid(self.user.1)
            .current_dir("/")
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        command
    }

    fn pgbench(&self, args: &[&str]) -> anyhow::Result<String> {
        let mut command = self.command("pgbench");
        command
            .arg("--host")
            .arg(self.dir())
            .args(["--username=postgres"])
            .args(args)
            .arg("postgres");
        detach(&mut command);
        run(command, "pgbench")
    }

    /// Four clients for `seconds`; their rate and times.
    fn transact(&self, seconds: f64) -> anyhow::Result<Outcome> {
        let log = self.dir().join("log");
        let said = self.pgbench(&[
            "--no-vacuum",
            // Without the few rows that every transaction of the default would wait for.
            "--builtin=simple-update",
            "--client=4",
            "--jobs=2",
            &format!("--random-seed={}", self.sizes.seed),
            &format!("--time={}", seconds.ceil().max(1.0) as u64),
            "--log",
            &format!("--log-prefix={}", log.display()),
        ])?;
        let rate = tps(&said).with_context(|| format!("pgbench named no rate: {said}"))?;
        let mut times: Histogram<u64> = Histogram::new_with_bounds(1, 60_000_000, 3)?;
        for entry in std::fs::read_dir(self.dir()).context("list pgbench's logs")? {
            let path = entry.context("list pgbench's logs")?.path();
            if !path
                .display()
                .to_string()
                .starts_with(&log.display().to_string())
            {
                continue;
            }
            let text = std::fs::read_to_string(&path).context("read a log of pgbench")?;
            for time in latencies_us(&text) {
                times.saturating_record(time);
            }
            std::fs::remove_file(&path).context("remove a log of pgbench")?;
        }
        Ok(Outcome::Served {
            rate,
            p50_us: times.value_at_quantile(0.5) as f64,
            p99_us: times.value_at_quantile(0.99) as f64,
        })
    }
}

impl Program for Postgres {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let dir = self.dir();
        self.folder = Some(Folder::make(dir.clone())?);
        std::os::unix::fs::chown(&dir, Some(self.user.0), Some(self.user.1))
            .context("give the data folder to postgres")?;
        let data = dir.join("data");
        let mut command = self.command("initdb");
        command
            .args([
                "--auth=trust",
                "--no-sync",
                "--username=postgres",
                "--pgdata",
            ])
            .arg(&data);
        confine(&mut command, group)?;
        run(command, "initdb")?;
        // Buffers of a quarter, tables of half, and the log of writes.
        let mib = self.sizes.bytes >> 20;
        let mut command = self.command("postgres");
        command.arg("-D").arg(&data).arg("-k").arg(&dir);
        for setting in [
            format!("shared_buffers={}MB", mib / 4),
            "listen_addresses=".to_owned(),
            "huge_pages=off".to_owned(),
            "fsync=off".to_owned(),
            "full_page_writes=off".to_owned(),
            "wal_level=minimal".to_owned(),
            "max_wal_senders=0".to_owned(),
            "min_wal_size=32MB".to_owned(),
            "max_wal_size=32MB".to_owned(),
            "autovacuum=off".to_owned(),
        ] {
            command.arg("-c").arg(setting);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        confine(&mut command, group)?;
        let child = command.spawn().context("start postgres")?;
        let server = self.server.insert(Server(Killed::new(child, "postgres")));
        // The socket is there before the server takes connections.
        super::wait_until(interrupt, "postgres takes connections", || {
            if let Some(status) = server.0.child().try_wait()? {
                bail!("postgres ended at once: {status}");
            }
            is_ready(&self.programs, &dir)
        })?;
        // A unit of scale is about 15 MiB of tables and indices.
        let scale = (mib / 2 / 15).max(1);
        self.pgbench(&["--initialize", "--quiet", &format!("--scale={scale}")])
            .map(drop)?;
        // So long that the log of writes has its full size.
        self.transact(2.0 * self.sizes.seconds).map(drop)
    }

    fn warm_up(&mut self, _interrupt: &Interrupt) -> anyhow::Result<()> {
        self.transact(self.sizes.seconds / 2.0).map(drop)
    }

    fn measure(&mut self, _interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        self.transact(self.sizes.seconds)
    }

    fn end(&mut self) {
        self.server = None;
        self.folder = None;
    }
}

/// The postmaster; its backends and shared memory end with it only if it is asked to.
struct Server(Killed);

impl Drop for Server {
    fn drop(&mut self) {
        let Ok(None) = self.0.child().try_wait() else {
            return;
        };
        let Ok(pid) = libc::pid_t::try_from(self.0.pid()) else {
            return;
        };
        // SAFETY: our child, not waited for yet; no memory. SIGINT: a fast shutdown.
        unsafe { libc::kill(pid, libc::SIGINT) };
        let patience = std::time::Instant::now() + END_TIMEOUT;
        while let Ok(None) = self.0.child().try_wait() {
            if std::time::Instant::now() > patience {
                eprintln!("postgres does not shut down; it is killed");
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn is_ready(programs: &Path, dir: &Path) -> anyhow::Result<bool> {
    let output = Command::new(programs.join("pg_isready"))
        .args(["--quiet", "--host"])
        .arg(dir)
        .output()
        .context("run pg_isready")?;
    Ok(output.status.success())
}

fn run(mut command: Command, name: &str) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("run {name}"))?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The folder of the newest version that is installed, as Debian places it.
fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let newest = versions
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .max()?;
    let dir = PathBuf::from(format!("/usr/lib/postgresql/{newest}/bin"));
    dir.join("pgbench").exists().then_some(dir)
}

/// User and group of `postgres`: it refuses to run as root.
fn user() -> Option<(u32, u32)> {
    user_in(&std::fs::read_to_string("/etc/passwd").ok()?, "postgres")
}

fn user_in(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd
        .lines()
        .find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// As in `tps = 1234.567890 (without initial connection time)`.
fn tps(said: &str) -> Option<f64> {
    let rest = said.lines().find_map(|line| line.strip_prefix("tps = "))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The third column of a transaction's line: its time in microseconds.
fn latencies_us(log: &str) -> impl Iterator<Item = u64> {
    log.lines()
        .filter_map(|line| line.split(' ').nth(2)?.parse().ok())
}

/// How long a shutdown may take, its pages to be brought back included; arbitrary.
const END_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_the_times_of_pgbench_are_read() {
        // pgbench 15.
        let said = "pgbench (15.14 (Debian 15.14-0+deb12u1))\ntransaction type: <builtin: TPC-B \
                    (sort of)>\nscaling factor: 10\nquery mode: simple\nnumber of clients: 4\n\
                    number of threads: 2\nmaximum number of tries: 1\nduration: 3 s\nnumber of \
                    transactions actually processed: 6482\nnumber of failed transactions: 0 \
                    (0.000%)\nlatency average = 1.849 ms\ninitial connection time = 6.541 ms\n\
                    tps = 2163.303812 (without initial connection time)\n";
        assert_eq!(tps(said), Some(2_163.303_812));
        let log = "0 199 2241 0 1175850568 995598\n0 200 1892 0 1175850568 998079\n";
        assert_eq!(latencies_us(log).collect::<Vec<_>>(), [2241, 1892]);
    }

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "postgresx:x:1:2::/:/bin/sh\npostgres:x:101:104:PG:/var/lib:/bin/bash\n";
        assert_eq!(user_in(passwd, "postgres"), Some((101, 104)));
        assert_eq!(user_in(passwd, "redis"), None);
    }
}

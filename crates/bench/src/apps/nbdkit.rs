//! nbdkit's memory plugin in the slot of our swap device: shown as a FUSE file by libnbd's
//! nbdfuse, with a loop device over that, as our own server shows a volume.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use cenote_block::swap::{LoopDevice, area as format};

use super::slot::Cpu;
use crate::cluster::process_cpu_ns;
use crate::nbd::Nbdkit;
use crate::swap_rig::area::Area;
use crate::swap_rig::child::{Killed, detach};

/// The chain. Dropped from the loop device down.
pub(super) struct NbdkitLoop {
    device: LoopDevice,
    _mount: Mount,
    nbdfuse: Killed,
    nbdkit: Nbdkit,
}

impl NbdkitLoop {
    /// Starts it with every byte written once, and a swap header on it.
    pub(super) fn start(dir: &Path, size_bytes: u64) -> anyhow::Result<Self> {
        let nbdkit = Nbdkit::start(size_bytes)?;
        let folder = dir.join("nbdfuse");
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let path = folder.join("disk");
        let mut command = Command::new("nbdfuse");
        command.arg(&path).arg(nbdkit.uri()).stdin(Stdio::null());
        detach(&mut command);
        let child = command
            .spawn()
            .context("run nbdfuse (Debian package libnbd-bin)")?;
        let mut nbdfuse = Killed::new(child, "nbdfuse");
        let mount = Mount { folder };
        let patience = std::time::Instant::now() + START_LIMIT;
        while !path.exists() {
            if let Some(status) = nbdfuse.child().try_wait()? {
                bail!("nbdfuse ended at once: {status}");
            }
            if std::time::Instant::now() > patience {
                bail!("nbdfuse shows no file");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .context("open the file of nbdfuse")?;
        fill(&file, size_bytes)?;
        let label = format!("cenote-bench-{}", std::process::id());
        let device = LoopDevice::attach(&file, format::PAGE_BYTES as u32, &label)
            .context("put a loop device over the file of nbdfuse")?;
        device
            .allow_merging()
            .context("allow merged requests, as our own device does")?;
        Ok(Self {
            device,
            _mount: mount,
            nbdfuse,
            nbdkit,
        })
    }

    pub(super) fn on(&self) -> anyhow::Result<Area> {
        Area::on(self.device.path())
    }

    pub(super) fn name(&self) -> &str {
        self.nbdkit.name()
    }

    pub(super) fn cpu(&self) -> Cpu {
        Cpu {
            remote_ns: process_cpu_ns(self.nbdkit.pid()),
            local_ns: process_cpu_ns(self.nbdfuse.pid()),
        }
    }
}

/// Writes every byte, with a swap header in the first page.
fn fill(file: &File, size_bytes: u64) -> anyhow::Result<()> {
    let mut block = vec![0x5a; FILL_BYTES];
    for offset in (0..size_bytes).step_by(FILL_BYTES) {
        let len = FILL_BYTES.min((size_bytes - offset) as usize);
        file.write_all_at(&block[..len], offset)
            .context("fill the memory of nbdkit")?;
    }
    block[..format::PAGE_BYTES].copy_from_slice(&format::header(size_bytes, [7; 16]));
    file.write_all_at(&block[..format::PAGE_BYTES], 0)
        .and_then(|()| file.sync_all())
        .context("write a swap header to nbdkit")
}

/// The mount of nbdfuse, detached when dropped; it ends when the loop device has let go.
struct Mount {
    folder: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Ok(name) = std::ffi::CString::new(self.folder.as_os_str().as_encoded_bytes()) {
            // SAFETY: `name` is a live C string. Fails harmlessly where nothing is mounted.
            unsafe { libc::umount2(name.as_ptr(), libc::MNT_DETACH) };
        }
    }
}

const FILL_BYTES: usize = 1 << 20;
const START_LIMIT: Duration = Duration::from_secs(10);

//! Locks on files: one process owns a thing until it ends, however it ends.
//!
//! A process that was killed holds its locks until the kernel has taken its memory back, which
//! lasts the longer the more it had. Who wants the lock meanwhile waits for that end: nobody has to
//! sleep between `kill -9` and the command that starts the next owner.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::folder::Folder;
use crate::process;

/// Takes an exclusive lock; `None` when somebody else holds it and goes on. Who only looks
/// ([`is_locked`]) does not count. Whoever holds it may remove the file: that gives the lock back for
/// good, and whoever waits takes that of the file which is there then.
///
/// # Errors
/// The file cannot be opened.
pub fn try_lock(folder: &Folder, name: &str) -> Result<Option<File>> {
    loop {
        let file = folder.open_file(name)?;
        if !try_lock_file(&file, &folder.join(name))? {
            return Ok(None);
        }
        if folder.is_at(&file, name)? {
            return Ok(Some(file));
        }
    }
}

/// Whether it is locked then; it is not when somebody else has it locked and goes on.
fn try_lock_file(file: &File, path: &Path) -> Result<bool> {
    let deadline = Instant::now() + END_LIMIT;
    let mut unseen = 0;
    loop {
        if taken(file.try_lock(), path)? {
            return Ok(true);
        }
        // A shared lock keeps company with those of lookers, and not with an owner's.
        if taken(file.try_lock_shared(), path)? {
            file.unlock()
                .with_context(|| format!("unlock {}", path.display()))?;
        } else if goes_on(file, &mut unseen)? || Instant::now() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(STEP);
    }
}

/// Whether somebody holds the exclusive lock and goes on.
///
/// # Errors
/// The file cannot be opened.
pub fn is_locked(folder: &Folder, name: &str) -> Result<bool> {
    let (file, path) = (folder.open_file(name)?, folder.join(name));
    let mut unseen = 0;
    while !taken(file.try_lock_shared(), &path)? {
        if goes_on(&file, &mut unseen)? {
            return Ok(true);
        }
        if unseen == 0 {
            return Ok(false);
        }
        std::thread::sleep(STEP);
    }
    Ok(false)
}

/// Whether the holder of a lock that was just refused goes on. `unseen` counts the looks in a row
/// that found no holder: it may have let go in between, or the list may have skipped it, so only
/// [`UNSEEN_LIMIT`] of them say that the holder cannot be seen from here, as of another container.
fn goes_on(file: &File, unseen: &mut u32) -> Result<bool> {
    let inode = file.metadata().context("look at a lock")?.ino();
    // Where it cannot be read nobody knows more than the lock itself says.
    let locks = all_locks().unwrap_or_default();
    Ok(match holder(&locks, inode) {
        Some(pid) => {
            *unseen = 0;
            !process::is_ending(pid)
        }
        None => {
            *unseen += 1;
            *unseen >= UNSEEN_LIMIT
        }
    })
}

/// /proc/locks in as few reads as the kernel allows, which is one for what fits in a page. It goes on
/// at a position, not at a lock: one that was freed between two reads lets the second skip another.
fn all_locks() -> io::Result<String> {
    let mut file = File::open("/proc/locks")?;
    let mut text = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        match file.read(&mut part)? {
            0 => return Ok(String::from_utf8_lossy(&text).into_owned()),
            read => text.extend_from_slice(&part[..read]),
        }
    }
}

/// The process that holds the exclusive flock(2) lock on an inode, as proc(5) shows it. The device
/// is not compared, as some file systems show two: a stranger's lock costs a wait at most.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ("FLOCK", "ADVISORY", "WRITE") = (fields.next()?, fields.next()?, fields.next()?)
        else {
            return None;
        };
        let pid = fields.next()?.parse().ok()?;
        let (_, found) = fields.next()?.rsplit_once(':')?;
        (found.parse() == Ok(inode)).then_some(pid)
    })
}

fn taken(tried: Result<(), TryLockError>, path: &Path) -> Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e).with_context(|| format!("lock {}", path.display())),
    }
}

/// Between two tries.
const STEP: Duration = Duration::from_millis(1);
/// So many looks in a row do not find a holder that is there to be seen.
const UNSEEN_LIMIT: u32 = 20;
/// How long a process may take to end once it was killed: the kernel frees its memory first.
const END_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Holds the lock and 512 MiB, which the kernel takes back before it lets go of the lock.
    const HOLDER: &str = "
import fcntl, sys, time
file = open(sys.argv[1], 'w')
fcntl.flock(file, fcntl.LOCK_EX)
memory = bytearray(b'x') * (512 << 20)
print('held', flush=True)
time.sleep(600)
";

    fn python(program: &str, path: &Path) -> Child {
        let mut child = Command::new("python3")
            .args(["-c", program])
            .arg(path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        child
    }

    /// Takes and frees locks of its own without a pause, so that the kernel's list changes all the
    /// while it is read.
    const CHURN: &str = "
import fcntl, sys
files = [open(sys.argv[1] + str(i), 'w') for i in range(6)]
print('held', flush=True)
while True:
    for how in fcntl.LOCK_EX, fcntl.LOCK_UN:
        for file in files:
            fcntl.flock(file, how)
";

    #[test]
    fn a_lock_is_refused_while_its_holder_goes_on_and_had_at_once_after_a_kill() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        let path = directory.path().join("lock");
        let mut churn = python(CHURN, &directory.path().join("other"));
        let mut holder = python(HOLDER, &path);
        assert!(is_locked(&folder, "lock").unwrap());
        assert!(try_lock(&folder, "lock").unwrap().is_none());

        holder.kill().unwrap();

        // It is not waited for, as by somebody in a shell.
        assert!(!is_locked(&folder, "lock").unwrap());
        assert!(try_lock(&folder, "lock").unwrap().is_some());
        for child in [&mut holder, &mut churn] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn the_holder_of_a_lock_is_found_among_all_of_the_machine() {
        let locks = "1: POSIX  ADVISORY  WRITE 10 fd:00:77 0 EOF
2: FLOCK  ADVISORY  READ 11 fd:00:77 0 EOF
3: FLOCK  ADVISORY  WRITE 12 fd:00:78 0 EOF
3: -> FLOCK  ADVISORY  WRITE 13 fd:00:77 0 EOF
4: FLOCK  ADVISORY  WRITE 14 fd:00:77 0 EOF
5: nonsense";
        assert_eq!(holder(locks, 77), Some(14));
        assert_eq!(holder(locks, 78), Some(12));
        assert_eq!(holder(locks, 79), None);
    }
}

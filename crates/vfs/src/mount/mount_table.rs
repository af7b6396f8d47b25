//! Mounts of this program's as the kernel lists them: whether what serves one is there, and taking
//! away one whose server has ended, which may have got a successor at the same place meanwhile.

use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::point::{self, SOURCE};

/// As `mount` shows the type: of mounts of root's the kernel is told no more than `fuse`.
const KINDS: [&[u8]; 2] = [b"fuse", b"fuse.cenote"];

/// A mount that was listed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mounted {
    /// The kernel's number of it, unique while it is there.
    id: u64,
    /// Of what is shown there, as major and minor.
    device: Vec<u8>,
    /// What of it is shown there.
    root: Vec<u8>,
    path: PathBuf,
    kind: Vec<u8>,
    source: Vec<u8>,
}

impl Mounted {
    /// This program's mounts in this process's namespace; of each place the uppermost.
    ///
    /// # Errors
    /// The kernel does not list them.
    pub fn ours() -> io::Result<Vec<Self>> {
        Ok(Self::ours_in(&fs::read("/proc/self/mountinfo")?))
    }

    /// [`Mounted::ours`] of such a list.
    #[must_use]
    pub fn ours_in(mountinfo: &[u8]) -> Vec<Self> {
        let all = Self::all_in(mountinfo);
        let is_uppermost = |at: usize| all[at + 1..].iter().all(|later| later.path != all[at].path);
        let ours = all.iter().enumerate();
        let ours = ours.filter(|(at, mounted)| mounted.is_ours() && is_uppermost(*at));
        ours.map(|(_, mounted)| mounted.clone()).collect()
    }

    /// All that are listed, a later one over an earlier one of the same place.
    pub(super) fn all() -> Vec<Self> {
        Self::all_in(&fs::read("/proc/self/mountinfo").unwrap_or_default())
    }

    fn all_in(mountinfo: &[u8]) -> Vec<Self> {
        let lines = mountinfo.split(|byte| *byte == b'\n');
        let parsed = lines.filter_map(|line| {
            let fields: Vec<_> = line.split(|byte| *byte == b' ').collect();
            let separator = fields.iter().position(|field| *field == b"-")?;
            Some(Self {
                id: std::str::from_utf8(fields[0]).ok()?.parse().ok()?,
                device: fields.get(2)?.to_vec(),
                root: unescaped(fields.get(3)?),
                path: OsString::from_vec(unescaped(fields.get(4)?)).into(),
                kind: fields.get(separator + 1)?.to_vec(),
                source: unescaped(fields.get(separator + 2)?),
            })
        });
        parsed.collect()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// This mount in a later list, wherever it is then; else a view of all of it, which somebody else made.
    pub(super) fn among<'a>(&self, all: &'a [Self]) -> Option<&'a Self> {
        // The kernel gives the numbers of a device and of a mount again: to others' file systems, too.
        let is_view = |mounted: &&Self| {
            mounted.device == self.device
                && mounted.source == self.source
                && mounted.root == b"/"
                && mounted.is_ours()
        };
        let same = all.iter().find(|m| m.id == self.id && is_view(m));
        same.or_else(|| all.iter().find(is_view))
    }

    pub(super) fn is_ours(&self) -> bool {
        KINDS.contains(&&*self.kind) && self.source.starts_with(SOURCE.as_bytes())
    }

    /// Takes it away if it is still there and what served it has ended.
    ///
    /// # Errors
    /// Something else is at its place now, it answers, or this user may not.
    pub fn take_away_if_dead(&self) -> io::Result<()> {
        let held = Held::open(&self.path)?;
        if !Self::all().contains(self) || held.id()? != self.id {
            return Err(io::Error::other("something else is mounted there now"));
        }
        held.take_away_if_dead(Held::look)
    }
}

/// A mount that a handle names, whatever is mounted over it meanwhile.
struct Held {
    root: File,
    path: PathBuf,
}

impl Held {
    /// Of what is uppermost at `path`, which asks no server.
    fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true);
        let root = options
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(path)?;
        let path = path.to_owned();
        Ok(Self { root, path })
    }

    fn id(&self) -> io::Result<u64> {
        let known = fs::read_to_string(format!("/proc/self/fdinfo/{}", self.root.as_raw_fd()))?;
        let id = known.lines().find_map(|line| line.strip_prefix("mnt_id:"));
        let id = id.and_then(|id| id.trim().parse().ok());
        id.ok_or_else(|| io::Error::other("the kernel does not say what is mounted there"))
    }

    fn look(&self) -> io::Result<()> {
        ask_server(self.root.as_raw_fd(), Path::new(""), libc::AT_EMPTY_PATH)
    }

    fn take_away_if_dead(&self, look: impl FnOnce(&Self) -> io::Result<()>) -> io::Result<()> {
        match look(self) {
            Err(error) if is_dead(&error) => {}
            Err(error) => return Err(error),
            Ok(()) => return Err(io::Error::other("it answers again")),
        }
        // By the handle: a server that starts at this moment keeps its mount.
        let exactly = PathBuf::from(format!("/proc/self/fd/{}", self.root.as_raw_fd()));
        match point::umount2(&exactly, libc::MNT_DETACH) {
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
                point::detach_as_user(&self.path, error)
            }
            done => done,
        }
    }
}

/// Whether what serves `path` is there. The server is asked: the kernel would answer from its cache long
/// after the server's end.
///
/// # Errors
/// [`is_dead`] tells the end of the server from others.
pub fn look(path: &Path) -> io::Result<()> {
    ask_server(libc::AT_FDCWD, path, 0)
}

fn ask_server(dir: libc::c_int, path: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = flags | libc::AT_STATX_FORCE_SYNC | libc::AT_NO_AUTOMOUNT;
    let mut found = std::mem::MaybeUninit::<libc::statx>::uninit();
    // SAFETY: `path` is a live C string, and `found` has room for what is written to it.
    let done = unsafe {
        libc::statx(
            dir,
            path.as_ptr(),
            flags,
            libc::STATX_BASIC_STATS,
            found.as_mut_ptr(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether it says that what serves a mount has ended.
#[must_use]
pub fn is_dead(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOTCONN | libc::ECONNABORTED)
    )
}

/// A path of mountinfo, where odd bytes are three octal digits after a backslash.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let octal = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                path.push(byte);
                rest = &after[3..];
            }
            None => {
                path.push(*first);
                rest = after;
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mountinfo_are_read_as_they_are() {
        assert_eq!(unescaped(b"/a\\040b\\134c"), b"/a b\\c");
        assert_eq!(unescaped(b"/a\\"), b"/a\\");
        assert_eq!(unescaped(b"/a\\9"), b"/a\\9");
    }

    #[test]
    fn mounts_of_ours_are_found_among_all() {
        let mountinfo = b"\
22 1 254:0 / / rw - ext4 /dev/root rw
23 22 0:39 / /mnt/\xff rw - ext4 /dev/vdb rw
30 22 0:40 / /mnt/a\\040b rw,nosuid - fuse.cenote cenote:v0 rw,user_id=0
31 22 0:41 / /mnt/other rw - fuse.sshfs host: rw
32 22 0:42 / /mnt/foreign rw - fuse.cenote other rw
37 22 0:47 / /mnt/remote rw - nfs cenote:/v0 rw
38 22 0:48 / /mnt/root rw - fuse cenote:v0 rw
33 22 0:43 / /mnt/hidden rw - fuse.cenote cenote:v1 rw
34 22 0:44 / /mnt/hidden rw - fuse.sshfs host: rw
35 22 0:45 / /mnt/twice rw - fuse.cenote cenote:v2 rw
36 22 0:46 / /mnt/twice rw - fuse.cenote cenote:v2 rw
nonsense";
        let ours = Mounted::ours_in(mountinfo);
        let shown: Vec<_> = ours
            .iter()
            .map(|mounted| (mounted.id, mounted.path()))
            .collect();
        let expected = [(30, "/mnt/a b"), (38, "/mnt/root"), (36, "/mnt/twice")];
        assert_eq!(shown, expected.map(|(id, path)| (id, Path::new(path))));
    }

    #[test]
    fn a_mount_is_found_where_it_is_now_and_no_other_that_has_its_numbers() {
        let all = |lines: &str| Mounted::all_in(lines.as_bytes());
        let known = &all("30 22 0:40 / /mnt/a rw - fuse.cenote cenote:v0 rw")[0];
        let view = "29 22 0:40 / /mnt/view rw - fuse.cenote cenote:v0 rw";
        let part = "28 22 0:40 /part /mnt/part rw - fuse.cenote cenote:v0 rw";
        let moved = "30 22 0:40 / /mnt/renamed/a rw - fuse.cenote cenote:v0 rw";
        let others = "30 22 0:40 / /mnt/a rw - ext4 /dev/vdb rw\n\
                      30 22 0:40 / /mnt/a rw - fuse.sshfs host: rw\n\
                      30 22 0:40 / /mnt/a rw - fuse.cenote cenote:v1 rw";
        for (listed, path) in [
            (format!("{part}\n{view}\n{moved}"), Some("/mnt/renamed/a")),
            (format!("{part}\n{view}\n{others}"), Some("/mnt/view")),
            (format!("{part}\n{others}"), None),
        ] {
            let all = all(&listed);
            let found = known.among(&all).map(Mounted::path);
            assert_eq!(found, path.map(Path::new), "{listed}");
        }
    }

    #[test]
    fn what_is_not_what_was_listed_stays() {
        let listed = Mounted::ours_in(b"1 1 0:1 / /proc rw - fuse.cenote cenote:v0 rw");
        let left = listed[0].take_away_if_dead().expect_err("something else");
        assert!(left.to_string().contains("something else"), "{left}");
        let proc = Held::open(Path::new("/proc")).expect("a handle");
        let ids = Mounted::all().into_iter();
        let ids: Vec<_> = ids
            .filter(|mounted| mounted.path == Path::new("/proc"))
            .map(|mounted| mounted.id)
            .collect();
        assert_eq!(ids.last(), Some(&proc.id().expect("its number")));
    }

    #[test]
    fn what_answers_again_stays() {
        // No mount, so that nothing goes whatever happens.
        let folder = tempfile::tempdir().expect("a folder");
        let held = Held::open(folder.path()).expect("a handle");
        let left = held.take_away_if_dead(|_| Ok(())).expect_err("it answers");
        assert!(left.to_string().contains("answers again"), "{left}");
        assert!(held.look().is_ok());
        let dead = |_: &Held| Err(io::Error::from_raw_os_error(libc::ENOTCONN));
        let tried = held.take_away_if_dead(dead).expect_err("no mount");
        assert!(tried.raw_os_error().is_some(), "{tried}");
    }
}

//! Modules on a host's disk: what was put there is there again after a restart.
//!
//! A file for each, named for its number, written whole before anybody is told that it is kept. What a file
//! says is checked as what comes over a connection. Format: docs/formats/modules.md. Decision 103.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use cenote_proc::service::{Label, Order};
use cenote_proc::{Library, MODULE_MAX, ProcedureId, checksum};

/// First bytes of a file; the last of them is the format's version.
const MAGIC: &[u8; 8] = b"CENPROC1";
/// Magic, checksum of what follows, length of the label.
const HEADER_BYTES: usize = 8 + 8 + 4;
/// Longest label: its name and all the caches that it may name.
const LABEL_BYTES_MAX: usize = 8 << 10;
const SUFFIX: &str = ".module";

/// A folder of modules.
#[derive(Clone, Debug)]
pub(super) struct Depot {
    folder: PathBuf,
}

impl Depot {
    /// The folder must be there.
    pub fn new(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// Writes a module; it is on the disk when this returns.
    ///
    /// # Errors
    /// The disk refuses; nothing is kept.
    pub fn keep(&self, label: &Label, module: &[u8]) -> io::Result<()> {
        let mut begin = Vec::new();
        Order::Begin(label.clone()).write(&mut begin);
        // Without the byte that says for which service a call is.
        let begin = &begin[1..];
        let len = u32::try_from(begin.len()).expect("a few KiB");
        let body = [&len.to_le_bytes()[..], begin, module].concat();
        let sum = checksum(&body).to_le_bytes();
        let bytes = [&MAGIC[..], &sum, &body].concat();
        let kept = cenote_durable::replace(&self.path(label.id), &bytes, 0o600);
        // The file may be there, though its folder is not synced: the next process would load it.
        kept.inspect_err(|_| drop(self.forget(label.id)))
    }

    /// Removes a module. One that is not there is no error. After a power cut it may be there again.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn forget(&self, id: ProcedureId) -> io::Result<()> {
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Whether a module was removed; false where the disk does not say.
    pub fn is_removed(&self, id: ProcedureId) -> bool {
        matches!(self.path(id).try_exists(), Ok(false))
    }

    /// Holds places in a library for all modules, which are to be [loaded](Self::load). One that is
    /// damaged, or that this program does not take, is told of and left where it is.
    pub fn expect_all(&self, library: &Library) -> Vec<ProcedureId> {
        let files = match fs::read_dir(&self.folder) {
            Ok(files) => files,
            Err(error) => {
                let folder = self.folder.display();
                tracing::error!(%folder, %error, "modules cannot be read");
                return Vec::new();
            }
        };
        let paths = files.filter_map(|file| file.ok().map(|file| file.path()));
        let is_module = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(SUFFIX));
        let mut paths: Vec<PathBuf> = paths.filter(is_module).collect();
        paths.sort();
        let expect = |path: PathBuf| {
            let expected = self.read(&path).and_then(|(label, module)| {
                let expected = library.registry().expect(&label, checksum(&module));
                expected
                    .map(|()| label.id)
                    .map_err(|error| error.to_string())
            });
            let path = path.display();
            expected
                .inspect_err(|error| tracing::error!(%path, error, "no procedure"))
                .ok()
        };
        paths.into_iter().filter_map(expect).collect()
    }

    /// Compiles a module for the place that is held for it. One that was removed meanwhile stays away.
    pub fn load(&self, library: &Library, id: ProcedureId) {
        let path = self.path(id);
        let compiled = self.read(&path).and_then(|(label, module)| {
            let compiled = library.compile(&module);
            compiled
                .map(|compiled| (label, compiled))
                .map_err(|error| error.to_string())
        });
        match compiled {
            Ok((Label { name, version, .. }, compiled)) => {
                if library.arrive(id, compiled) {
                    tracing::info!(name, version, "a procedure from the disk");
                }
            }
            // Its number stays used. Who removed it may have taken its place away, or be about to.
            Err(_) if self.is_removed(id) => {
                library.registry().remove(id);
            }
            Err(error) => {
                let path = path.display();
                tracing::error!(%path, error, "no procedure");
                library.registry().give_up(id);
            }
        }
    }

    fn path(&self, id: ProcedureId) -> PathBuf {
        self.folder.join(format!("{}{SUFFIX}", id.0))
    }

    fn read(&self, path: &Path) -> Result<(Label, Vec<u8>), String> {
        let most = HEADER_BYTES + LABEL_BYTES_MAX + MODULE_MAX as usize;
        if !fs::symlink_metadata(path).is_ok_and(|of| of.is_file()) {
            return Err("no ordinary file".to_owned());
        }
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| {
            let mut file = file.take(most as u64 + 1);
            file.read_to_end(&mut bytes)
        });
        read.map_err(|error| error.to_string())?;
        if bytes.len() > most {
            return Err(format!("more than {most} bytes"));
        }
        let (label, module) = parse(&bytes)?;
        match path == self.path(label.id) {
            true => Ok((label, module.to_vec())),
            false => Err(format!("it is procedure {}", label.id.0)),
        }
    }
}

/// What a file says.
fn parse(bytes: &[u8]) -> Result<(Label, &[u8]), String> {
    let text = str::to_owned;
    let rest = bytes.strip_prefix(MAGIC);
    let rest = rest.ok_or_else(|| text("no module, or of another version"))?;
    let (sum, body) = rest.split_first_chunk().ok_or_else(|| text("too short"))?;
    if checksum(body) != u64::from_le_bytes(*sum) {
        return Err(text("its checksum is wrong"));
    }
    let (len, rest) = body.split_first_chunk().ok_or_else(|| text("too short"))?;
    let len = u32::from_le_bytes(*len) as usize;
    if len > LABEL_BYTES_MAX {
        return Err(format!("a label has at most {LABEL_BYTES_MAX} bytes"));
    }
    let label = rest.get(..len).ok_or_else(|| text("too short"))?;
    let module = &rest[len..];
    if !(1..=MODULE_MAX as usize).contains(&module.len()) {
        return Err(format!("a module has 1 to {MODULE_MAX} bytes"));
    }
    match Order::read(label) {
        Ok(Order::Begin(label)) if label.len_bytes as usize == module.len() => Ok((label, module)),
        Ok(_) => Err(text("it says another length")),
        Err(error) => Err(error.0.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use cenote_proc::{Access, CacheId, Grants};
    use proptest::prelude::*;

    use super::*;

    fn label(id: u32, len_bytes: u32) -> Label {
        Label {
            id: ProcedureId(id),
            name: "sum".to_owned(),
            version: 3,
            grants: Grants::Caches(vec![(CacheId(7), Access::ReadWrite)]),
            len_bytes,
        }
    }

    #[test]
    fn what_is_kept_is_read_back_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let depot = Depot::new(folder.path().to_owned());
        depot.keep(&label(1000, 4), b"wasm").unwrap();
        let path = folder.path().join("1000.module");
        let read = depot.read(&path).unwrap();
        assert_eq!(read, (label(1000, 4), b"wasm".to_vec()));
        let bytes = fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(parse(&wrong).is_err(), "byte {at}");
            assert!(parse(&bytes[..at]).is_err(), "cut at {at}");
        }
        let other = folder.path().join("1001.module");
        fs::rename(&path, &other).unwrap();
        assert!(depot.read(&other).unwrap_err().contains("procedure 1000"));
        depot.forget(ProcedureId(1001)).unwrap();
        depot.forget(ProcedureId(1001)).unwrap();
        assert!(!other.exists());
    }

    #[test]
    fn a_module_without_bytes_or_that_is_too_long_or_with_too_long_a_label_is_refused() {
        let file = |begin: &[u8], module: &[u8]| {
            let len = u32::try_from(begin.len()).unwrap().to_le_bytes();
            let body = [&len[..], begin, module].concat();
            [&MAGIC[..], &checksum(&body).to_le_bytes(), &body].concat()
        };
        let begin = |len_bytes| {
            let mut begin = Vec::new();
            Order::Begin(label(1, len_bytes)).write(&mut begin);
            begin.split_off(1)
        };
        for (len, is_taken) in [
            (0, false),
            (1, true),
            (MODULE_MAX, true),
            (MODULE_MAX + 1, false),
        ] {
            let bytes = file(&begin(len), &vec![7; len as usize]);
            assert_eq!(parse(&bytes).is_ok(), is_taken, "{len} bytes");
        }
        let too_long = parse(&file(&[0; LABEL_BYTES_MAX + 1], b"wasm")).unwrap_err();
        assert!(too_long.contains("label"), "{too_long}");
    }

    #[test]
    fn the_longest_label_fits() {
        let mut longest = label(1, 1);
        longest.name = "n".repeat(cenote_proc::service::NAME_MAX);
        let cache = (CacheId(u128::MAX), Access::Read);
        longest.grants = Grants::Caches(vec![cache; cenote_proc::service::GRANTS_MAX]);
        let mut bytes = Vec::new();
        Order::Begin(longest).write(&mut bytes);
        assert!(bytes.len() <= LABEL_BYTES_MAX, "{}", bytes.len());
    }

    #[test]
    fn modules_are_listed_at_once_and_those_that_are_removed_or_wrong_do_not_come() {
        let (library, folder) = (Library::new(), tempfile::tempdir().unwrap());
        let depot = Depot::new(folder.path().to_owned());
        // The smallest module that is one, and no procedure.
        let wrong = b"\0asm\x01\0\0\0";
        for id in 1000..1002 {
            let mut label = label(id, 8);
            label.version = id;
            depot.keep(&label, wrong).unwrap();
        }
        let expected = depot.expect_all(&library);
        assert_eq!(expected, [ProcedureId(1000), ProcedureId(1001)]);
        let listed = || {
            library
                .registry()
                .list()
                .into_iter()
                .filter(|row| !row.native)
        };
        let sums = listed().map(|row| (row.id.0, row.checksum));
        assert_eq!(
            sums.collect::<Vec<_>>(),
            [1000, 1001].map(|id| (id, checksum(wrong)))
        );
        library.registry().remove(ProcedureId(1001));
        for id in expected {
            depot.load(&library, id);
        }
        assert_eq!(listed().count(), 0);
        // Mended, it may come again; what somebody took away may not.
        let was_used = |id| library.registry().was_used(ProcedureId(id));
        assert!(!was_used(1000) && was_used(1001));
    }

    #[test]
    fn a_module_that_does_not_come_leaves_no_place_where_requests_wait() {
        let (library, folder) = (Library::new(), tempfile::tempdir().unwrap());
        let depot = Depot::new(folder.path().to_owned());
        for id in 1000..1002 {
            let mut label = label(id, 8);
            label.version = id;
            depot.keep(&label, b"\0asm\x01\0\0\0").unwrap();
        }
        let expected = depot.expect_all(&library);
        assert_eq!(expected.len(), 2);
        // Somebody removed the one; of the other nobody can say, as it is a link to itself.
        for id in 1000..1002 {
            depot.forget(ProcedureId(id)).unwrap();
        }
        let path = depot.path(ProcedureId(1001));
        std::os::unix::fs::symlink(&path, &path).unwrap();
        for id in expected {
            depot.load(&library, id);
        }
        let rows = library.registry().list();
        assert_eq!(rows.iter().filter(|row| !row.native).count(), 0);
    }

    proptest! {
        #[test]
        fn whatever_the_bytes_it_is_a_module_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let sum = checksum(&bytes).to_le_bytes();
            let signed = [&MAGIC[..], &sum, &bytes].concat();
            for bytes in [&bytes, &signed] {
                if let Ok((label, module)) = parse(bytes) {
                    prop_assert_eq!(label.len_bytes as usize, module.len());
                }
            }
        }
    }
}

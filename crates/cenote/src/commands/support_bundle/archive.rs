//! The archive: a tar file, gzipped, for its owner alone. What goes in has been through the redactor.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, Header};

use super::secrets::Redactor;

/// An archive that is being written. It is gone if it is not finished.
pub struct Archive {
    out: Option<Builder<GzEncoder<BufWriter<File>>>>,
    path: PathBuf,
    root: String,
    made_at_s: u64,
}

impl Archive {
    /// A new file; everything in it is below a folder `root`.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn create(path: &Path, root: &str, made_at_s: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let out = GzEncoder::new(BufWriter::new(file), Compression::default());
        Ok(Self {
            out: Some(Builder::new(out)),
            path: path.to_owned(),
            root: root.to_owned(),
            made_at_s,
        })
    }

    /// Adds a file without its secrets; so many bytes of it are left.
    ///
    /// # Errors
    /// The disk's.
    pub fn add(&mut self, name: &str, text: &str, redactor: &Redactor) -> io::Result<usize> {
        let text = redactor.clean(text);
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(self.made_at_s);
        let path = format!("{}/{}", self.root, redactor.clean(name));
        if let Some(out) = &mut self.out {
            out.append_data(&mut header, path, text.as_bytes())?;
        }
        Ok(text.len())
    }

    /// Ends it; so many bytes it has.
    ///
    /// # Errors
    /// The disk's.
    pub fn finish(mut self) -> io::Result<u64> {
        let Some(out) = self.out.take() else {
            return Ok(0);
        };
        let finished = out.into_inner().and_then(|gzip| {
            let mut buffer = gzip.finish()?;
            buffer.flush()?;
            let file = buffer.get_ref();
            file.sync_all()?;
            Ok(file.metadata()?.len())
        });
        if finished.is_err() {
            self.remove();
        }
        finished
    }

    fn remove(&self) {
        // There is an error to tell already.
        drop(std::fs::remove_file(&self.path));
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if self.out.take().is_some() {
            self.remove();
        }
    }
}

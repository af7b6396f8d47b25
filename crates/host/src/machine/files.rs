//! Files of the system: those that are read again and again are kept open.
//!
//! A process that is out of descriptors can open none, and a host that cannot see its machine's memory
//! could not make room. What is read once is read for good.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

/// Those that were read so far, by path.
#[derive(Debug, Default)]
pub(crate) struct Files(BTreeMap<String, File>);

impl Files {
    /// The file as it is now, empty where it cannot be read.
    pub(crate) fn read(&mut self, path: &str) -> String {
        if let Some(text) = self.0.get(path).and_then(whole) {
            return text;
        }
        // A control group's files end with it, and its next one has others.
        self.0.remove(path);
        let Ok(file) = File::open(path) else {
            return String::new();
        };
        let text = whole(&file).unwrap_or_default();
        self.0.insert(path.to_owned(), file);
        text
    }
}

/// A file of the system, empty where it cannot be read.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// All of a file, from its beginning: the system makes its text again for whoever reads that.
fn whole(file: &File) -> Option<String> {
    let mut bytes = vec![0; 4096];
    let mut len = 0;
    loop {
        if len == bytes.len() {
            bytes.resize(2 * len, 0);
        }
        match file.read_at(&mut bytes[len..], len as u64).ok()? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_read_is_read_again_without_being_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meminfo").display().to_string();
        let mut files = Files::default();
        assert_eq!(files.read(&path), "");
        let long = "x".repeat(9000);
        std::fs::write(&path, &long).unwrap();
        assert_eq!(files.read(&path), long);
        std::fs::write(&path, "short").unwrap();
        assert_eq!(files.read(&path), "short");
        // Its name is gone: nobody could open it.
        std::fs::remove_file(&path).unwrap();
        assert_eq!(files.read(&path), "short");
    }

    #[test]
    fn the_kernel_makes_the_text_again() {
        let mut files = Files::default();
        let first = files.read("/proc/uptime");
        // It counts hundredths of a second.
        while files.read("/proc/uptime") == first {
            std::thread::yield_now();
        }
        assert!(!first.is_empty());
    }
}

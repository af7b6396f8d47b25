//! What a volume is to be.

use std::path::Path;

use crate::{Error, Volume};

/// How a volume is opened, as `std::fs::OpenOptions` says it of a file.
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) size_bytes: u64,
    pub(crate) scheme: Option<String>,
    pub(crate) name: String,
    pub(crate) threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            size_bytes: 1 << 30,
            scheme: None,
            name: format!("process-{}", std::process::id()),
            threads: 4,
        }
    }
}

impl Options {
    /// Bytes of the volume, whole pages of 4096; 1 GiB unless said otherwise. It takes hosts' memory where
    /// it is written to.
    #[must_use]
    pub fn size_bytes(mut self, size_bytes: u64) -> Self {
        self.size_bytes = size_bytes;
        self
    }

    /// `plain`, `mirror:N` or `rs:K+R`: of a page in K splits and R parities any R hosts may be lost.
    /// Unless said otherwise the widest of `rs:8+2`, `rs:4+2`, `rs:2+1`, `mirror:2` and `plain` for which
    /// the cluster has failure domains.
    #[must_use]
    pub fn scheme(mut self, scheme: &str) -> Self {
        self.scheme = Some(scheme.to_owned());
        self
    }

    /// What hosts call it in `cenote status`: the process's number, unless said otherwise.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// So many threads read and write at a time, and more wait for one another; 4 unless said otherwise.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Opens a new, empty volume on the hosts of a cluster file.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open(&self, cluster_file: impl AsRef<Path>) -> Result<Volume, Error> {
        Volume::open_with(cluster_file.as_ref(), self)
    }
}

/// The usual scheme for a cluster of so many failure domains.
pub fn usual_scheme(domains: usize) -> &'static str {
    match domains {
        10.. => "rs:8+2",
        6..10 => "rs:4+2",
        3..6 => "rs:2+1",
        2 => "mirror:2",
        _ => "plain",
    }
}

#[cfg(test)]
mod tests {
    use cenote_volume::Scheme;

    use super::*;

    #[test]
    fn the_usual_scheme_fits_into_the_cluster() {
        for domains in 1..=20 {
            let scheme: Scheme = usual_scheme(domains).parse().expect("a scheme");
            assert!(scheme.k() + scheme.r() <= domains, "{domains}");
            assert_eq!(scheme.r() == 0, domains == 1, "{domains}");
        }
    }
}

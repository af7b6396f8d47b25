//! Why etcd gives no answer, or none that is of use.

use std::path::PathBuf;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EtcdError {
    /// No endpoint answered; worth another try later.
    #[error("etcd does not answer at {endpoints}: {last}")]
    Unreachable {
        /// All that were tried.
        endpoints: String,
        /// What the last one came to.
        last: String,
        /// It is there, and had not answered when its time was over, or says that it cannot yet.
        is_silent: bool,
    },
    /// etcd answered that it will not do this.
    #[error("etcd refuses: {message} (code {code})")]
    Refused {
        /// Number of gRPC.
        code: i64,
        /// etcd's words.
        message: String,
    },
    /// The answer is not one of etcd's.
    #[error("not an answer of etcd: {0}")]
    Malformed(String),
    /// What answered speaks HTTP and not etcd's language: a proxy, or etcd before it knows what is asked.
    #[error("HTTP status {status} in place of an answer of etcd: {said}")]
    Http {
        /// Number and name.
        status: String,
        /// The beginning of what it says.
        said: String,
    },
    /// No endpoint, or one that is no URL.
    #[error("{0:?} is no address of etcd; write http://HOST:PORT, several with commas")]
    Endpoint(String),
    /// One of https, and nobody who vouches for its certificate.
    #[error("{0} speaks TLS: name the authority of its certificate, --etcd-ca FILE")]
    NoAuthority(String),
    /// The authority, the certificate or its key.
    #[error("{}: {why}", path.display())]
    Certificate {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl EtcdError {
    /// Whether the same call may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Whether nobody has refused, and one may answer who is asked again at once.
    #[must_use]
    pub fn is_silence(&self) -> bool {
        matches!(
            self,
            Self::Unreachable {
                is_silent: true,
                ..
            }
        )
    }
}

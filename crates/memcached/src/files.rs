//! Files that say whom a server trusts, read at its start and again when that is asked for.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_kv::protocol::authentication::Credentials;

use super::tls::{self, TlsError, Verify};
use super::{Handle, Settings};

/// Files for TLS.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The certificate, and those that it follows from.
    pub chain: PathBuf,
    /// Its key; none: in the same file.
    pub key: Option<PathBuf>,
    /// Whose certificates of clients are taken.
    pub authority: Option<PathBuf>,
    /// Whether clients have to show one.
    pub verify: Verify,
}

/// A file of users, by what its lines may say.
#[derive(Clone, Debug)]
pub enum UsersFile {
    /// USER:PASSWORD.
    Plain(PathBuf),
    /// The same, and more behind another colon: what `MEMCACHED_SASL_PWDB` names.
    Sasl(PathBuf),
}

/// Both kinds.
#[derive(Clone, Debug, Default)]
pub struct Files {
    /// Lines of USER:PASSWORD.
    pub users: Option<UsersFile>,
    /// Certificates.
    pub tls: Option<TlsFiles>,
}

/// Why a file is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The one with users.
    #[error("Could not open authfile [{}] for reading, error {why}", path.display())]
    Users {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// One for TLS.
    #[error("Error loading TLS: {0}")]
    Tls(#[from] TlsError),
}

impl TlsFiles {
    fn load(&self) -> Result<rustls::ServerConfig, FileError> {
        let key = self.key.as_deref().unwrap_or(&self.chain);
        let authority = self.authority.as_deref();
        Ok(tls::configuration(
            &self.chain,
            key,
            authority,
            self.verify,
        )?)
    }
}

fn users(file: &UsersFile) -> Result<Credentials, FileError> {
    let (path, parse): (_, fn(&[u8]) -> _) = match file {
        UsersFile::Plain(path) => (path, Credentials::parse),
        UsersFile::Sasl(path) => (path, Credentials::parse_for_sasl),
    };
    let refused = |why: String| FileError::Users {
        path: path.clone(),
        why,
    };
    let content = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
    parse(&content).map_err(|error| refused(error.to_string()))
}

impl Files {
    /// All of their names.
    pub fn paths_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let users = self.users.as_mut().map(|file| match file {
            UsersFile::Plain(path) | UsersFile::Sasl(path) => path,
        });
        let tls = self.tls.as_mut().map(|files| {
            let more = [files.key.as_mut(), files.authority.as_mut()];
            more.into_iter().flatten().chain([&mut files.chain])
        });
        users.into_iter().chain(tls.into_iter().flatten())
    }

    /// Reads them for a server that is to start.
    ///
    /// # Errors
    /// [`FileError`].
    pub fn load(&self, settings: &mut Settings) -> Result<(), FileError> {
        if let Some(file) = &self.users {
            settings.credentials = Some(Arc::new(users(file)?));
        }
        if let Some(files) = &self.tls {
            settings.tls = Some(Arc::new(files.load()?));
        }
        Ok(())
    }

    /// Reads them again, for clients that come from now on. What cannot be read stays as it was.
    #[must_use]
    pub fn reload(&self, server: &Handle) -> Vec<FileError> {
        let mut errors = Vec::new();
        if let Some(file) = &self.users {
            match users(file) {
                Ok(users) => server.set_credentials(users),
                Err(error) => errors.push(error),
            }
        }
        if let Some(files) = &self.tls {
            match files.load() {
                Ok(tls) => server.set_tls(tls),
                Err(error) => errors.push(error),
            }
        }
        errors
    }
}

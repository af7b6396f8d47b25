//! TLS to etcd: who vouches for its certificate, and our own where it asks for one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

use crate::store::EtcdError;

/// Files in PEM.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tls {
    /// Certificates of the authorities that may have signed etcd's.
    pub authority: PathBuf,
    /// Our certificate, with what leads to its authority, and its key.
    pub own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    pub(super) fn load(&self) -> Result<TlsConfig, EtcdError> {
        let own = self.own.as_ref().map(|(chain, key)| {
            let bytes = read(key)?;
            let key =
                PrivateKey::from_pem(&bytes).map_err(|error| faulty(key, error.to_string()))?;
            Ok::<_, EtcdError>(ClientCert::new_with_certs(&certificates(chain)?, key))
        });
        let authority = certificates(&self.authority)?;
        Ok(TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .root_certs(RootCerts::new_with_certs(&authority))
            .client_cert(own.transpose()?)
            .build())
    }
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, EtcdError> {
    let bytes = read(path)?;
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        let item = item.map_err(|error| faulty(path, error.to_string()))?;
        // A file may have the key, too.
        if let ureq::tls::PemItem::Certificate(certificate) = item {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(faulty(path, "no certificate is in it".to_owned()));
    }
    Ok(found)
}

fn read(path: &Path) -> Result<Vec<u8>, EtcdError> {
    std::fs::read(path).map_err(|error| faulty(path, error.to_string()))
}

fn faulty(path: &Path, why: String) -> EtcdError {
    let path = path.to_owned();
    EtcdError::Certificate { path, why }
}

//! Certificates and keys, as memcached's options name them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer,
};
use rustls::server::WebPkiClientVerifier;

/// Whose certificate a client has to show, as `ssl_verify_mode`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verify {
    /// 0: none.
    #[default]
    None,
    /// 1: one that the authority has signed, if any.
    Optional,
    /// 2 and 3: one that the authority has signed.
    Required,
}

/// What is wrong with the files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or has not what it should have.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Clients are to be verified, and there is no authority.
    #[error(
        "clients are to show certificates, and no authority's certificate is given to check them"
    )]
    NoAuthority,
    /// The key is not the certificate's, or there is another fault in them.
    #[error("certificate and key: {0}")]
    Faulty(#[from] rustls::Error),
    /// The authority's certificates are of no use.
    #[error("the authority's certificate, for clients: {0}")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

/// Reads a certificate chain, its key and, if clients are to be verified, their authority.
///
/// # Errors
/// What [`TlsError`] says.
pub fn configuration(
    chain: &Path,
    key: &Path,
    authority: Option<&Path>,
    verify: Verify,
) -> Result<rustls::ServerConfig, TlsError> {
    let chain = certificates(chain)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let key = private_key(key, &provider)?;
    let builder = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?;
    let builder = if verify == Verify::None {
        builder.with_no_client_auth()
    } else {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(authority.ok_or(TlsError::NoAuthority)?)? {
            roots.add(certificate)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = match verify {
            Verify::Optional => verifier.allow_unauthenticated(),
            Verify::Required | Verify::None => verifier,
        };
        builder.with_client_cert_verifier(verifier.build()?)
    };
    Ok(builder.with_single_cert(chain, key)?)
}

/// A key as its bytes have it, whatever its label says: OpenSSL looks at the bytes, so that files whose
/// PKCS#8 key is labelled `RSA PRIVATE KEY` work with memcached.
fn private_key(path: &Path, provider: &CryptoProvider) -> Result<PrivateKeyDer<'static>, TlsError> {
    let labelled = PrivateKeyDer::from_pem_file(path).map_err(|error| faulty(path, error))?;
    let der = labelled.secret_der().to_vec();
    let others = [
        PrivatePkcs8KeyDer::from(der.clone()).into(),
        PrivatePkcs1KeyDer::from(der.clone()).into(),
        PrivateSec1KeyDer::from(der).into(),
    ];
    let is_taken = |key: &PrivateKeyDer<'static>| {
        let loaded = provider.key_provider.load_private_key(key.clone_key());
        loaded.is_ok()
    };
    // One that is none is refused in the words of its label.
    let taken = std::iter::once(labelled.clone_key()).chain(others);
    Ok(taken.into_iter().find(is_taken).unwrap_or(labelled))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| faulty(path, error))?;
    let certificates: Result<Vec<_>, _> = certificates.collect();
    certificates.map_err(|error| faulty(path, error))
}

fn faulty(path: &Path, error: rustls::pki_types::pem::Error) -> TlsError {
    let source = match error {
        rustls::pki_types::pem::Error::Io(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    };
    TlsError::File {
        path: path.to_owned(),
        source,
    }
}

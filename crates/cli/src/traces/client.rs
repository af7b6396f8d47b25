//! The way to the collector: OpenTelemetry's exporter over the client of HTTP that this program has
//! anyway. It blocks, which only the exporter's own thread notices.

use std::path::Path;
use std::sync::Arc;

use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, TlsProvider};

use super::endpoint::Settings;
use super::losses::Losses;
use crate::failure::Failure;

/// Sends requests, each within the time that there is for one.
#[derive(Debug)]
pub(super) struct Client {
    agent: ureq::Agent,
    losses: Arc<Losses>,
}

/// Most bytes of an answer that are read. A collector's says how many spans it refused, and why.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Where distributions keep whom the machine trusts.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Client {
    /// # Errors
    /// TLS is wanted, and there is nothing to check a certificate with.
    pub fn new(settings: &Settings, losses: Arc<Losses>) -> Result<Self, Failure> {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(settings.timeout))
            .http_status_as_error(false)
            // A collector does not send elsewhere; a page to log in at does.
            .max_redirects(0)
            .user_agent(concat!("cenote/", env!("CARGO_PKG_VERSION")));
        let config = match settings.url.starts_with("https:") {
            true => config.tls_config(tls(settings.authorities.as_deref())?),
            false => config,
        };
        Ok(Self {
            agent: config.build().into(),
            losses,
        })
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, &body[..]);
        let (parts, mut body) = self.agent.run(request)?.into_parts();
        let answer = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        Ok(Response::from_parts(parts, answer.into()))
    }
}

#[async_trait::async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.send(request).map_err(|error| {
            // The exporter's own error says no more than that there was one.
            self.losses.fail(error.to_string());
            error.into()
        })
    }
}

fn tls(authorities: Option<&Path>) -> Result<TlsConfig, Failure> {
    let known = TRUSTED.map(Path::new);
    let found = authorities.or_else(|| known.into_iter().find(|path| path.exists()));
    let remedy = "set OTEL_EXPORTER_OTLP_CERTIFICATE to a PEM file of the collector's CA";
    let path = found.ok_or_else(|| {
        let what = "the collector uses TLS, but this machine has no CA file";
        Failure::new(what, remedy)
    })?;
    let faulty = |why: String| Failure::new(format!("{}: {why}", path.display()), remedy);
    let bytes = std::fs::read(path).map_err(|error| faulty(error.to_string()))?;
    let mut trusted: Vec<Certificate<'static>> = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        if let PemItem::Certificate(one) = item.map_err(|error| faulty(error.to_string()))? {
            trusted.push(one);
        }
    }
    if trusted.is_empty() {
        return Err(faulty("it has no certificate".to_owned()));
    }
    Ok(TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(RootCerts::new_with_certs(&trusted))
        .build())
}

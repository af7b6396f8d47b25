//! HTTP of the dashboard: the page, what it shows as server-sent events, and orders.
//!
//! ```text
//! GET  /, /style.css, ...        the page, without anything of the cluster
//! GET  /events                   each part as an event, and again when it changes
//! GET  /history[/volumes/NAME]   the last hour
//! POST /orders                   one order of `actions`
//! ```
//!
//! One thread, on which hyper serves every connection, and a few that carry out orders. There are at
//! most [`CONNECTIONS_MAX`] connections, [`SOURCE_CONNECTIONS_MAX`] from one address, and above that
//! the oldest goes: a page that was dropped connects again.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::chain;
use http_body_util::channel::{Channel, Sender};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use super::access::{Access, Asked, Denied};
use super::actions::{Actions, Order};
use super::watcher::{Board, Watcher, now_ms};
use crate::connections::Connections;

/// Longest request head in bytes; browsers send about one thousand.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long a request's head may take to arrive, and how long a connection may be without one.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// How long a TLS handshake, and the body of an order, may take.
const TALK_LIMIT: Duration = Duration::from_secs(10);
/// Connections open at once: some ten pages, and strangers.
const CONNECTIONS_MAX: usize = 128;
/// Of them from one address.
const SOURCE_CONNECTIONS_MAX: usize = 32;
/// Longest order in bytes.
const ORDER_BYTES_MAX: usize = 4096;
/// Orders carried out at once, each on a thread of its own.
const ORDERS_MAX: usize = 4;
/// How often a page hears of us when nothing changes.
const TICK: Duration = Duration::from_secs(5);
/// What a wrong token costs whoever tries one.
const WRONG_TOKEN_PAUSE: Duration = Duration::from_millis(500);

/// Files of the page: where, what kind, and what is in them.
static PAGE: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/style.css", CSS, include_str!("page/style.css")),
    ("/main.js", SCRIPT, include_str!("page/main.js")),
    ("/parts.js", SCRIPT, include_str!("page/parts.js")),
    ("/draw.js", SCRIPT, include_str!("page/draw.js")),
    ("/talk.js", SCRIPT, include_str!("page/talk.js")),
    ("/icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
];
const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const JSON: &str = "application/json";

/// What goes with every answer. The page runs its own scripts alone and turns no text into markup.
const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
         require-trusted-types-for 'script'; trusted-types 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
];

type Body = BoxBody<Bytes, Infallible>;

/// What is served, and to whom.
pub struct Config {
    pub access: Access,
    pub tls: Option<Arc<rustls::ServerConfig>>,
    pub watcher: Arc<Watcher>,
    pub actions: Actions,
}

/// What all connections share.
struct Site {
    access: Access,
    watcher: Arc<Watcher>,
    actions: Actions,
    /// One for each order that may be carried out at once.
    turns: Arc<Semaphore>,
}

/// Serves until the process ends.
///
/// # Errors
/// A thread cannot be started.
pub fn serve(listener: TcpListener, config: Config) -> Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(ORDERS_MAX)
        .thread_name("dashboard-order")
        .build()
        .context("start the runtime of the dashboard")?;
    let tls = config.tls.map(TlsAcceptor::from);
    let site = Arc::new(Site {
        access: config.access,
        watcher: config.watcher,
        actions: config.actions,
        turns: Arc::new(Semaphore::new(ORDERS_MAX)),
    });
    std::thread::Builder::new()
        .name("dashboard".to_owned())
        .spawn(move || {
            let open = Connections::new(CONNECTIONS_MAX, SOURCE_CONNECTIONS_MAX);
            let converse = |stream, peer| converse(stream, peer, tls.clone(), Arc::clone(&site));
            let ended = runtime.block_on(open.accept(listener, "dashboard", converse, || {}));
            if let Err(error) = ended {
                tracing::error!(%error, "the dashboard is no longer served");
                std::process::exit(i32::from(cenote_cli::failure::FAILED));
            }
        })
        .context("start the thread of the dashboard")?;
    Ok(())
}

/// Serves one connection to its end.
async fn converse(stream: TcpStream, peer: SocketAddr, tls: Option<TlsAcceptor>, site: Arc<Site>) {
    let at = stream.local_addr().map(|address| address.ip()).ok();
    let service = service_fn(move |request| {
        let site = Arc::clone(&site);
        async move { Ok::<_, Infallible>(answer(request, at, peer.ip(), &site).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX);
    let ended = match tls {
        None => http.serve_connection(TokioIo::new(stream), service).await,
        Some(tls) => match tokio::time::timeout(TALK_LIMIT, tls.accept(stream)).await {
            Ok(Ok(stream)) => http.serve_connection(TokioIo::new(stream), service).await,
            Ok(Err(error)) => {
                return tracing::debug!(%error, %peer, "TLS handshake with a browser failed");
            }
            Err(_) => return tracing::debug!(%peer, "TLS handshake with a browser timed out"),
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "connection of the dashboard ended");
    }
}

async fn answer(
    request: Request<Incoming>,
    at: Option<IpAddr>,
    peer: IpAddr,
    site: &Arc<Site>,
) -> Response<Body> {
    let mut response = match route(request, at, peer, site).await {
        Ok(response) => response,
        Err(refused) => refused.response(),
    };
    for (name, value) in HEADERS {
        let value = HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// Why there is no answer.
enum Refused {
    Denied(Denied),
    /// Another status, with a reason for people.
    Status(StatusCode, String),
}

impl From<Denied> for Refused {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl Refused {
    fn response(self) -> Response<Body> {
        let (status, why) = match self {
            Self::Denied(denied) => {
                let status = match denied {
                    Denied::Host => StatusCode::MISDIRECTED_REQUEST,
                    Denied::NoToken | Denied::WrongToken => StatusCode::UNAUTHORIZED,
                    Denied::Site | Denied::ReadOnly => StatusCode::FORBIDDEN,
                };
                (status, denied.why().to_owned())
            }
            Self::Status(status, why) => (status, why),
        };
        let text = serde_json::json!({ "error": why }).to_string();
        let mut response = said(JSON, text);
        *response.status_mut() = status;
        if status == StatusCode::UNAUTHORIZED {
            let kind = HeaderValue::from_static("Bearer");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, kind);
        }
        response
    }
}

async fn route(
    request: Request<Incoming>,
    at: Option<IpAddr>,
    peer: IpAddr,
    site: &Arc<Site>,
) -> Result<Response<Body>, Refused> {
    let path = request.uri().path();
    let text = |name: HeaderName| request.headers().get(name).and_then(|it| it.to_str().ok());
    let asked = Asked {
        host: text(header::HOST),
        origin: text(header::ORIGIN),
        site: text(HeaderName::from_static("sec-fetch-site")),
        authorization: text(header::AUTHORIZATION),
        at,
    };
    let gets = matches!(*request.method(), Method::GET | Method::HEAD);
    let page = PAGE.iter().find(|(known, ..)| *known == path);
    if let (true, Some((_, kind, content))) = (gets, page) {
        site.access.check_page(&asked)?;
        return Ok(said(kind, *content));
    }
    let orders = path == "/orders";
    let checked = match orders {
        true => site.access.check_order(&asked),
        false => site.access.check_read(&asked),
    };
    if let Err(denied) = checked {
        if denied == Denied::WrongToken {
            tracing::warn!(%peer, "request with a wrong token");
            tokio::time::sleep(WRONG_TOKEN_PAUSE).await;
        }
        return Err(denied.into());
    }
    match (request.method(), path) {
        (&Method::POST, "/orders") => order(request, peer, site).await,
        (&Method::GET, "/events") => Ok(events(site.watcher.subscribe())),
        (&Method::GET, path) if path.starts_with("/history") => history(path, &site.watcher),
        _ => Err(Refused::Status(
            StatusCode::NOT_FOUND,
            "page not found".to_owned(),
        )),
    }
}

fn said(kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(content.into()).boxed());
    let kind = HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Names have no character that a path would have to escape.
fn history(path: &str, watcher: &Watcher) -> Result<Response<Body>, Refused> {
    let rest = path.strip_prefix("/history").unwrap_or_default();
    let hour = match rest.strip_prefix("/volumes/") {
        Some(name) => watcher.hour(Some(name)),
        None if rest.is_empty() => watcher.hour(None),
        None => None,
    };
    let text = hour.and_then(|hour| serde_json::to_string(&hour).ok());
    let none = || Refused::Status(StatusCode::NOT_FOUND, "no data".to_owned());
    text.map(|text| said(JSON, text)).ok_or_else(none)
}

/// A page from now on.
fn events(board: watch::Receiver<Board>) -> Response<Body> {
    let (sender, body) = Channel::new(1);
    tokio::spawn(tell(board, sender));
    let mut response = Response::new(body.boxed());
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Tells a page what changed until it goes. What changes while it takes the last is told once, as it
/// is then.
async fn tell(mut board: watch::Receiver<Board>, mut page: Sender<Bytes>) {
    let mut told = 0;
    loop {
        let mut text = Vec::new();
        {
            let board = board.borrow_and_update();
            let newer = board.parts.iter();
            for (name, (_, part)) in newer.filter(|(_, (revision, _))| *revision > told) {
                add_event(&mut text, name, part);
            }
            told = board.revision;
        }
        // Also how a page knows how old what it shows is.
        add_event(&mut text, "now", now_ms().to_string().as_bytes());
        if page.send_data(Bytes::from(text)).await.is_err() {
            return;
        }
        // Late, or changed: either way there is something to tell.
        if let Ok(Err(_)) = tokio::time::timeout(TICK, board.changed()).await {
            return;
        }
    }
}

/// JSON has no line breaks but those that are escaped.
fn add_event(text: &mut Vec<u8>, name: &str, data: &[u8]) {
    let mut head = String::new();
    write!(head, "event: {name}\ndata: ").expect("a string takes it");
    text.extend(head.as_bytes());
    text.extend(data);
    text.extend(b"\n\n");
}

async fn order(
    request: Request<Incoming>,
    peer: IpAddr,
    site: &Arc<Site>,
) -> Result<Response<Body>, Refused> {
    let bad = |why: String| Refused::Status(StatusCode::BAD_REQUEST, why);
    let body = Limited::new(request.into_body(), ORDER_BYTES_MAX).collect();
    let body = tokio::time::timeout(TALK_LIMIT, body)
        .await
        .map_err(|_| bad("the order did not come in time".to_owned()))?
        .map_err(|error| bad(format!("the order: {error}")))?;
    let order: Order = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| bad(format!("not an order: {error}")))?;
    let turn = Arc::clone(&site.turns).acquire_owned().await;
    let doing = Arc::clone(site);
    let done = tokio::task::spawn_blocking(move || {
        tracing::info!(%peer, ?order, "ordered");
        let done = doing.actions.carry_out(&order);
        // The connection may be gone by now: the turn ends with the work.
        drop(turn);
        match done {
            Ok(done) => {
                doing.watcher.note(format!("ordered from {peer}: {done}"));
                Ok(done)
            }
            Err(error) => Err(chain(&error)),
        }
    });
    match done.await {
        Ok(Ok(done)) => Ok(said(JSON, serde_json::json!({ "done": done }).to_string())),
        Ok(Err(why)) => Err(Refused::Status(StatusCode::CONFLICT, why)),
        Err(error) => {
            tracing::error!(%error, "carry out an order");
            let why = "the order was not carried out; the log says why".to_owned();
            Err(Refused::Status(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    }
}

//! The way out of an error that names none itself, found by its kind and never by its text.
//!
//! A [`Failure`](cenote_cli::failure::Failure) knows what its command can do about it. What comes from
//! further below, a folder or a key or the system, is the same for all commands: it is here.

use std::error::Error;
use std::io::ErrorKind;

use cenote_block::nbd::{Address, NbdError};
use cenote_fabric::{Error as FabricError, KeyError};
use cenote_kv_cluster::config::DocumentError;
use cenote_kv_cluster::node::NodeError;
use cenote_kv_cluster::store::EtcdError;

use crate::folder::FolderError;

/// What the reader can do, by the outermost cause of which that is known.
pub fn of(error: &anyhow::Error) -> Option<String> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<FolderError>() {
            return error.remedy();
        }
        if let Some(error) = cause.downcast_ref::<NbdError>() {
            return of_nbd(error).map(str::to_owned);
        }
        if is_silent_etcd(cause) {
            return Some(ETCD.to_owned());
        }
        match cause.downcast_ref::<FabricError>() {
            Some(FabricError::Key(error)) => Some(of_key(*error).to_owned()),
            Some(FabricError::AddressInUse { .. }) => Some(ANOTHER_PORT.to_owned()),
            _ => None,
        }
    })
}

/// Whether a cause is an etcd that does not answer, also where another error is transparent for it.
pub fn is_silent_etcd(cause: &(dyn Error + 'static)) -> bool {
    let document = cause.downcast_ref::<DocumentError>();
    let document = document.or_else(|| match cause.downcast_ref::<NodeError>() {
        Some(NodeError::Document(error)) => Some(error),
        _ => None,
    });
    let etcd = cause.downcast_ref::<EtcdError>();
    let etcd = etcd.or(match document {
        Some(DocumentError::Etcd(error)) => Some(error),
        _ => None,
    });
    matches!(etcd, Some(EtcdError::Unreachable { .. }))
}

const ETCD: &str = "start that etcd; cenote kv up --dir DIR restarts one that it started";

const ANOTHER_PORT: &str = "use another address; ss -ltnp shows what uses this one";

/// Of an NBD server that does not start.
fn of_nbd(error: &NbdError) -> Option<&'static str> {
    match error {
        NbdError::NotLoopback(_) => Some("use a loopback address, or add --allow-remote"),
        NbdError::Bind {
            address: Address::Unix(_),
            source,
        } if source.kind() == ErrorKind::AddrInUse => {
            Some("use another --socket; a server is running on this one")
        }
        NbdError::Bind { source, .. } => of_listening(source.kind()),
        NbdError::Passed { .. } => Some("pass a listening stream socket, or use --socket PATH"),
        _ => None,
    }
}

/// Of an address that cannot be listened on.
pub fn of_listening(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::AddrInUse => Some(ANOTHER_PORT),
        ErrorKind::AddrNotAvailable => {
            Some("use an address of this machine; ip address lists them")
        }
        ErrorKind::PermissionDenied => Some("use a port from 1024 on, or a folder of your own"),
        _ => None,
    }
}

/// Of a file with a cluster's key; it is named beside this.
fn of_key(error: KeyError) -> &'static str {
    match error {
        KeyError::Shared { .. } => {
            "chmod 600 it; if others may have read it, make a new one with cenote key new and \
             restart the cluster"
        }
        KeyError::Foreign { .. } => "run as its owner, or make your own copy with mode 600",
        KeyError::Malformed => {
            "copy the file from another machine of the cluster; for a new cluster, cenote key new"
        }
        _ => "cenote doctor checks what is missing",
    }
}

//! Requests that wait for the medium, and so for the persister.

use std::sync::Arc;

use cenote_fabric::ClientId;

use super::shard::Waiter;
use crate::landing::Area;
use crate::pool::Condition;
use crate::protocol::Request;

/// What the persister does for a request, since it waits for the medium.
#[derive(Debug)]
pub(super) struct Job {
    pub kind: JobKind,
    pub client: ClientId,
    pub area: Option<Arc<Area>>,
    pub waiter: Waiter,
    pub key: Vec<u8>,
    /// Versions from here on turned out not to be whole.
    pub below: u64,
}

#[derive(Debug)]
pub(super) enum JobKind {
    Locate,
    Space {
        condition: Condition,
        value_bytes: u32,
        checksum: u32,
    },
    Put {
        condition: Condition,
        is_durable: bool,
        value: Vec<u8>,
    },
    Delete {
        condition: Condition,
    },
}

/// Of a request that waits: a locate, or a change.
pub(super) fn job_of(
    request: Request<'_>,
    client: ClientId,
    area: Option<&Arc<Area>>,
    waiter: Waiter,
) -> Job {
    let (kind, key) = match request {
        Request::Space {
            condition,
            value_bytes,
            checksum,
            key,
        } => (
            JobKind::Space {
                condition,
                value_bytes,
                checksum,
            },
            key,
        ),
        Request::Put {
            condition,
            is_durable,
            key,
            value,
        } => (
            JobKind::Put {
                condition,
                is_durable,
                value: value.to_vec(),
            },
            key,
        ),
        Request::Delete { condition, key } => (JobKind::Delete { condition }, key),
        Request::Locate { key } => (JobKind::Locate, key),
        _ => unreachable!("requests that no job is made of"),
    };
    Job {
        kind,
        client,
        area: area.cloned(),
        waiter,
        key: key.to_vec(),
        below: u64::MAX,
    }
}

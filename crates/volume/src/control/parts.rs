//! What the control thread is made of.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender};

use cenote_fabric::ClientId;
use cenote_pool::placement::Placement;

use super::dialer::{Dialer, Link};
use crate::VolumeError;
use crate::command::Command;
use crate::config::HostConfig;
use crate::core::Core;
use crate::directory::HostIndex;
use crate::journal::Journal;

/// What the control thread is made of.
pub struct Parts {
    pub core: Arc<Core>,
    pub dialer: Arc<dyn Dialer>,
    pub client: ClientId,
    /// Where this process runs; 0: it does not say.
    pub machine: u128,
    pub name: String,
    pub volume: u128,
    pub slab_bytes: u64,
    pub placement: Placement,
    pub hosts: Vec<HostConfig>,
    /// Links made while the volume was opened, by host.
    pub links: Vec<(HostIndex, Link)>,
    pub commands: Receiver<Command>,
    /// Where these come from.
    pub orders: Sender<Command>,
    /// What survives the owner.
    pub journal: Option<Journal>,
    /// Told once what the journal names is taken over.
    pub opened: Option<SyncSender<Result<(), VolumeError>>>,
}

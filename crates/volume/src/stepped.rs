//! A volume without a thread: its caller decides when the control side runs, and in what time.
//!
//! For simulators. Control, directory and workers are those of a real volume.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use cenote_fabric::{ClientId, Time};

use crate::control::{Control, Dialer};
use crate::volume::Assembly;
use crate::{Volume, VolumeConfig, VolumeError, VolumeStatus, Worker};

/// A volume that its caller runs step by step.
pub struct Stepped {
    volume: Volume,
    control: Control,
}

impl Stepped {
    /// A volume of hosts that lend slabs of at least `slab_bytes`. It connects to them as `client`
    /// through `dialer`, in its first turns.
    ///
    /// # Errors
    /// As [`Volume::open`], but for what hosts answer.
    pub fn open(
        config: VolumeConfig,
        slab_bytes: u64,
        client: ClientId,
        dialer: Arc<dyn Dialer>,
        clock: fn() -> Time,
    ) -> Result<Self, VolumeError> {
        let links = Vec::new();
        let (volume, control) = Volume::assemble(
            config,
            Assembly {
                client,
                slab_bytes,
                links,
                dialer,
                clock,
            },
        )?;
        Ok(Self { volume, control })
    }

    /// Handles what has arrived and all else that is due; false once the volume is closed.
    pub fn turn(&mut self) -> bool {
        let connected = self.control.connected();
        self.control.turn(connected)
    }

    /// How long until it wants a turn even if nothing arrives.
    #[must_use]
    pub fn patience(&self) -> Duration {
        self.control.patience()
    }

    /// How every extent and host stands now.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        self.control.status()
    }

    /// Hosts that are connected.
    #[must_use]
    pub fn connected_count(&self) -> usize {
        self.control.connected().len()
    }

    /// A new worker. The dialer must have run what it is given when it returns.
    ///
    /// # Errors
    /// As [`Volume::worker`]; `Closed` as well when the dialer left something for later.
    pub fn worker(&mut self) -> Result<Worker, VolumeError> {
        let newcomer = self.volume.ask_for_worker()?;
        // The first takes the order, the second what was opened.
        for _ in 0..2 {
            self.turn();
            match newcomer.ready.try_recv() {
                Ok(answer) => return self.volume.make_worker(newcomer, answer),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
        }
        Err(VolumeError::Closed)
    }

    /// The volume, for all that needs no control thread to answer.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

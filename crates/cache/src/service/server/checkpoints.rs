//! The checkpoint of the cache: begun by a question, used by whoever manages the cache next.

use super::Server;
use crate::links::Caller;
use crate::manager::CheckpointError;
use crate::service::question::Checkpoint;

impl Server {
    /// Uses the checkpoint that an earlier manager left. One that is damaged is told and not used: the
    /// cache works without.
    pub(super) fn begin_with_checkpoint(&mut self, caller: Caller) -> cenote_fabric::Result<()> {
        let Some(path) = &self.checkpoint_path else {
            return Ok(());
        };
        self.manager.enable_checkpoints(caller)?;
        if path.exists() {
            match self.manager.use_checkpoint(path) {
                Ok(regions) => tracing::info!(regions, "lost regions come back from a checkpoint"),
                Err(error) => {
                    tracing::error!(%error, "the checkpoint is not used");
                    self.checkpoint = Some(Checkpoint::Failed(error.to_string()));
                }
            }
        }
        Ok(())
    }

    pub(super) fn begin_checkpoint(&mut self) -> Result<(), String> {
        let path = self.checkpoint_path.as_ref();
        let path = path.ok_or_else(|| CheckpointError::Off.to_string())?;
        let begun = self.manager.begin_checkpoint(path);
        begun.map_err(|error| error.to_string())?;
        self.checkpoint = Some(Checkpoint::Running);
        Ok(())
    }

    pub(super) fn note_checkpoint(&mut self) {
        if let Some(end) = self.manager.take_checkpoint() {
            self.checkpoint = Some(match end {
                Ok(made) => Checkpoint::Made {
                    regions: made.regions,
                    len_bytes: made.len_bytes,
                    longest_hold_ms: made.longest_hold_ms,
                },
                Err(error) => {
                    tracing::error!(%error, "no checkpoint was made");
                    Checkpoint::Failed(error.to_string())
                }
            });
        }
    }
}

//! What a caller has open.

use crate::result::{CenoteResult, Failure};

/// Something that is open. After a fork the threads behind it are the parent's: the child neither uses
/// it nor ends it.
pub struct Handle<T> {
    open: T,
    process: u32,
}

impl<T> Handle<T> {
    pub fn new(open: T) -> Self {
        Self {
            open,
            process: std::process::id(),
        }
    }

    /// What is open, if it is for this process. `None` stands for a null pointer.
    pub fn get(handle: Option<&Self>) -> Result<&T, Failure> {
        let Some(handle) = handle else {
            return Err(Failure::argument("the handle is null"));
        };
        if !handle.is_ours() {
            let said = "it was opened in the parent process";
            return Err(Failure(CenoteResult::Forked, said.to_owned()));
        }
        Ok(&handle.open)
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// Ends it.
    pub fn close(self) {
        if !self.is_ours() {
            std::mem::forget(self);
        }
    }
}

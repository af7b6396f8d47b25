//! One instance of a guest: its memory, its frame in it, and the calls into the cache.

use std::time::Duration;

use cenote_proc_sdk::{Fault, Memory as _, STATE_MAX, layout};
use rustix::time::ClockId;
use wasmtime::{
    Caller, Engine, InstancePre, Linker, Memory, Store, StoreLimits, StoreLimitsBuilder, TypedFunc,
    UpdateDeadline,
};

use super::{Limits, MODULE, ModuleError};
use crate::procedures::is_size;
use crate::{Outcome, Request, Table, Trap};

/// What an instance's store carries.
pub(super) struct Guest {
    memory: Option<Memory>,
    /// The cache's, while a step runs; empty otherwise.
    table: Table,
    limits: StoreLimits,
    /// The thread's processor time when the step was first looked at.
    since: Option<Duration>,
}

/// A guest that can step. One thread uses it, for one cache: what a guest keeps in its memory
/// between steps never reaches another cache.
pub struct Instance {
    store: Store<Guest>,
    memory: Memory,
    frame: usize,
    step: TypedFunc<(), u32>,
}

impl Instance {
    pub(super) fn new(
        pre: &InstancePre<Guest>,
        engine: &Engine,
        limits: Limits,
    ) -> Result<Self, ModuleError> {
        let start = |error: wasmtime::Error| ModuleError::Start(format!("{error:#}"));
        let store_limits = StoreLimitsBuilder::new()
            .memory_size(limits.memory_bytes)
            .table_elements(limits.table_entries)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let guest = Guest {
            memory: None,
            table: Table::default(),
            limits: store_limits,
            since: None,
        };
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.limits);
        let most = limits.step_time;
        store.epoch_deadline_callback(move |mut store| look_at(store.data_mut(), most));
        store.set_epoch_deadline(1);
        let instance = pre.instantiate(&mut store).map_err(start)?;
        let memory = instance
            .get_memory(&mut store, "memory")
            .ok_or(ModuleError::Export("memory"))?;
        let place = instance
            .get_typed_func::<(), u32>(&mut store, "frame")
            .map_err(start)?;
        let step = instance
            .get_typed_func::<(), u32>(&mut store, "step")
            .map_err(start)?;
        let frame = place.call(&mut store, ()).map_err(start)? as usize;
        let end = frame.checked_add(layout::BYTES);
        if end.is_none_or(|end| end > memory.data_size(&store)) {
            return Err(ModuleError::Export("frame"));
        }
        store.data_mut().memory = Some(memory);
        Ok(Self {
            store,
            memory,
            frame,
            step,
        })
    }

    /// Runs a step of `request` on the bytes of `table`; `data` are what was fetched from `addr`.
    ///
    /// After a trap the instance is to be dropped: nobody knows what it left half done.
    ///
    /// # Panics
    /// If the request's state or the data are longer than a frame's.
    pub fn step(
        &mut self,
        request: &mut Request,
        table: &mut Table,
        addr: u64,
        data: &[u8],
    ) -> Outcome {
        // Memory never shrinks, so the frame is where it was.
        let frame = &mut self.memory.data_mut(&mut self.store)[self.frame..][..layout::BYTES];
        let len = |bytes: &[u8]| u32::try_from(bytes.len()).expect("bounded").to_le_bytes();
        frame[layout::ADDR..][..8].copy_from_slice(&addr.to_le_bytes());
        frame[layout::STATE_LEN..][..4].copy_from_slice(&len(&request.state));
        frame[layout::DATA_LEN..][..4].copy_from_slice(&len(data));
        frame[layout::STATE..layout::DATA][..request.state.len()].copy_from_slice(&request.state);
        frame[layout::DATA..][..data.len()].copy_from_slice(data);

        self.store.set_epoch_deadline(1);
        self.store.data_mut().since = None;
        std::mem::swap(&mut self.store.data_mut().table, table);
        let verdict = self.step.call(&mut self.store, ());
        std::mem::swap(&mut self.store.data_mut().table, table);
        match verdict {
            Ok(verdict) => self.outcome(verdict, request),
            Err(error) => Outcome::Trap(trap(&error)),
        }
    }

    /// Reads the frame of a guest, which may have written anything there.
    fn outcome(&self, verdict: u32, request: &mut Request) -> Outcome {
        let frame = &self.memory.data(&self.store)[self.frame..][..layout::BYTES];
        let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("4 bytes"));
        let size = word(layout::SIZE);
        let addr = u64::from(word(layout::ADDR)) | u64::from(word(layout::ADDR + 4)) << 32;
        let outcome = match verdict {
            0 => Outcome::Done,
            1 if is_size(size) => Outcome::DataNeeded { addr, size },
            2 if is_size(size) => Outcome::Forward { addr, size },
            3 => Outcome::Again,
            4 => Outcome::Stop,
            5 => return Outcome::Trap(Trap::Failed(size)),
            _ => return Outcome::Trap(Trap::BadVerdict),
        };
        let len = word(layout::STATE_LEN) as usize;
        if len > STATE_MAX {
            return Outcome::Trap(Trap::BadVerdict);
        }
        request.state.clear();
        request
            .state
            .extend_from_slice(&frame[layout::STATE..][..len]);
        outcome
    }
}

/// An epoch went by while a step runs: it goes on, or had its share.
fn look_at(guest: &mut Guest, most: Duration) -> wasmtime::Result<UpdateDeadline> {
    let now = rustix::time::clock_gettime(ClockId::ThreadCPUTime);
    let now = Duration::new(now.tv_sec.unsigned_abs(), 0)
        + Duration::from_nanos(now.tv_nsec.unsigned_abs());
    let since = *guest.since.get_or_insert(now);
    if now.saturating_sub(since) < most {
        Ok(UpdateDeadline::Continue(1))
    } else {
        Err(wasmtime::Trap::Interrupt.into())
    }
}

fn trap(error: &wasmtime::Error) -> Trap {
    match error.downcast_ref::<wasmtime::Trap>() {
        Some(wasmtime::Trap::Interrupt) => Trap::TooLong,
        _ => Trap::Crashed,
    }
}

/// Offers the calls into the cache.
pub(super) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "load", load)?;
    linker.func_wrap(MODULE, "store", store)?;
    linker.func_wrap(MODULE, "here", here)?;
    Ok(())
}

fn load(mut caller: Caller<'_, Guest>, addr: u64, target: u32, len: u32) -> wasmtime::Result<u32> {
    let (bytes, guest) = own_memory(&mut caller)?;
    let range = target as usize..target as usize + len as usize;
    let bytes = bytes
        .get_mut(range)
        .ok_or(wasmtime::Trap::MemoryOutOfBounds)?;
    Ok(code(guest.table.load(addr, bytes)))
}

fn store(mut caller: Caller<'_, Guest>, addr: u64, source: u32, len: u32) -> wasmtime::Result<u32> {
    let (bytes, guest) = own_memory(&mut caller)?;
    let range = source as usize..source as usize + len as usize;
    let bytes = bytes.get(range).ok_or(wasmtime::Trap::MemoryOutOfBounds)?;
    Ok(code(guest.table.store(addr, bytes)))
}

fn here(mut caller: Caller<'_, Guest>, addr: u64, size: u64) -> u64 {
    caller.data_mut().table.here(addr, size)
}

/// The guest's memory. There is none while its start function runs, which has no business here.
fn own_memory<'a>(
    caller: &'a mut Caller<'_, Guest>,
) -> wasmtime::Result<(&'a mut [u8], &'a mut Guest)> {
    match caller.data().memory {
        Some(memory) => Ok(memory.data_and_store_mut(caller)),
        None => Err(wasmtime::Trap::UnreachableCodeReached.into()),
    }
}

fn code(result: Result<(), Fault>) -> u32 {
    match result {
        Ok(()) => 0,
        Err(Fault::Elsewhere) => 1,
        Err(Fault::Denied) => 2,
    }
}

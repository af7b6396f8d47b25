//! Volumes.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use cenote::AccessError;
use pyo3::exceptions::PyOverflowError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffer::{Landing, Source, check_runs, filled};
use crate::error::{or_raise, raise};
use crate::handle::Handle;
use crate::interpreter::detached;

/// A volume, opened by its cluster file.
#[pyclass(frozen, module = "cenote._cenote")]
pub struct Volume {
    handle: Handle<cenote::Volume>,
    size: u64,
    threads: usize,
}

/// Most threads: each has a connection to each host.
const THREADS_MAX: usize = 64;
/// Runs for each thread that helps with them: below that, starting it costs more than it saves.
const RUNS_EACH: usize = 8;

#[pymethods]
impl Volume {
    #[new]
    fn new(
        py: Python<'_>,
        cluster: PathBuf,
        size: u64,
        scheme: Option<String>,
        name: Option<String>,
        threads: usize,
    ) -> PyResult<Self> {
        if !(1..=THREADS_MAX).contains(&threads) {
            let said = format!("{threads} threads: 1 to {THREADS_MAX}");
            return Err(raise(py, "ConfigurationError", said));
        }
        let mut options = cenote::Volume::options().size_bytes(size).threads(threads);
        if let Some(scheme) = &scheme {
            options = options.scheme(scheme);
        }
        if let Some(name) = &name {
            options = options.name(name);
        }
        let volume = or_raise(py, detached(py, || options.open(&cluster)))?;
        Ok(Self {
            size: volume.size_bytes(),
            handle: Handle::new(volume),
            threads,
        })
    }

    #[getter]
    fn size(&self) -> u64 {
        self.size
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        // Before there is memory for what cannot be there.
        self.check(py, offset, length as u64)?;
        filled(py, length, move |bytes| volume.read_at(bytes, offset))
    }

    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        let landing = Landing::new(buffer)?;
        self.check(py, offset, landing.len() as u64)?;
        landing.fill(py, move |bytes| volume.read_at(bytes, offset))
    }

    fn read_runs(
        &self,
        py: Python<'_>,
        offsets: Vec<u64>,
        run: usize,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        let landing = Landing::new(buffer)?;
        check_runs(&offsets, run, landing.len())?;
        let threads = self.threads;
        landing.fill(py, move |bytes| {
            let parts = offsets.iter().copied().zip(bytes.chunks_exact_mut(run));
            side_by_side(parts.collect(), threads, |(offset, part)| {
                volume.read_at(part, offset)
            })
        })
    }

    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        let source = Source::new(data)?;
        // Before the first part of what does not fit is there.
        self.check(py, offset, source.len() as u64)?;
        source.hand_over(py, |bytes, at| volume.write_at(bytes, offset + at as u64))
    }

    fn write_runs(
        &self,
        py: Python<'_>,
        offsets: Vec<u64>,
        run: usize,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        let source = Source::new(data)?;
        check_runs(&offsets, run, source.len())?;
        source.hand_over_by(py, run, |bytes, at| {
            let parts = offsets[at / run..].iter().copied();
            let parts = parts.zip(bytes.chunks_exact(run)).collect();
            side_by_side(parts, self.threads, |(offset, part)| {
                volume.write_at(part, offset)
            })
        })
    }

    fn discard(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        self.check(py, offset, length)?;
        or_raise(py, detached(py, move || volume.discard(offset, length)))
    }

    fn status(&self, py: Python<'_>) -> PyResult<(String, bool, bool, u64, u64, usize, usize)> {
        let volume = self.handle.get(py)?;
        let volume = &*volume;
        let status = or_raise(py, detached(py, move || volume.status()))?;
        Ok((
            status.scheme,
            status.is_whole,
            status.is_readable,
            status.stored_bytes,
            status.lent_bytes,
            status.hosts,
            status.hosts_connected,
        ))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)
    }
}

impl Volume {
    fn check(&self, py: Python<'_>, offset: u64, length: u64) -> PyResult<()> {
        check_range(py, offset, length, self.size)
    }
}

/// Whether a range is inside of something of `size` bytes.
///
/// # Errors
/// `OutOfRangeError`, `OverflowError`.
pub fn check_range(py: Python<'_>, offset: u64, length: u64, size: u64) -> PyResult<()> {
    let Some(end) = offset.checked_add(length) else {
        return Err(PyOverflowError::new_err("the range ends above 2**64"));
    };
    if end > size {
        let said = format!("bytes {offset} to {end} of {size}");
        return Err(raise(py, "OutOfRangeError", said));
    }
    Ok(())
}

/// Does each part, on as many threads as are worth it; the first error that came.
fn side_by_side<T: Send>(
    parts: Vec<T>,
    threads: usize,
    each: impl Fn(T) -> Result<(), AccessError> + Sync,
) -> Result<(), AccessError> {
    let threads = threads.min(parts.len() / RUNS_EACH).max(1);
    if threads == 1 {
        return parts.into_iter().try_for_each(each);
    }
    let left = Mutex::new(parts.into_iter());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let has_failed = AtomicBool::new(false);
    let work = || -> Result<(), AccessError> {
        while !has_failed.load(Ordering::Relaxed)
            && let Some(part) = take()
        {
            let end = each(part);
            if end.is_err() {
                has_failed.store(true, Ordering::Relaxed);
                return end;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let helpers: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let joined = helpers.into_iter().map(|helper| match helper.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.fold(own, Result::and)
    })
}

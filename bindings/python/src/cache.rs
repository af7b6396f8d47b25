//! Remote caches.

use std::path::PathBuf;
use std::time::Duration;

use cenote::cache::{End, Error, Options, REQUEST_BYTES_MAX, Request};
use cenote::driver::Pending;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{Landing, Source, check_runs, filled};
use crate::error::{or_raise, raise};
use crate::handle::Handle;
use crate::interpreter::detached;
use crate::volume::check_range;

/// A connection to a cache.
#[pyclass(frozen, module = "cenote._cenote")]
pub struct Cache {
    handle: Handle<cenote::cache::Cache>,
}

/// Requests that are begun at a time: what they hold is bounded by that.
const BATCH_BYTES: usize = 16 << 20;
/// Longest wait before the interpreter is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);

#[pymethods]
impl Cache {
    #[staticmethod]
    fn open_in(
        py: Python<'_>,
        folder: PathBuf,
        cache: &str,
        name: Option<String>,
        patience: f64,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = options(py, name, patience, timeout)?;
        let cache = or_raise(py, detached(py, || options.open_in(&folder, cache)))?;
        let handle = Handle::new(cache);
        Ok(Self { handle })
    }

    #[staticmethod]
    fn open_at(
        py: Python<'_>,
        addresses: Vec<String>,
        key: PathBuf,
        name: Option<String>,
        patience: f64,
        timeout: f64,
    ) -> PyResult<Self> {
        let options = options(py, name, patience, timeout)?;
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let cache = or_raise(py, detached(py, || options.open_at(&addresses, &key)))?;
        let handle = Handle::new(cache);
        Ok(Self { handle })
    }

    #[getter]
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.handle.get(py)?.size_bytes())
    }

    #[getter]
    fn region_size(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.handle.get(py)?.region_bytes())
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
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        check_range(py, offset, length as u64, cache.size_bytes())?;
        filled(py, length, move |bytes| cache.read_at(bytes, offset))
    }

    fn read_into(&self, py: Python<'_>, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let landing = Landing::new(buffer)?;
        check_range(py, offset, landing.len() as u64, cache.size_bytes())?;
        landing.fill(py, move |bytes| cache.read_at(bytes, offset))
    }

    fn read_runs(
        &self,
        py: Python<'_>,
        offsets: Vec<u64>,
        run: usize,
        buffer: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let landing = Landing::new(buffer)?;
        check_runs(&offsets, run, landing.len())?;
        landing.fill(py, move |bytes| read_runs(cache, &offsets, run, bytes))
    }

    /// All are under way at a time, as far as they fit into [`BATCH_BYTES`].
    fn read_many<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(u64, usize)>,
    ) -> PyResult<Bound<'py, PyList>> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let found = PyList::empty(py);
        let mut ranges = &ranges[..];
        while !ranges.is_empty() {
            let count = batch(ranges.iter().map(|range| range.1));
            let (now, later) = ranges.split_at(count);
            ranges = later;
            for &(offset, length) in now {
                check_range(py, offset, length as u64, cache.size_bytes())?;
            }
            let reads = now
                .iter()
                .map(|&(offset, len_bytes)| Request::Read { offset, len_bytes });
            for bytes in ends(py, cache, reads.collect())? {
                found.append(PyBytes::new(py, &bytes))?;
            }
        }
        Ok(found)
    }

    fn write(&self, py: Python<'_>, offset: u64, data: &Bound<'_, PyAny>) -> PyResult<()> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let source = Source::new(data)?;
        check_range(py, offset, source.len() as u64, cache.size_bytes())?;
        source.hand_over(py, |bytes, at| cache.write_at(bytes, offset + at as u64))
    }

    fn write_runs(
        &self,
        py: Python<'_>,
        offsets: Vec<u64>,
        run: usize,
        data: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let source = Source::new(data)?;
        check_runs(&offsets, run, source.len())?;
        source.hand_over_by(py, run, |bytes, at| {
            let offsets = &offsets[at / run..];
            write_runs(cache, offsets, run, bytes)
        })
    }

    /// As [`Cache::read_many`].
    fn write_many(&self, py: Python<'_>, items: Vec<(u64, Bound<'_, PyAny>)>) -> PyResult<()> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let sources = items.iter().map(|(offset, data)| {
            let source = Source::new(data)?;
            check_range(py, *offset, source.len() as u64, cache.size_bytes())?;
            Ok((*offset, source))
        });
        let sources = sources.collect::<PyResult<Vec<_>>>()?;
        let mut sources = &sources[..];
        while !sources.is_empty() {
            let count = batch(sources.iter().map(|(_, source)| source.len()));
            let (now, later) = sources.split_at(count);
            sources = later;
            let writes = now.iter().map(|(offset, source)| Request::Write {
                offset: *offset,
                bytes: source.copy(py, 0..source.len()),
            });
            ends(py, cache, writes.collect())?;
        }
        Ok(())
    }

    fn take_lost(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(self.handle.get(py)?.take_lost())
    }

    fn take_fallen_back(&self, py: Python<'_>) -> PyResult<Vec<(u32, u64)>> {
        let fallen = self.handle.get(py)?.take_fallen_back();
        let told = fallen.iter().map(|one| (one.region, one.taken_ms));
        Ok(told.collect())
    }

    fn status(&self, py: Python<'_>) -> PyResult<(u64, usize, bool, usize, usize)> {
        let cache = self.handle.get(py)?;
        let cache = &*cache;
        let status = or_raise(py, detached(py, move || cache.status()))?;
        Ok((
            status.size_bytes,
            status.copies,
            status.is_whole,
            status.hosts,
            status.regions_lost,
        ))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)
    }
}

fn options(py: Python<'_>, name: Option<String>, patience: f64, timeout: f64) -> PyResult<Options> {
    let options = Options::default()
        .patience(seconds(py, "patience", patience)?)
        .timeout(seconds(py, "timeout", timeout)?);
    Ok(match name {
        Some(name) => options.name(&name),
        None => options,
    })
}

/// A time that a program gave in seconds.
///
/// # Errors
/// `ConfigurationError`.
pub fn seconds(py: Python<'_>, what: &str, seconds: f64) -> PyResult<Duration> {
    const MOST: f64 = 24.0 * 3600.0;
    if !(0.001..=MOST).contains(&seconds) {
        let said = format!("{what}={seconds}: 0.001 to {MOST} seconds");
        return Err(raise(py, "ConfigurationError", said));
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// How many of the first are begun at a time.
fn batch(lengths: impl Iterator<Item = usize>) -> usize {
    let sums = lengths.scan(0_usize, |sum, length| {
        *sum = sum.saturating_add(length);
        Some(*sum)
    });
    sums.take_while(|sum| *sum <= BATCH_BYTES).count().max(1)
}

fn ends(
    py: Python<'_>,
    cache: &cenote::cache::Cache,
    requests: Vec<Request>,
) -> PyResult<Vec<Vec<u8>>> {
    let long = |length: usize| length > REQUEST_BYTES_MAX;
    let is_long = requests.iter().any(|request| match request {
        Request::Read { len_bytes, .. } => long(*len_bytes),
        Request::Write { bytes, .. } => long(bytes.len()),
        _ => false,
    });
    if is_long {
        let said = format!("one of many is longer than {REQUEST_BYTES_MAX} bytes");
        return Err(raise(py, "ConfigurationError", said));
    }
    let pending = detached(py, || cache.begin(requests));
    let ends: Vec<End> = wait(py, pending)?;
    or_raise(py, ends.into_iter().collect())
}

/// Waits for all ends, and lets the interpreter handle signals meanwhile.
///
/// # Errors
/// What a handler raised, such as `KeyboardInterrupt`: what was asked for goes on.
pub fn wait<T: Send>(py: Python<'_>, mut pending: Pending<T>) -> PyResult<Vec<T>> {
    let over = |error| raise(py, "RefusedError", error);
    loop {
        let is_there = detached(py, || pending.wait(LOOK));
        if is_there.map_err(over)? {
            return pending.ends().map_err(over);
        }
        py.check_signals()?;
    }
}

fn read_runs(
    cache: &cenote::cache::Cache,
    offsets: &[u64],
    run: usize,
    bytes: &mut [u8],
) -> Result<(), Error> {
    if run > REQUEST_BYTES_MAX {
        let mut parts = offsets.iter().zip(bytes.chunks_exact_mut(run));
        return parts.try_for_each(|(&offset, part)| cache.read_at(part, offset));
    }
    let at_once = (BATCH_BYTES / run).max(1);
    for (offsets, bytes) in offsets.chunks(at_once).zip(bytes.chunks_mut(at_once * run)) {
        let reads = offsets.iter().map(|&offset| Request::Read {
            offset,
            len_bytes: run,
        });
        let ends = cache.begin(reads.collect()).ends()?;
        for (part, end) in bytes.chunks_exact_mut(run).zip(ends) {
            part.copy_from_slice(&end?);
        }
    }
    Ok(())
}

fn write_runs(
    cache: &cenote::cache::Cache,
    offsets: &[u64],
    run: usize,
    bytes: &[u8],
) -> Result<(), Error> {
    if run > REQUEST_BYTES_MAX {
        let mut parts = offsets.iter().zip(bytes.chunks_exact(run));
        return parts.try_for_each(|(&offset, part)| cache.write_at(part, offset));
    }
    let at_once = (BATCH_BYTES / run).max(1);
    for (offsets, bytes) in offsets.chunks(at_once).zip(bytes.chunks(at_once * run)) {
        let writes = offsets.iter().zip(bytes.chunks_exact(run));
        let writes = writes.map(|(&offset, part)| Request::Write {
            offset,
            bytes: part.to_vec(),
        });
        for end in cache.begin(writes.collect()).ends()? {
            end?;
        }
    }
    Ok(())
}

//! Stores of objects.

use std::path::PathBuf;

use cenote::store::{Condition, Done, End, Error, Request, Version};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::{Landing, Source};
use crate::cache::{seconds, wait};
use crate::error::or_raise;
use crate::handle::Handle;
use crate::interpreter::detached;

/// A connection to a store, or to several with copies.
#[pyclass(frozen, module = "cenote._cenote")]
pub struct Store {
    handle: Handle<cenote::store::Store>,
}

/// Requests that are begun at a time: what they hold is bounded by that, since values are.
const BATCH: usize = 64;

/// Version and value.
type Found<'py> = Option<(u64, Bound<'py, PyBytes>)>;

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, addresses: Vec<String>, key: PathBuf, timeout: f64) -> PyResult<Self> {
        let timeout = seconds(py, "timeout", timeout)?;
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let open = || cenote::store::Store::open_within(&addresses, &key, timeout);
        let store = or_raise(py, detached(py, open))?;
        let handle = Handle::new(store);
        Ok(Self { handle })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.handle.is_closed()
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &[u8],
        value: &Bound<'_, PyAny>,
        durable: bool,
        if_absent: bool,
        if_version: Option<u64>,
    ) -> PyResult<u64> {
        let condition = match (if_absent, if_version) {
            (false, None) => Condition::Always,
            (true, None) => Condition::Absent,
            (false, Some(version)) => Condition::Version(version),
            (true, Some(_)) => {
                let said = "if_absent and if_version: an object cannot be both";
                return Err(PyValueError::new_err(said));
            }
        };
        let value = Source::new(value)?;
        let put = Request::Put {
            key: key.to_vec(),
            value: value.copy(py, 0..value.len()),
            condition,
            is_durable: durable,
        };
        changed(py, self.ask(py, put)?)
    }

    fn put_many(
        &self,
        py: Python<'_>,
        items: Vec<(Vec<u8>, Bound<'_, PyAny>)>,
        durable: bool,
    ) -> PyResult<Vec<u64>> {
        let mut versions = Vec::new();
        for batch in items.chunks(BATCH) {
            let puts = batch.iter().map(|(key, value)| {
                let value = Source::new(value)?;
                Ok(Request::Put {
                    key: key.clone(),
                    value: value.copy(py, 0..value.len()),
                    condition: Condition::Always,
                    is_durable: durable,
                })
            });
            for done in self.ask_all(py, puts.collect::<PyResult<_>>()?)? {
                versions.push(changed(py, done)?);
            }
        }
        Ok(versions)
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Found<'py>> {
        let done = self.ask(py, Request::Get { key: key.to_vec() })?;
        Ok(found(py, done))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyList>> {
        let values = PyList::empty(py);
        for batch in keys.chunks(BATCH) {
            let gets = batch.iter().map(|key| Request::Get { key: key.clone() });
            for done in self.ask_all(py, gets.collect())? {
                values.append(found(py, done))?;
            }
        }
        Ok(values)
    }

    /// Has values be in buffers; how long each value is. One of another length than its buffer is left.
    fn get_many_into(
        &self,
        py: Python<'_>,
        items: Vec<(Vec<u8>, Bound<'_, PyAny>)>,
    ) -> PyResult<Vec<Option<usize>>> {
        let mut lengths = Vec::with_capacity(items.len());
        for batch in items.chunks(BATCH) {
            let landings = batch.iter().map(|(_, buffer)| Landing::new(buffer));
            let landings = landings.collect::<PyResult<Vec<_>>>()?;
            let gets = batch
                .iter()
                .map(|(key, _)| Request::Get { key: key.clone() });
            for (landing, done) in landings.iter().zip(self.ask_all(py, gets.collect())?) {
                let Done::Found(Version { value, .. }) = done else {
                    lengths.push(None);
                    continue;
                };
                if value.len() == landing.len() {
                    landing.fill(py, |bytes| {
                        bytes.copy_from_slice(&value);
                        Ok::<(), Error>(())
                    })?;
                }
                lengths.push(Some(value.len()));
            }
        }
        Ok(lengths)
    }

    fn delete(&self, py: Python<'_>, key: &[u8], if_version: Option<u64>) -> PyResult<u64> {
        let delete = Request::Delete {
            key: key.to_vec(),
            condition: if_version.map_or(Condition::Always, Condition::Version),
        };
        changed(py, self.ask(py, delete)?)
    }

    fn delete_many(&self, py: Python<'_>, keys: Vec<Vec<u8>>) -> PyResult<Vec<u64>> {
        let mut versions = Vec::new();
        for batch in keys.chunks(BATCH) {
            let deletes = batch.iter().map(|key| Request::Delete {
                key: key.clone(),
                condition: Condition::Always,
            });
            for done in self.ask_all(py, deletes.collect())? {
                versions.push(changed(py, done)?);
            }
        }
        Ok(versions)
    }

    fn list<'py>(&self, py: Python<'py>, prefix: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let store = self.handle.get(py)?;
        let store = &*store;
        let keys = detached(py, || store.keys(prefix));
        let keys = or_raise(py, keys)?;
        Ok(keys.iter().map(|key| PyBytes::new(py, key)).collect())
    }

    fn sync(&self, py: Python<'_>) -> PyResult<u64> {
        match self.ask(py, Request::Sync)? {
            Done::Synced(lost) => Ok(lost),
            _ => Ok(0),
        }
    }

    fn clean(&self, py: Python<'_>) -> PyResult<()> {
        let store = self.handle.get(py)?;
        let store = &*store;
        or_raise(py, detached(py, || store.clean()))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.close(py)
    }
}

impl Store {
    fn ask(&self, py: Python<'_>, request: Request) -> PyResult<Done> {
        let mut all = self.ask_all(py, vec![request])?;
        Ok(all.pop().expect("one was asked for"))
    }

    /// All of them, at the same time; the first error, once all have ended.
    fn ask_all(&self, py: Python<'_>, requests: Vec<Request>) -> PyResult<Vec<Done>> {
        let store = self.handle.get(py)?;
        let store = &*store;
        let pending = detached(py, || store.begin(requests));
        let ends: Vec<End> = wait(py, pending)?;
        or_raise(py, ends.into_iter().collect())
    }
}

fn found(py: Python<'_>, done: Done) -> Found<'_> {
    match done {
        Done::Found(Version { number, value }) => Some((number, PyBytes::new(py, &value))),
        _ => None,
    }
}

fn changed(py: Python<'_>, done: Done) -> PyResult<u64> {
    match done {
        Done::Changed(version) => Ok(version),
        _ => or_raise(
            py,
            Err(Error::Refused("an answer to another request".to_owned())),
        ),
    }
}

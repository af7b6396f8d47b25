//! A cluster's memory for Python programs: the compiled part of the package `cenote`.
//!
//! Each class wraps one type of `cenote-client` and adds what Python needs: buffers, exceptions, and the
//! interpreter's lock released while a call waits. What can be said in Python (slices, arrays, asyncio,
//! files) is in `python/cenote`, whose exceptions are raised here by name.
//!
//! | file | owns |
//! |---|---|
//! | `handle` | something that is open: closed once, and the parent's after a fork |
//! | `buffer` | bytes of Python objects: the one place with unsafe code |
//! | `error` | errors as exceptions |
//! | `ending` | the interpreter's lock, also while the interpreter ends |
//! | `volume`, `cache`, `store` | the classes |

mod buffer;
mod cache;
mod error;
mod handle;
mod interpreter;
mod store;
mod volume;

use pyo3::prelude::*;

/// The module `cenote._cenote`.
#[pymodule]
fn _cenote(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interpreter::watch_for_exit(module)?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<volume::Volume>()?;
    module.add_class::<cache::Cache>()?;
    module.add_class::<store::Store>()
}

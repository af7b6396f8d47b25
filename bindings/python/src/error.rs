//! Errors as the exceptions of `cenote.errors`, which say what to do.

use cenote::{AccessError, cache, store};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// An exception of `cenote.errors`, by its class.
pub fn raise(py: Python<'_>, class: &str, said: impl ToString) -> PyErr {
    raise_with(py, class, (said.to_string(),))
}

fn raise_with<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyErr {
    let made = py.import("cenote.errors").and_then(|errors| {
        let class = errors.getattr(class)?;
        class.call1(arguments)
    });
    match made {
        Ok(exception) => PyErr::from_value(exception),
        // Somebody replaced the module. What went wrong first is not lost.
        Err(error) => PyRuntimeError::new_err(format!("{class}: {error}")),
    }
}

/// What can be raised for something of `cenote-client`.
pub trait Raised {
    fn raised(self, py: Python<'_>) -> PyErr;
}

impl Raised for cenote::Error {
    fn raised(self, py: Python<'_>) -> PyErr {
        let class = match &self {
            Self::Access(error) => return error.raised(py),
            Self::TooFewHosts(_) => "TooFewHostsError",
            Self::Open(_) => "RefusedError",
            _ => "ConfigurationError",
        };
        raise(py, class, self)
    }
}

impl Raised for AccessError {
    fn raised(self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::Corrupt => "CorruptError",
            Self::NoSpace => "NoSpaceError",
            Self::OutOfRange => "OutOfRangeError",
            Self::Closed => "ClosedError",
            _ => "DataLostError",
        };
        raise(py, class, self)
    }
}

impl Raised for cache::Error {
    fn raised(self, py: Python<'_>) -> PyErr {
        let class = match &self {
            Self::Options(_) => "ConfigurationError",
            Self::NoManager(_) => "UnreachableError",
            Self::OutOfRange { .. } => "OutOfRangeError",
            Self::Unavailable(_) => "UnavailableError",
            Self::Gone => "GoneError",
            _ => "RefusedError",
        };
        raise(py, class, self)
    }
}

impl Raised for store::Error {
    fn raised(self, py: Python<'_>) -> PyErr {
        let class = match &self {
            Self::Condition { found } => {
                return raise_with(py, "ConditionError", (self.to_string(), *found));
            }
            Self::Options(_) => "ConfigurationError",
            Self::Unreachable(_) => "UnreachableError",
            Self::Lost(_) => "ConnectionLostError",
            Self::Full => "NoSpaceError",
            Self::Busy => "BusyError",
            _ => "RefusedError",
        };
        raise(py, class, self)
    }
}

/// A result as Python wants it.
pub fn or_raise<T, E: Raised>(py: Python<'_>, result: Result<T, E>) -> PyResult<T> {
    result.map_err(|error| error.raised(py))
}

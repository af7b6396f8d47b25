"""A cluster's memory for Python: volumes, arrays, caches, objects and files in it.

| | |
|---|---|
| `Volume` | bytes that a cluster's hosts keep, erasure-coded; this process's own |
| `array` | a NumPy array whose elements are in a volume or a cache |
| `Cache` | a remote cache that many programs share |
| `Store` | objects that survive crashes |
| `cenote.aio` | the same, awaited |
| `cenote.fs` | files in a store, as the file system `cenote://` of fsspec |
| `cenote.lmcache` | KV caches of LMCache in a store |
| `cenote.errors` | the exceptions |

The guide is docs/guides/python.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import errors
from ._cenote import __version__
from .cache import Cache, CacheStatus, FellBack
from .errors import (
    BusyError,
    ClosedError,
    ConditionError,
    ConfigurationError,
    ConnectionLostError,
    CorruptError,
    DataLostError,
    Error,
    ForkedError,
    GoneError,
    NoSpaceError,
    OutOfRangeError,
    RefusedError,
    TooFewHostsError,
    UnavailableError,
    UnreachableError,
)
from .store import Store, Version
from .volume import Volume, VolumeStatus

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ._ranges import Ranges
    from .arrays import RemoteArray

__all__ = [
    "BusyError",
    "Cache",
    "CacheStatus",
    "ClosedError",
    "ConditionError",
    "ConfigurationError",
    "ConnectionLostError",
    "CorruptError",
    "DataLostError",
    "Error",
    "FellBack",
    "ForkedError",
    "GoneError",
    "NoSpaceError",
    "OutOfRangeError",
    "RefusedError",
    "Store",
    "TooFewHostsError",
    "UnavailableError",
    "UnreachableError",
    "Version",
    "Volume",
    "VolumeStatus",
    "__version__",
    "aio",
    "array",
    "errors",
]


def array(
    memory: Ranges,
    shape: int | tuple[int, ...],
    dtype: DTypeLike = "float64",
    offset: int = 0,
) -> RemoteArray:
    """A NumPy array in a volume or a cache, whose first element is at byte `offset`.

    It takes what bytes are there: zeros in a new volume. What is a copy: see
    `cenote.arrays.RemoteArray`. Needs NumPy.
    """
    from .arrays import RemoteArray

    return RemoteArray(memory, shape, dtype, offset)


def __getattr__(name: str) -> Any:
    # asyncio takes as long to import as all else here.
    if name == "aio":
        import importlib

        return importlib.import_module("cenote.aio")
    raise AttributeError(f"module 'cenote' has no attribute {name!r}")

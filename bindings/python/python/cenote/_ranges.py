"""What volumes and caches have in common: bytes at offsets, as `mmap` and slices have it."""

from __future__ import annotations

import operator
import os
import re
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeVar, overload

from .errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

#: A path, as `open` takes it.
Path = str | os.PathLike[str]
Self = TypeVar("Self", bound="Closing")

_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def size_of(size: int | str) -> int:
    """Bytes: a number, or text such as "64M", in the units of `cenote`'s commands."""
    if isinstance(size, str):
        found = re.fullmatch(r"(\d{1,18})([KMGT]?)(?:i?B)?", size.strip())
        if found is None:
            raise ConfigurationError(f"{size!r} is no size, such as 4096, '64M' or '1G'")
        return int(found[1]) << _UNITS[found[2]]
    return operator.index(size)


def folder_of(where: Path | None) -> str:
    """A cluster's folder; None: what CENOTE_DIR names, as for `cenote`'s commands."""
    if where is None:
        where = os.environ.get("CENOTE_DIR")
    if not where:
        raise ConfigurationError("which cluster? Name its folder, or set CENOTE_DIR")
    return os.path.expanduser(os.fspath(where))


def plain(data: Any) -> Any:
    """The bytes of a buffer, whatever its items are. No copy where they lie one after the other."""
    if isinstance(data, bytes):
        return data
    if hasattr(data, "__array_interface__"):
        import numpy

        # memoryview does not take all that NumPy has: float16, datetime64, records.
        items = numpy.ascontiguousarray(data)
        return items.reshape(-1).view(numpy.uint8)
    view = memoryview(data)
    if not view.c_contiguous:
        return view.tobytes()
    return view.cast("B") if view.nbytes else b""


def writable(buffer: Any) -> Any:
    """The same of a buffer that is written into."""
    if hasattr(buffer, "__array_interface__"):
        import numpy

        if not isinstance(buffer, numpy.ndarray) or not buffer.flags.c_contiguous:
            raise BufferError("the array does not lie in one piece: read into another, and copy")
        if not buffer.flags.writeable:
            raise BufferError("the array is read-only")
        return buffer.reshape(-1).view(numpy.uint8)
    view = memoryview(buffer)
    if view.readonly:
        raise BufferError("the buffer is read-only: take a bytearray or an array")
    if not view.c_contiguous:
        raise BufferError("the buffer does not lie in one piece: read into another, and copy")
    return view.cast("B") if view.nbytes else bytearray()


class Closing:
    """Something that is closed, at the end of a `with` block or by `close()`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Ranges(Protocol):
    """Of the compiled part."""

    @property
    def size(self) -> int: ...
    @property
    def closed(self) -> bool: ...
    def read(self, offset: int, length: int) -> bytes: ...
    def read_into(self, offset: int, buffer: Any) -> None: ...
    def read_runs(self, offsets: Sequence[int], run: int, buffer: Any) -> None: ...
    def write(self, offset: int, data: Any) -> None: ...
    def write_runs(self, offsets: Sequence[int], run: int, data: Any) -> None: ...
    def close(self) -> None: ...


class Ranges(Closing):
    """Bytes at offsets, from 0 to `size`. Calls wait until they are done; other threads run."""

    _inner: _Ranges

    @property
    def size(self) -> int:
        """Bytes."""
        return self._inner.size

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._inner.closed

    def __len__(self) -> int:
        return self._inner.size

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes at `offset`; all to the end unless said otherwise."""
        if length is None:
            length = max(self._inner.size - offset, 0)
        return self._inner.read(offset, length)

    def read_into(self, offset: int, buffer: Any) -> None:
        """Fills a writable buffer (bytearray, memoryview, array) from the bytes at `offset`.

        Nothing is copied on the way. Leave the buffer alone until it returns; after an error it may
        have been written to.
        """
        self._inner.read_into(offset, writable(buffer))

    def write(self, offset: int, data: Any) -> None:
        """Writes any buffer (bytes, bytearray, memoryview, array) at `offset`.

        `bytes` are sent from where they lie. Others may change meanwhile, so they are copied on the
        way, a MiB at a time.
        """
        self._inner.write(offset, plain(data))

    @overload
    def __getitem__(self, index: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> bytes: ...

    def __getitem__(self, index: SupportsIndex | slice) -> int | bytes:
        if not isinstance(index, slice):
            return self._inner.read(self._offset(index), 1)[0]
        start, stop, step = index.indices(self._inner.size)
        if step == 1:
            return self._inner.read(start, max(stop - start, 0))
        if step < 0:
            taken = range(start, stop, step)
            low = taken[-1] if taken else 0
            return self._inner.read(low, taken[0] - low + 1)[::step] if taken else b""
        return self._inner.read(start, max(stop - start, 0))[::step]

    def __setitem__(self, index: SupportsIndex | slice, value: Any) -> None:
        if not isinstance(index, slice):
            self._inner.write(self._offset(index), bytes((operator.index(value),)))
            return
        start, stop, step = index.indices(self._inner.size)
        if step != 1:
            raise ValueError("only bytes that follow each other are written: a step of 1")
        data = plain(value)
        length = memoryview(data).nbytes
        if length != max(stop - start, 0):
            room = max(stop - start, 0)
            raise ValueError(f"{length} bytes for a range of {room}: its size is fixed")
        self._inner.write(start, data)

    def _offset(self, index: SupportsIndex) -> int:
        at, size = operator.index(index), self._inner.size
        if not -size <= at < size:
            raise IndexError(f"byte {at} of {size}")
        return at % size

    def close(self) -> None:
        """Ends it, once what is under way in other threads has ended. Again is no error."""
        self._inner.close()

    def __repr__(self) -> str:
        how = "closed" if self.closed else f"{self.size} bytes"
        return f"<cenote.{type(self).__name__}: {how}>"

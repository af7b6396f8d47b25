"""NumPy arrays whose elements are in remote memory.

An array here has a place, a shape and a type, and no elements of its own: each index reads or
writes the volume or cache that it lies in. What an index returns is a copy, as a NumPy array.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import OutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import DTypeLike, NDArray

    from ._ranges import Ranges

#: The unit of access: a few bytes of a page cost as much as all of them.
_PAGE_BYTES = 4096
#: Bytes that are read ahead of being picked from.
_PICK_BYTES = 4 << 20
#: Runs whose places are listed at a time.
_RUNS = 1 << 16


class _Box:
    """For each axis the first index, how many there are, and the step from one to the next."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.steps: list[int] = []

    def add(self, start: int, count: int, step: int) -> None:
        self.starts.append(start)
        self.counts.append(count)
        self.steps.append(step)


class RemoteArray:
    """An array in a volume or a cache, in C order. `cenote.array` makes one.

    ``a[index]`` reads what the index names and returns a new NumPy array (or a scalar), and
    ``a[index] = value`` writes exactly these elements. An index has integers, slices with any step,
    ``...`` and ``None``, as in NumPy; or is one array of integers or booleans for the first axis.

    What is a copy: everything that an index, ``read``, ``numpy.asarray`` or iteration returns.
    Changing it changes nothing here. So ``a[3] += 1`` works (it reads, adds and writes row 3),
    while ``a[3][5] = 1`` changes a copy that is gone at once: write ``a[3, 5] = 1``. Nothing locks:
    between the reading and the writing of ``+=`` others may have written. Arithmetic is NumPy's, on
    copies: ``a[:] * 2``. ``rows`` is no copy: it is another array at a part of the same place.
    """

    def __init__(
        self,
        memory: Ranges,
        shape: int | tuple[int, ...],
        dtype: DTypeLike = np.float64,
        offset: int = 0,
    ) -> None:
        self._memory = memory
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        self._shape = tuple(operator.index(size) for size in sizes)
        self._dtype = np.dtype(dtype)
        self._offset = operator.index(offset)
        if self._dtype.hasobject or self._dtype.itemsize == 0:
            raise TypeError(f"{self._dtype}: elements are bytes of a fixed number, not objects")
        if any(size < 0 for size in self._shape) or self._offset < 0:
            raise ValueError("shape and offset have no negative numbers")
        if self._offset + self.nbytes > memory.size:
            raise OutOfRangeError(
                f"bytes {self._offset} to {self._offset + self.nbytes} of {memory.size}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each axis."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self._dtype

    @property
    def offset(self) -> int:
        """Where the first element is."""
        return self._offset

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they are."""
        return self.size * self._dtype.itemsize

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("an array without axes has no length")
        return self._shape[0]

    def __getitem__(self, index: Any) -> Any:
        if (rows := self._rows_of(index)) is not None:
            found = np.empty(rows.shape + self._shape[1:], self._dtype)
            self._runs(self._row_places(rows), found, is_write=False)
            return found
        box, after = self._box(index)
        found = np.empty(box.counts, self._dtype)
        self._read(box, found)
        return found[after]

    def __setitem__(self, index: Any, value: Any) -> None:
        if (rows := self._rows_of(index)) is not None:
            values = np.empty(rows.shape + self._shape[1:], self._dtype)
            values[...] = value
            # Of a row that is named twice the last value counts, as in NumPy.
            flat = rows.reshape(-1)
            flat, last = np.unique(flat[::-1], return_index=True)
            values = values.reshape((-1, *self._shape[1:]))[::-1][last]
            self._runs(self._row_places(flat), np.ascontiguousarray(values), is_write=True)
            return
        box, after = self._box(index)
        values = np.empty(box.counts, self._dtype)
        # All of it: `after` names every element, in another order.
        values[after] = value
        if values.size:
            self._runs(self._places(box)[0], values, is_write=True)

    def read(self, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """All of it: a new array, or `out`, of the same shape and type, which is read into."""
        if out is None:
            out = np.empty(self._shape, self._dtype)
        elif out.shape != self._shape or out.dtype != self._dtype:
            raise ValueError(f"out is {out.shape} {out.dtype}, not {self._shape} {self._dtype}")
        if out.size:
            self._memory.read_into(self._offset, out)
        return out

    def fill(self, value: Any) -> None:
        """Writes the same value to every element."""
        each = max(_PICK_BYTES // self._dtype.itemsize, 1)
        part = np.full(min(each, self.size), value, self._dtype)
        for at in range(0, self.size, each):
            count = min(each, self.size - at)
            self._memory.write(self._offset + at * self._dtype.itemsize, part[:count])

    def rows(self, start: int, stop: int) -> RemoteArray:
        """The array of rows `start` to `stop` of the first axis, at the same place: no copy."""
        if not self._shape or not 0 <= start <= stop <= self._shape[0]:
            raise IndexError(f"rows {start} to {stop} of {self._shape[:1]}")
        offset = self._offset + start * self._row_bytes()
        return RemoteArray(self._memory, (stop - start, *self._shape[1:]), self._dtype, offset)

    def __iter__(self) -> Iterator[Any]:
        """Copies of the rows, read some at a time."""
        if not self._shape:
            raise TypeError("an array without axes has no rows")
        step = max(_PICK_BYTES // max(self._row_bytes(), 1), 1)
        for start in range(0, self._shape[0], step):
            yield from self[start : start + step]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("the elements are in remote memory: an array of them is a copy")
        found = self.read()
        return found if dtype is None else found.astype(dtype, copy=False)

    def __repr__(self) -> str:
        return f"<cenote.RemoteArray: {self._shape} {self._dtype} at {self._offset}>"

    # Where elements are.

    def _row_bytes(self) -> int:
        return math.prod(self._shape[1:]) * self._dtype.itemsize

    def _rows_of(self, index: Any) -> NDArray[np.int64] | None:
        """Rows that an index names one by one; None if it is made of slices and integers."""
        if isinstance(index, tuple):
            if any(isinstance(one, (list, np.ndarray)) and np.ndim(one) for one in index):
                raise IndexError("an array among other indices: index a copy of slices")
            return None
        if isinstance(index, bool | np.bool_):
            raise IndexError("a truth value is no index here")
        if not isinstance(index, (list, np.ndarray)) or np.ndim(index) == 0:
            return None
        rows = np.asarray(index)
        if not self._shape:
            raise IndexError("an array without axes has no rows")
        if rows.size == 0 and rows.dtype != bool:
            rows = rows.astype(np.int64)
        if rows.dtype == bool:
            if rows.shape != self._shape[:1]:
                raise IndexError(f"a mask of {rows.shape} for rows {self._shape[:1]}")
            rows = np.flatnonzero(rows)
        if rows.dtype.kind not in "iu":
            raise IndexError(f"{rows.dtype} is no type of an index")
        rows = rows.astype(np.int64)
        size = self._shape[0]
        if rows.size and not (-size <= rows.min() and rows.max() < size):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {size}")
        return np.where(rows < 0, rows + size, rows)

    def _row_places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._offset + rows.reshape(-1) * self._row_bytes()

    def _box(self, index: Any) -> tuple[_Box, tuple[Any, ...]]:
        """What an index of slices and integers names, and how to index that for the result."""
        items = list(index) if isinstance(index, tuple) else [index]
        named = sum(one is not None and one is not Ellipsis for one in items)
        if named > self.ndim or sum(one is Ellipsis for one in items) > 1:
            raise IndexError(f"{named} indices, or more than one ..., for {self.ndim} axes")
        if not any(one is Ellipsis for one in items):
            items.append(Ellipsis)
        at = next(i for i, one in enumerate(items) if one is Ellipsis)
        items[at : at + 1] = [slice(None)] * (self.ndim - named)
        box, after = _Box(), list[Any]()
        for item in items:
            if item is None:
                after.append(None)
                continue
            size = self._shape[len(box.starts)]
            if isinstance(item, slice):
                taken = range(*item.indices(size))
                after.append(slice(None, None, -1 if taken.step < 0 else 1))
                taken = taken[::-1] if taken.step < 0 else taken
                box.add(taken.start, len(taken), taken.step)
            else:
                try:
                    which = operator.index(item)
                except TypeError:
                    raise IndexError(f"{item!r} is no index") from None
                if not -size <= which < size:
                    raise IndexError(f"index {which} of {size}")
                after.append(0)
                box.add(which % size, 1, 1)
        return box, tuple(after)

    def _strides(self) -> list[int]:
        """Elements from one index of an axis to the next."""
        return [math.prod(self._shape[axis + 1 :]) for axis in range(self.ndim)]

    def _inner(self, box: _Box) -> tuple[int, int]:
        """With which axis runs begin, those before it being gone through, and how long they are."""
        axis, run = self.ndim, 1
        while axis > 0 and (box.steps[axis - 1] == 1 or box.counts[axis - 1] == 1):
            axis -= 1
            run *= box.counts[axis]
            if box.counts[axis] != self._shape[axis]:
                break
        return axis, run

    def _places(self, box: _Box, until: int | None = None) -> tuple[NDArray[np.int64], int]:
        """Where runs begin, and how many elements each has."""
        axis, run = self._inner(box)
        strides, axes = self._strides(), axis if until is None else until
        first = sum(
            start * stride for start, stride in zip(box.starts[axes:], strides[axes:], strict=True)
        )
        places = np.full((1,) * axes, first, np.int64)
        for one in range(axes):
            along = (box.starts[one] + box.steps[one] * np.arange(box.counts[one])) * strides[one]
            places = places + along.reshape((-1,) + (1,) * (axes - one - 1))
        return self._offset + places.reshape(-1) * self._dtype.itemsize, run

    def _runs(self, places: NDArray[np.int64], values: NDArray[Any], *, is_write: bool) -> None:
        """Reads or writes runs of equal length, which follow each other in `values`."""
        if not values.size:
            return
        run = values.nbytes // len(places)
        flat = values.reshape(-1).view(np.uint8)
        for at in range(0, len(places), _RUNS):
            some = places[at : at + _RUNS].tolist()
            part = flat[at * run : (at + len(some)) * run]
            inner = self._memory._inner
            if len(some) > 1 and is_write:
                inner.write_runs(some, run, part)
            elif len(some) > 1:
                inner.read_runs(some, run, part)
            elif is_write:
                inner.write(some[0], part)
            else:
                inner.read_into(some[0], part)

    def _read(self, box: _Box, found: NDArray[Any]) -> None:
        if not found.size:
            return
        axis, run = self._inner(box)
        item = self._dtype.itemsize
        pitch = box.steps[axis - 1] * self._strides()[axis - 1] if axis else 0
        if not axis or (pitch - run) * item >= _PAGE_BYTES:
            self._runs(self._places(box)[0], found, is_write=False)
            return
        # Runs with less than a page between them: what lies between is read as well, and left out.
        places, _ = self._places(box, axis - 1)
        count = box.counts[axis - 1]
        picked = found.reshape(len(places), count, run)
        each = max((_PICK_BYTES // item - run) // pitch + 1, 1)
        for at in range(0, count, each):
            some = min(each, count - at)
            span = (some - 1) * pitch + run
            rows = max(_PICK_BYTES // (span * item), 1)
            for row in range(0, len(places), rows):
                begins = places[row : row + rows] + at * pitch * item
                read = np.empty((len(begins), span), self._dtype)
                self._runs(begins, read, is_write=False)
                view = np.lib.stride_tricks.as_strided(
                    read, (len(begins), some, run), (span * item, pitch * item, item)
                )
                picked[row : row + rows, at : at + some] = view

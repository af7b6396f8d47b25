"""Files in a store, as the file system ``cenote://`` of fsspec: for pandas, PyArrow and others.

A path is an object's key. An object of up to 1 MiB that was put by other means is a file as well. A
larger file is an object that says where its parts are, other objects whose keys no path can have:

    path                    MAGIC and JSON: {"bytes": N, "id": ID, "part_bytes": N, "version": 1}
    "\\0parts/ID/INDEX"      a part each, in order; all but the last have part_bytes

The object at the path is put last, durably and in one piece. So a file that is written is there
whole or not at all, after crashes as well, and replaces the one before at one moment. Folders are
parts of paths, as in other stores of objects: they are there while something is in them.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from .errors import ConditionError, ConfigurationError
from .store import Store, Version

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

MAGIC = b"\0cenote-file\0"
#: Of a file's parts. Several fit into what a store has for a client's values.
PART_BYTES = 512 << 10
#: Files up to this size are objects as they are.
WHOLE_BYTES_MAX = 64 << 10
#: Most bytes of a part in a file that others wrote.
_PART_BYTES_MAX = 1 << 20
_PARTS = "\0parts/"
#: Parts that are read or written at a time.
_AT_ONCE = 8
#: Others that replace the same file at the same time come first so often.
_TRIES = 100


class _Content(NamedTuple):
    """What the object at a path says."""

    size: int
    #: All of it, of a file that is one object.
    whole: bytes | None
    id: str
    part_bytes: int

    def part(self, index: int) -> str:
        return f"{_PARTS}{self.id}/{index:08x}"

    def parts(self) -> list[str]:
        if self.whole is not None:
            return []
        return [self.part(index) for index in range(-(-self.size // self.part_bytes))]

    def encode(self) -> bytes:
        said = {"bytes": self.size, "id": self.id, "part_bytes": self.part_bytes, "version": 1}
        return MAGIC + json.dumps(said).encode()


def _content(path: str, value: bytes) -> _Content:
    if not value.startswith(MAGIC):
        return _Content(len(value), value, "", 1)
    try:
        said = json.loads(value[len(MAGIC) :])
        size, part_bytes, name = said["bytes"], said["part_bytes"], said["id"]
        known = said["version"] == 1
        if not (isinstance(size, int) and isinstance(part_bytes, int) and size >= 0):
            raise ValueError("sizes are numbers")
        if not (0 < part_bytes <= _PART_BYTES_MAX and re.fullmatch("[0-9a-f]{32}", name)):
            raise ValueError("no parts of a file")
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{path}: it is no file of cenote://: {error}") from None
    if not known:
        raise OSError(f"{path}: it was written by a newer version of cenote")
    return _Content(size, None, name, part_bytes)


class CenoteFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Files in the store at `address`.

    >>> pandas.read_parquet(  # doctest: +SKIP
    ...     "cenote://10.0.0.7:7100/a.parquet", storage_options={"key": "cluster.key"})

    :param address: as `cenote.Store` takes it. A URL with HOST:PORT says it as well.
    :param key: the file with the cluster's key.
    :param timeout: seconds after which a store that is silent counts as gone.
    """

    protocol = "cenote"
    root_marker = ""

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        key: str | None = None,
        timeout: float = 10.0,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        if not address or key is None:
            raise ConfigurationError("cenote:// needs the store's address, and key=FILE")
        self.store = Store(address, key=key, timeout=timeout)

    # Paths.

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = str(path)
        if path.startswith("cenote://"):
            path = path[len("cenote://") :]
            if _host(path):
                path = path.partition("/")[2]
        return path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        host = _host(path.removeprefix("cenote://")) if path.startswith("cenote://") else None
        return {"address": f"tcp:{host}"} if host else {}

    def _key(self, path: str) -> str:
        key = str(self._strip_protocol(path))
        if not key or "\0" in key:
            raise ValueError(f"{path!r} is no path of a file")
        return key

    # What is there.

    def info(self, path: str, **more: Any) -> dict[str, Any]:
        """Name, size, type, and the version of the object."""
        name = self._strip_protocol(path)
        found = self.store.get_version(self._key(path)) if name else None
        if found is not None:
            return _file(name, found.value, found.version)
        if not name or self._keys(f"{name}/"):
            return {"name": name, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **more: Any) -> list[Any]:
        """What is in a folder. With details each file's object is read, which has up to 64 KiB."""
        name = self._strip_protocol(path)
        prefix = f"{name}/" if name else ""
        files, folders = [], dict[str, None]()
        for key in self._keys(prefix):
            first, slash, _ = key[len(prefix) :].partition("/")
            if slash:
                folders[prefix + first] = None
            else:
                files.append(key)
        if name and not files and not folders:
            files = [name]
        if not detail:
            found = [*folders, *files]
            if files == [name]:
                self.info(name)
            return sorted(found)
        infos = [{"name": folder, "size": 0, "type": "directory"} for folder in folders]
        for key, value in zip(files, self.store.get_many(files), strict=True):
            # One that is gone since it was listed is not there.
            if value is not None:
                infos.append(_file(key, value, None))
        if name and not infos:
            raise FileNotFoundError(path)
        return sorted(infos, key=lambda info: str(info["name"]))

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False,
        detail: bool = False, **more: Any,
    ) -> Any:
        """All files below a folder: one listing, where that is enough."""
        if maxdepth is not None or withdirs or detail:
            return super().find(path, maxdepth, withdirs, detail=detail, **more)
        name = self._strip_protocol(path)
        found = self._keys(f"{name}/" if name else "")
        if name and self.store.get(name) is not None:
            found = [name, *found]
        return sorted(found)

    def _keys(self, prefix: str) -> list[str]:
        return [key for key in self.store.list(prefix) if not key.startswith("\0")]

    def ukey(self, path: str) -> str:
        """Another one whenever the file is."""
        return str(self._found(path).version)

    def checksum(self, path: str) -> int:
        """As `ukey`, a number."""
        return self._found(path).version

    def _found(self, path: str) -> Version:
        found = self.store.get_version(self._key(path))
        if found is None:
            raise FileNotFoundError(path)
        return found

    # Reading and writing.

    def open(
        self, path: str, mode: str = "rb", block_size: int | str | None = None,
        cache_options: dict[str, Any] | None = None, compression: str | None = None, **more: Any,
    ) -> Any:
        """As `open` of fsspec. One that is left by an exception is not written, as text as well."""
        if "b" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **more)
        text = {name: more.pop(name) for name in ("encoding", "errors", "newline") if name in more}
        mode = mode.replace("t", "") + "b"
        return _Text(self.open(path, mode, block_size, cache_options, compression, **more), **text)

    def _open(
        self, path: str, mode: str = "rb", block_size: int | str | None = None,
        autocommit: bool = True, cache_options: dict[str, Any] | None = None, **more: Any,
    ) -> CenoteFile:
        if mode not in ("rb", "wb", "xb"):
            raise ValueError(f"mode {mode!r}: files are read (rb) or written whole (wb, xb)")
        size = block_size if isinstance(block_size, int) else _AT_ONCE * PART_BYTES
        return CenoteFile(
            self, self._key(path), mode, max(size, PART_BYTES), autocommit,
            cache_options=cache_options, **more,
        )

    def _read(self, path: str, content: _Content, start: int, end: int) -> bytes:
        if content.whole is not None:
            return content.whole[start:end]
        each = content.part_bytes
        first = start // each
        names = [content.part(index) for index in range(first, -(-end // each))]
        found = io.BytesIO()
        for at in range(0, len(names), _AT_ONCE):
            some = names[at : at + _AT_ONCE]
            for name, part in zip(some, self.store.get_many(some), strict=True):
                if part is None:
                    raise FileNotFoundError(f"{path}: it was replaced or deleted while it was read")
                index = int(name.rpartition("/")[2], 16)
                if len(part) != min(each, content.size - index * each):
                    raise OSError(f"{path}: part {index} has {len(part)} bytes")
                found.write(part)
        return found.getvalue()[start - first * each : end - first * each]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **more: Any
    ) -> bytes:
        """The bytes of a file, or of a part of it."""
        content = _content(path, self._found(path).value)
        begin, stop, _ = slice(start, end).indices(content.size)
        return self._read(path, content, begin, max(stop, begin))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **more: Any) -> None:
        """Writes a file."""
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **more: Any) -> None:
        """Copies a file, some parts at a time."""
        if self.isdir(path1):
            return
        with self.open(path1) as source, self.open(path2, "wb") as target:
            while part := source.read(_AT_ONCE * PART_BYTES):
                target.write(part)

    # Ending.

    def rm_file(self, path: str) -> None:
        """Deletes a file."""
        self._replace(self._key(path), None, is_new=False)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Deletes files, and with `recursive` all that is below."""
        for one in path if isinstance(path, list) else [path]:
            name = self._strip_protocol(one)
            below = self._keys(f"{name}/" if name else "")
            if below and not recursive:
                raise OSError(f"{one}: it is a folder, and not empty: recursive=True")
            is_file = bool(name) and self.store.get_version(self._key(name)) is not None
            if not is_file and not below:
                raise FileNotFoundError(one)
            for key in [*below, *([name] if is_file else [])]:
                self._replace(key, None, is_new=False)

    def mkdir(self, path: str, create_parents: bool = True, **more: Any) -> None:
        """Nothing: a folder is there once something is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Nothing: a folder is there once something is in it."""

    def rmdir(self, path: str) -> None:
        """Nothing: an empty folder is not there."""
        if self._keys(f"{self._strip_protocol(path)}/"):
            raise OSError(f"{path}: it is not empty")

    def remove_orphans(self) -> int:
        """Deletes parts that no file has, of programs that died while they wrote; how many.

        Only while nobody writes: parts are there before their file is.
        """
        keys = self.store.list()
        files = [key for key in keys if not key.startswith("\0")]
        owned: set[str] = set()
        for at in range(0, len(files), 64):
            some = files[at : at + 64]
            for key, value in zip(some, self.store.get_many(some), strict=True):
                if value is not None and value.startswith(MAGIC):
                    owned.update(_content(key, value).parts())
        orphans = [key for key in keys if key.startswith(_PARTS) and key not in owned]
        return len(self.store.delete_many(orphans))

    def _replace(self, key: str, value: bytes | None, *, is_new: bool) -> None:
        """Puts or deletes the object at a path, and deletes the parts of the one that was there."""
        for _ in range(_TRIES):
            found = None if is_new else self.store.get_version(key)
            try:
                if value is None:
                    if found is None:
                        raise FileNotFoundError(key)
                    self.store.delete(key, if_version=found.version)
                elif found is None:
                    self.store.put_durable(key, value, if_absent=True)
                else:
                    self.store.put_durable(key, value, if_version=found.version)
            except ConditionError:
                if is_new:
                    raise FileExistsError(key) from None
                continue
            if found is not None and found.value.startswith(MAGIC):
                self.store.delete_many(_content(key, found.value).parts())
            return
        raise BlockingIOError(f"{key}: others replace it all the time")


class CenoteFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read, or one that is written and will be there once it is closed.

    One that is left by an exception, out of its `with` block, was never written. So it is after a write
    that failed. The `with` block of `fsspec.open(URL)` closes it whatever happened, which writes it.
    """

    closed: bool
    #: A write failed: what is stored of it is not what was written.
    _is_broken = False
    #: The store was asked for the file: it may be there.
    _is_asked_for = False

    def __init__(
        self, fs: CenoteFileSystem, path: str, mode: str, block_size: int, autocommit: bool,
        **more: Any,
    ) -> None:
        self._content: _Content | None = None
        if mode == "rb":
            self._content = _content(path, fs._found(path).value)
            more["size"] = self._content.size
        elif mode == "xb" and fs.store.get_version(path) is not None:
            raise FileExistsError(path)
        super().__init__(fs, path, mode, block_size, autocommit, **more)
        self._is_new = mode == "xb"
        self._id = uuid.uuid4().hex
        #: Bytes in parts that were put, and those that are not yet.
        self._put = 0
        self._rest = b""

    def _fetch_range(self, start: int, end: int) -> bytes:
        assert self._content is not None
        read: bytes = self.fs._read(self.path, self._content, start, min(end, self._content.size))
        return read

    def _initiate_upload(self) -> None:
        pass

    def _upload_chunk(self, final: bool = False) -> bool:
        self._check()
        try:
            self._upload(final)
        except BaseException:
            # What of it is stored is not known: it is not put a second time.
            self._is_broken = True
            raise
        return True

    def _check(self) -> None:
        if self._is_broken:
            raise OSError(f"{self.path}: a write failed, and the file was not written")

    def _upload(self, final: bool) -> None:
        self._rest += self.buffer.getvalue()
        whole = len(self._rest) // PART_BYTES * PART_BYTES
        is_small = self._put == 0 and len(self._rest) <= WHOLE_BYTES_MAX
        if final and not (is_small and not self._rest.startswith(MAGIC)):
            whole = len(self._rest)
        names = _Content(0, None, self._id, PART_BYTES)
        for at in range(0, whole, _AT_ONCE * PART_BYTES):
            some = self._rest[at : min(at + _AT_ONCE * PART_BYTES, whole)]
            begins = range(0, len(some), PART_BYTES)
            first = self._put // PART_BYTES
            parts = [
                (names.part(first + number), some[begin : begin + PART_BYTES])
                for number, begin in enumerate(begins)
            ]
            self.fs.store.put_many(parts, durable=True)
            self._put += len(some)
        self._rest = self._rest[whole:]
        if final and self.autocommit:
            self.commit()

    def commit(self) -> None:
        """Has the file be there."""
        self._check()
        self._is_asked_for = True
        value = self._rest
        if self._put:
            value = _Content(self._put, None, self._id, PART_BYTES).encode()
        try:
            self.fs._replace(self.path, value, is_new=self._is_new)
        except FileExistsError:
            self.discard()
            raise

    def discard(self) -> None:
        """Has it not be there: what is stored of it goes."""
        parts = _Content(self._put, None, self._id, PART_BYTES).parts()
        self._put, self._rest = 0, b""
        self.fs.store.delete_many(parts)

    def close(self) -> None:
        """Has a file that was written be there; one that could not be is an `OSError`."""
        if self._is_broken and not self.closed:
            self.closed = True
            # Its parts may be those of a file that is there by now.
            if not self._is_asked_for:
                with contextlib.suppress(Exception):
                    self.discard()
            self._check()
        super().close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            super().__del__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self.mode != "rb" and not self.closed:
            self.closed = True
            self.discard()
        else:
            self.close()


class _Text(io.TextIOWrapper):
    def __exit__(self, *error: Any) -> None:
        if error[0] is not None and isinstance(self.buffer, CenoteFile):
            self.buffer.__exit__(*error)
        super().__exit__(*error)


def _host(path: str) -> str | None:
    """HOST:PORT at the beginning of a URL's path; a path without it has none."""
    first = path.partition("/")[0]
    return first if re.fullmatch(r"(?:[^:\0]+|\[[0-9a-fA-F:]+\]):\d{1,5}", first) else None


def _file(name: str, value: bytes, version: int | None) -> dict[str, Any]:
    try:
        said = {"name": name, "size": _content(name, value).size, "type": "file"}
    except OSError:
        # One that cannot be read does not hide the others.
        said = {"name": name, "size": len(value), "type": "other"}
    return said if version is None else {**said, "version": version}

"""Why something was not done. Each class says what to do, and whether trying again may help."""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Of all that this package raises itself. ``str()`` of one ends with what to do."""

    #: What to do.
    hint: ClassVar[str] = ""
    #: Whether the same may succeed later, as it is.
    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        said = super().__str__()
        return f"{said} ({self.hint})" if self.hint else said


class ConfigurationError(Error, ValueError):
    """A cluster file, a key, an address or a size makes no sense."""

    hint = "nothing was done: correct it"


class TooFewHostsError(Error, ConnectionError):
    """Fewer hosts answer than the scheme needs."""

    hint = "start hosts, or wait for them, and try again; `cenote status` says which are there"
    retryable = True


class UnreachableError(Error, ConnectionError):
    """No store, or no manager of the cache, answers. Nothing was done."""

    hint = "start it (`cenote cache start`, `cenote store serve`), and try again"
    retryable = True


class ConnectionLostError(Error, ConnectionError):
    """The connection ended before the answer came."""

    hint = "read what is there before trying again: the change may have been made"


class UnavailableError(Error, OSError):
    """A region of a cache was out of reach for too long. A write may have happened in part."""

    hint = "try again; a write has to be repeated whole"
    retryable = True


class DataLostError(Error, OSError):
    """More hosts are gone, or silent, than the scheme survives. No wrong bytes come instead."""

    hint = "write the range again, or wait for hosts that are only silent"


class CorruptError(Error, OSError):
    """What hosts hold disagrees, and nothing tells which of it is right."""

    hint = "write the range again, and look for the host that is at fault: `cenote volume status`"


class NoSpaceError(Error, OSError):
    """Hosts, or the store, have no memory left. Nothing was changed."""

    hint = "discard or delete something, or add hosts; then try again"
    retryable = True


class OutOfRangeError(Error, IndexError):
    """The range passes the end."""

    hint = "compare with `size`"


class ClosedError(Error, ValueError):
    """It was closed."""

    hint = "open it again"


class ForkedError(Error, RuntimeError):
    """It was opened before this process was forked, and belongs to the parent."""

    hint = "open it in the child, or start processes by 'spawn'"


class GoneError(Error):
    """The cache was deleted, or its time is over."""

    hint = "create another one: `cenote cache create`"


class ConditionError(Error):
    """The object has another version than the change was to be made upon. Nothing was changed.

    ``found`` is the version that it has; None: there is no such object.
    """

    hint = "get it, and decide again"

    def __init__(self, said: str, found: int | None = None) -> None:
        super().__init__(said)
        self.found = found


class BusyError(Error):
    """The store has too much to do. Nothing was changed."""

    hint = "try again later"
    retryable = True


class RefusedError(Error):
    """The other end, or the system, refuses."""

    hint = "its log says more"

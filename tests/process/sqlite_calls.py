"""Kills this process at a call by which SQLite changes files: SQLite's own seam for system calls, by ctypes.

The calls are those of the unix VFS (sqlite3_vfs.xSetSystemCall), beneath all locks and caches of SQLite. What
it does without one, by fsync and by the mapped -shm file, changes nothing that outlives the process and that
the next one believes.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import itertools
import os
import signal
from collections.abc import Callable
from typing import Any, ClassVar

_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_long, ctypes.c_void_p
#: Result and arguments of each.
_CALLS: dict[str, tuple[Any, list[Any]]] = {
    "open": (_INT, [ctypes.c_char_p, _INT, _INT]),
    "write": (_LONG, [_INT, _POINTER, ctypes.c_size_t]),
    "pwrite": (_LONG, [_INT, _POINTER, ctypes.c_size_t, _LONG]),
    "pwrite64": (_LONG, [_INT, _POINTER, ctypes.c_size_t, _LONG]),
    "ftruncate": (_INT, [_INT, _LONG]),
    "unlink": (_INT, [ctypes.c_char_p]),
}
_WRITES = ("write", "pwrite", "pwrite64")
_kept: list[Any] = []  # what SQLite calls must not be collected


class _Vfs(ctypes.Structure):
    """Up to what is used of it (sqlite3.h)."""

    _fields_: ClassVar = [
        ("version", _INT),
        ("file_size", _INT),
        ("most_path", _INT),
        *((name, _POINTER) for name in ("next", "name", "data")),
        *((f"method{number}", _POINTER) for number in range(13)),
        ("set_system_call", ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.c_char_p, _POINTER)),
        ("get_system_call", ctypes.CFUNCTYPE(_POINTER, _POINTER, ctypes.c_char_p)),
    ]


def on_each_call(before: Callable[[str], bool]) -> None:
    """Call `before` with the name of each call, on whatever thread. True: the call is done, half of a write,
    and then `before` is called with "done"."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = _POINTER
    found = library.sqlite3_vfs_find(None)
    vfs = _Vfs.from_address(found)
    for name, (result, arguments) in _CALLS.items():
        kind = ctypes.CFUNCTYPE(result, *arguments, use_errno=True)
        address = vfs.get_system_call(found, name.encode())
        if not address:
            continue  # not on this system
        replacement = kind(_replacing(name, kind(address), before))
        _kept.append(replacement)
        assert vfs.set_system_call(found, name.encode(), ctypes.cast(replacement, _POINTER)) == 0


def _replacing(name: str, original: Any, before: Callable[[str], bool]) -> Callable[..., int]:
    def call(*arguments: Any) -> int:
        if before(name):
            if name in _WRITES:
                file, data, size, *place = arguments
                arguments = (file, data, size // 2, *place)
            original(*arguments)
            before("done")
        return int(original(*arguments))

    return call


def kill_at(number: int, *, torn: bool = False) -> Callable[[], int]:
    """SIGKILL before the call of this number, counted from 1 on; `torn`: in the middle of a write, behind
    other calls; 0: never. How many there were."""
    counter = itertools.count(1)
    reached = [0]

    def before(name: str) -> bool:
        if name == "done":
            os.kill(os.getpid(), signal.SIGKILL)
        at = reached[0] = next(counter)
        if at == number and not torn:
            os.kill(os.getpid(), signal.SIGKILL)
        return at == number

    on_each_call(before)
    return lambda: reached[0]

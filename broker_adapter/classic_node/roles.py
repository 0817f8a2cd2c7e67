"""The role of a classic broker, which people decide: what the directory says of it, and who is told.

`config/role.json` of the store directory holds the newest decision, with how often a master was made. Without
it the configuration decides.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from broker_adapter.errors import Status, StoredDataDamaged
from dledger import Role, RoleEvent
from dledger.platform import Disk, read_file, replace_file

_log = structlog.get_logger(part="role")
_FILE = "role.json"


class RoleRecord(NamedTuple):
    """`term`: grows with each master that is made of this broker. `role_epoch`: with each change."""

    is_master: bool
    term: int
    role_epoch: int

    def changed(self, is_master: bool, now_ms: int) -> RoleRecord:
        """The role epoch is a time: NameServers of RocketMQ go by it."""
        epoch = max(self.role_epoch + 1, now_ms)
        return RoleRecord(is_master, self.term + is_master, epoch)


def read_role(disk: Disk, directory: Path, *, is_master: bool) -> RoleRecord:
    """What was decided last; `is_master`: without any decision. STORE_TABLE_DAMAGED."""
    try:
        found = json.loads(read_file(disk, directory / _FILE))
        numbers = found["term"], found["roleEpoch"]
        are_numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
        if type(found["isMaster"]) is not bool or not are_numbers:
            raise ValueError(f"{found}")
        return RoleRecord(found["isMaster"], *numbers)
    except FileNotFoundError:
        return RoleRecord(is_master, 0, 0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{directory / _FILE}: {error!r}"[:300]
        raise StoredDataDamaged(Status.STORE_TABLE_DAMAGED, text) from None


def write_role(disk: Disk, directory: Path, record: RoleRecord) -> None:
    """Durable on return. OSError."""
    if not disk.exists(directory):
        disk.mkdir(directory)
        disk.sync_directory(directory.parent)
    value = {"isMaster": record.is_master, "term": record.term, "roleEpoch": record.role_epoch}
    replace_file(disk, directory / _FILE, json.dumps(value).encode())


class RoleTeller:
    """Tells listeners of each change, in order, as a NodeServer does."""

    def __init__(self) -> None:
        self.current: RoleEvent | None = None
        self._listeners: list[Callable[[RoleEvent], None]] = []

    def listen(self, listener: Callable[[RoleEvent], None]) -> None:
        """It is called at once if anything was told before."""
        self._listeners.append(listener)
        if self.current is not None:
            self._tell(listener, self.current)

    def announce(self, event: RoleEvent) -> None:
        self.current = event
        _log.info("role", role=event.role.value, term=event.term, role_epoch=event.role_epoch)
        for listener in list(self._listeners):
            self._tell(listener, event)

    @property
    def leads(self) -> bool:
        return self.current is not None and self.current.role is Role.LEADER

    def _tell(self, listener: Callable[[RoleEvent], None], event: RoleEvent) -> None:
        try:
            listener(event)
        except Exception as error:
            _log.error("a listener to changes of role failed", exc_info=error, role=event.role.value)

"""The manually assigned role of a classic broker: its file and its listeners.

`config/role.json` in the store directory contains the latest role and the number of times that this broker
became master. If the file does not exist, the configuration determines the role.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import structlog

from broker_adapter.errors import Status, StoredDataDamaged
from dledger import Role, RoleEvent
from dledger.infra.files.disk import Disk, read_file, replace_file

_log = structlog.get_logger(part="role")
_FILE = "role.json"


class RoleRecord(NamedTuple):
    """A stored role.

    `term` increases whenever this broker becomes master, and `role_epoch` with each change.
    """

    is_master: bool
    term: int
    role_epoch: int

    def changed(self, is_master: bool, now_ms: int) -> RoleRecord:
        """Return the record of the next role.

        Its role epoch is a timestamp, because RocketMQ's NameServers compare the epochs of different brokers.
        """
        epoch = max(self.role_epoch + 1, now_ms)
        return RoleRecord(is_master, self.term + is_master, epoch)


def read_role(disk: Disk, directory: Path, *, is_master: bool) -> RoleRecord:
    """Read the stored role. `is_master`: the role if none is stored. Raises STORE_TABLE_DAMAGED."""
    try:
        stored = json.loads(read_file(disk, directory / _FILE))
        numbers = stored["term"], stored["roleEpoch"]
        are_numbers = all(type(number) is int and 0 <= number < 1 << 63 for number in numbers)
        if type(stored["isMaster"]) is not bool or not are_numbers:
            raise ValueError(f"{stored}")
        return RoleRecord(stored["isMaster"], *numbers)
    except FileNotFoundError:
        return RoleRecord(is_master, 0, 0)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        text = f"{directory / _FILE}: {error!r}"[:300]
        raise StoredDataDamaged(Status.STORE_TABLE_DAMAGED, text) from None


def write_role(disk: Disk, directory: Path, record: RoleRecord) -> None:
    """Store the role durably. Raises OSError."""
    if not disk.exists(directory):
        disk.mkdir(directory)
        disk.sync_directory(directory.parent)
    value = {"isMaster": record.is_master, "term": record.term, "roleEpoch": record.role_epoch}
    replace_file(disk, directory / _FILE, json.dumps(value).encode())


class RoleNotifier:
    """Notifies listeners of role changes in order, as a NodeServer does."""

    def __init__(self) -> None:
        self.current: RoleEvent | None = None
        self._listeners: list[Callable[[RoleEvent], None]] = []

    def listen(self, listener: Callable[[RoleEvent], None]) -> None:
        """Add a listener. If there is a current role, the listener is called with it immediately."""
        self._listeners.append(listener)
        if self.current is not None:
            self._notify(listener, self.current)

    def announce(self, event: RoleEvent) -> None:
        self.current = event
        _log.info("role", role=event.role.value, term=event.term, role_epoch=event.role_epoch)
        for listener in list(self._listeners):
            self._notify(listener, event)

    @property
    def leads(self) -> bool:
        return self.current is not None and self.current.role is Role.LEADER

    def _notify(self, listener: Callable[[RoleEvent], None], event: RoleEvent) -> None:
        try:
            listener(event)
        except Exception as error:
            _log.error("a role listener failed", exc_info=error, role=event.role.value)

"""Settings by namespace and key, in one JSON file (RocketMQ's kvConfig.json). Each change replaces the file.

Methods that write wait for the disk. Call them on a thread and never concurrently. Reads may run
concurrently.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import NameServerRefused, NameServerUnavailable, Status, StoredDataDamaged
from broker_adapter.namesrv.values import check_name
from dledger.infra.files.disk import Disk, read_file, replace_file

FILE_NAME = "kvConfig.json"
#: The key of RocketMQ's file, so that RocketMQ and this project can read each other's files.
_TABLE = "configTable"

_Table = dict[str, dict[str, str]]


class KvLimits(NamedTuple):
    """Limits of settings.

    A put that would exceed a limit is refused with NAMESRV_CONFIG_LIMIT. Sizes refer to the JSON text, in
    which a control character takes six bytes.
    """

    max_value_bytes: int = 64 << 10
    max_entries: int = 10_000
    max_bytes: int = 2 << 20  # of names, keys and values together: a whole namespace is sent in one response


class KvConfig:
    """Durable settings. A value is on disk when `put` returns."""

    def __init__(self, path: Path, disk: Disk, limits: KvLimits | None = None) -> None:
        """Load the file if it exists. Raises StoredDataDamaged (NAMESRV_CONFIG_DAMAGED) or OSError."""
        self._path, self._disk = path, disk
        self._limits = limits or KvLimits()
        self._table: _Table = _load(disk, path)

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))

    def namespaces(self) -> list[str]:
        return sorted(self._table)

    def get(self, namespace: str, key: str) -> str:
        """Return a value. Raises NameServerRefused (NAMESRV_CONFIG_UNKNOWN)."""
        try:
            return self._table[namespace][key]
        except KeyError:
            raise _unknown(namespace, key) from None

    def list(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace. The result is empty if the namespace does not exist."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value.

        Raises NameServerRefused (NAMESRV_INVALID, NAMESRV_CONFIG_LIMIT) or NameServerUnavailable
        (NAMESRV_CONFIG_NOT_STORED).
        """
        check_name("namespace", namespace)
        check_name("key", key)
        if _text_bytes(value) > self._limits.max_value_bytes:
            raise _limit(f"the value exceeds the limit of {self._limits.max_value_bytes} bytes")
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        if sum(map(len, table.values())) > self._limits.max_entries:
            raise _limit(f"the limit of {self._limits.max_entries} entries is reached")
        if _size(table) > self._limits.max_bytes:
            raise _limit(f"all entries together would exceed {self._limits.max_bytes} bytes")
        self._replace(table)

    def delete(self, namespace: str, key: str) -> None:
        """Delete a value.

        Raises NameServerRefused (NAMESRV_CONFIG_UNKNOWN) or NameServerUnavailable
        (NAMESRV_CONFIG_NOT_STORED).
        """
        if key not in self._table.get(namespace, {}):
            raise _unknown(namespace, key)
        table = {**self._table, namespace: {k: v for k, v in self._table[namespace].items() if k != key}}
        if not table[namespace]:
            del table[namespace]
        self._replace(table)

    def _replace(self, table: _Table) -> None:
        content = json.dumps({_TABLE: table}, ensure_ascii=False, indent=1, sort_keys=True).encode()
        try:
            replace_file(self._disk, self._path, content)
        except OSError as error:
            raise NameServerUnavailable(
                Status.NAMESRV_CONFIG_NOT_STORED,
                f"{self._path}: {error.strerror or error}; until the next successful change, the settings "
                "after a restart are uncertain",
            ) from error
        self._table = table


def _load(disk: Disk, path: Path) -> _Table:
    try:
        content = read_file(disk, path)
    except FileNotFoundError:
        return {}
    try:
        table = json.loads(content)[_TABLE]
        return {_text(name): {_text(k): _text(v) for k, v in keys.items()} for name, keys in table.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StoredDataDamaged(
            Status.NAMESRV_CONFIG_DAMAGED,
            f"{path} is unreadable ({type(error).__name__}: {error}): repair it, restore a backup, or "
            "move it away to start without settings",
        ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    value.encode()  # JSON may contain lone surrogates, which cannot be encoded
    return value


def _size(table: Mapping[str, Mapping[str, str]]) -> int:
    return sum(
        _text_bytes(name) + _text_bytes(key) + _text_bytes(value)
        for name, keys in table.items()
        for key, value in keys.items()
    )


def _text_bytes(text: str) -> int:
    """Return the size of a text in JSON, not including the quotes."""
    return len(encode_basestring(text).encode()) - 2


def _unknown(namespace: str, key: str) -> NameServerRefused:
    return NameServerRefused(Status.NAMESRV_CONFIG_UNKNOWN, f"namespace {namespace!r} has no key {key!r}")


def _limit(what: str) -> NameServerRefused:
    return NameServerRefused(Status.NAMESRV_CONFIG_LIMIT, what)

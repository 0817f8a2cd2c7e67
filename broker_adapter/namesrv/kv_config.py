"""Settings by namespace and key, in one JSON file (RocketMQ's kvConfig.json), replaced whole at each change.

Methods that write wait for the disk: call them on a thread. One at a time; reads may come meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from pathlib import Path
from typing import NamedTuple

from broker_adapter.errors import NameServerRefused, NameServerUnavailable, Status, StoredDataDamaged
from broker_adapter.namesrv.values import check_name
from dledger.platform import Disk, read_file, replace_file

FILE_NAME = "kvConfig.json"
#: RocketMQ's name for all of it, so that its file can be taken over, and ours be read.
_TABLE = "configTable"

_Table = dict[str, dict[str, str]]


class KvLimits(NamedTuple):
    """Past these a put is refused with NAMESRV_CONFIG_LIMIT. Bytes are those of the JSON text for clients,
    in which a control character takes six."""

    max_value_bytes: int = 64 << 10
    max_entries: int = 10_000
    max_bytes: int = 2 << 20  # names, keys and values together; it all goes into one answer


class KvConfig:
    """What was put is on the disk when `put` returns."""

    def __init__(self, path: Path, disk: Disk, limits: KvLimits | None = None) -> None:
        """StoredDataDamaged (NAMESRV_CONFIG_DAMAGED) if there is a file that cannot be used. OSError."""
        self._path, self._disk = path, disk
        self._limits = limits or KvLimits()
        self._table: _Table = _load(disk, path)

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))

    def namespaces(self) -> list[str]:
        return sorted(self._table)

    def get(self, namespace: str, key: str) -> str:
        """NameServerRefused (NAMESRV_CONFIG_UNKNOWN)."""
        try:
            return self._table[namespace][key]
        except KeyError:
            raise _unknown(namespace, key) from None

    def list(self, namespace: str) -> dict[str, str]:
        """All of a namespace; empty if there is no such."""
        return dict(self._table.get(namespace, {}))

    def put(self, namespace: str, key: str, value: str) -> None:
        """NameServerRefused (NAMESRV_INVALID, _CONFIG_LIMIT); NameServerUnavailable (_CONFIG_NOT_STORED)."""
        check_name("namespace", namespace)
        check_name("key", key)
        if _text_bytes(value) > self._limits.max_value_bytes:
            raise _limit(f"the value takes more than {self._limits.max_value_bytes} bytes")
        table = {**self._table, namespace: {**self._table.get(namespace, {}), key: value}}
        if sum(map(len, table.values())) > self._limits.max_entries:
            raise _limit(f"there are {self._limits.max_entries} entries")
        if _size(table) > self._limits.max_bytes:
            raise _limit(f"all entries together may take {self._limits.max_bytes} bytes")
        self._replace(table)

    def delete(self, namespace: str, key: str) -> None:
        """NameServerRefused (NAMESRV_CONFIG_UNKNOWN); NameServerUnavailable (NAMESRV_CONFIG_NOT_STORED)."""
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
                f"{self._path}: {error.strerror or error}; until the next change that succeeds it is not "
                "sure what a restart will find",
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
            f"{path} cannot be used ({type(error).__name__}: {error}): put it right or back from a copy, or "
            "move it away, to start without any settings",
        ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # JSON may name halves of characters, which nobody can be sent
    return value


def _size(table: Mapping[str, Mapping[str, str]]) -> int:
    return sum(
        _text_bytes(name) + _text_bytes(key) + _text_bytes(value)
        for name, keys in table.items()
        for key, value in keys.items()
    )


def _text_bytes(text: str) -> int:
    """Of it in JSON, without its quotes."""
    return len(encode_basestring(text).encode()) - 2


def _unknown(namespace: str, key: str) -> NameServerRefused:
    return NameServerRefused(Status.NAMESRV_CONFIG_UNKNOWN, f"namespace {namespace!r} has no key {key!r}")


def _limit(what: str) -> NameServerRefused:
    return NameServerRefused(Status.NAMESRV_CONFIG_LIMIT, what)

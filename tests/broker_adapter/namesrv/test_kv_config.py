"""Settings: what was put is there after a restart, whatever happens in between."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from broker_adapter.errors import BrokerError, NameServerUnavailable, Status, StoredDataDamaged
from broker_adapter.namesrv.kv_config import FILE_NAME, KvConfig, KvLimits
from dledger.infra.files.disk import OsDisk


class Crash(BaseException):
    """The process is gone."""


class CrashingDisk(OsDisk):
    """The machine's files, until an operation at which the process dies or the disk fails."""

    def __init__(self, operation: str = "", error: BaseException | None = None) -> None:
        self.operation, self.error = operation, error or Crash()

    def _at(self, operation: str) -> None:
        if operation == self.operation:
            raise self.error

    def fdatasync(self, handle: int) -> None:
        self._at("fdatasync")
        super().fdatasync(handle)

    def rename(self, old: Path, new: Path) -> None:
        self._at("rename")
        super().rename(old, new)

    def sync_directory(self, path: Path) -> None:
        self._at("sync_directory")
        super().sync_directory(path)


def opened(folder: Path, disk: OsDisk | None = None, limits: KvLimits | None = None) -> KvConfig:
    return KvConfig(folder / FILE_NAME, disk or OsDisk(), limits)


def test_what_was_put_is_there_after_a_restart(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4")
    kv.put("ORDER_TOPIC_CONFIG", "paid", "ключ")
    kv.put("other", "k", "")
    kv.put("other", "k", "v")
    kv = opened(tmp_path)
    assert kv.list("ORDER_TOPIC_CONFIG") == {"orders": "broker-a:4", "paid": "ключ"}
    assert (kv.get("other", "k"), kv.namespaces(), len(kv)) == ("v", ["ORDER_TOPIC_CONFIG", "other"], 3)
    kv.delete("other", "k")
    assert opened(tmp_path).namespaces() == ["ORDER_TOPIC_CONFIG"]


def test_the_file_is_rocketmqs(tmp_path: Path) -> None:
    opened(tmp_path).put("ns", "k", "v")
    assert json.loads((tmp_path / FILE_NAME).read_text()) == {"configTable": {"ns": {"k": "v"}}}


@pytest.mark.parametrize("operation", ["fdatasync", "rename"])
def test_a_crash_before_the_rename_leaves_the_old_settings(tmp_path: Path, operation: str) -> None:
    opened(tmp_path).put("ns", "k", "old")
    with pytest.raises(Crash):
        opened(tmp_path, CrashingDisk(operation)).put("ns", "k", "new")
    kv = opened(tmp_path)
    assert kv.get("ns", "k") == "old"
    kv.put("ns", "k", "newer")  # what was left behind is in nobody's way
    assert opened(tmp_path).get("ns", "k") == "newer"


def test_a_crash_after_the_rename_leaves_the_new_settings_whole(tmp_path: Path) -> None:
    opened(tmp_path).put("ns", "k", "old")
    with pytest.raises(Crash):
        opened(tmp_path, CrashingDisk("sync_directory")).put("ns", "k", "new")
    assert opened(tmp_path).get("ns", "k") == "new"


@pytest.mark.parametrize("operation", ["fdatasync", "rename", "sync_directory"])
def test_a_disk_that_fails_is_told_and_nothing_changes_in_memory(tmp_path: Path, operation: str) -> None:
    disk = CrashingDisk("", OSError(errno.ENOSPC, "no space left"))
    kv = opened(tmp_path, disk)
    kv.put("ns", "k", "old")
    disk.operation = operation
    with pytest.raises(NameServerUnavailable, match="no space left") as caught:
        kv.put("ns", "k", "new")
    assert caught.value.status is Status.NAMESRV_CONFIG_NOT_STORED
    assert kv.get("ns", "k") == "old"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"configTable": 3}',
        b'{"configTable": {"a": {"b": 3}}}',
        b"null",
        100_000 * b"[",
    ],
)
def test_a_broken_file_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(StoredDataDamaged, match="move it away") as caught:
        opened(tmp_path)
    assert caught.value.status is Status.NAMESRV_CONFIG_DAMAGED
    assert str(tmp_path / FILE_NAME) in str(caught.value)
    assert (tmp_path / FILE_NAME).read_bytes() == content


@pytest.mark.parametrize(
    ("namespace", "key", "value", "status"),
    [
        ("", "k", "v", Status.NAMESRV_INVALID),
        ("n s", "k", "v", Status.NAMESRV_INVALID),
        ("ns", "", "v", Status.NAMESRV_INVALID),
        ("ns", "k" * 256, "v", Status.NAMESRV_INVALID),
        ("ns", "k", "é" * 6, Status.NAMESRV_CONFIG_LIMIT),
        ("ns", "third", "v", Status.NAMESRV_CONFIG_LIMIT),
        ("a", "three", "x" * 10, Status.NAMESRV_CONFIG_LIMIT),
    ],
)
def test_limits(tmp_path: Path, namespace: str, key: str, value: str, status: Status) -> None:
    kv = opened(tmp_path, limits=KvLimits(max_value_bytes=10, max_entries=2, max_bytes=24))
    kv.put("a", "one", "x" * 10)
    if status is not Status.NAMESRV_CONFIG_LIMIT or key != "three":
        kv.put("a", "two", "")
    with pytest.raises(BrokerError) as caught:
        kv.put(namespace, key, value)
    assert caught.value.status is status


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    kv.put("ns", "k", "v")
    for namespace, key in (("ns", "x"), ("x", "k")):
        for ask in (kv.get, kv.delete):
            with pytest.raises(BrokerError) as caught:
                ask(namespace, key)
            assert caught.value.status is Status.NAMESRV_CONFIG_UNKNOWN
    assert kv.list("x") == {}


def test_limits_are_those_of_the_text_that_clients_get(tmp_path: Path) -> None:
    """Two MiB of control characters were an answer of twelve, for each registration of a broker."""
    kv = opened(tmp_path, limits=KvLimits(max_value_bytes=12, max_entries=9, max_bytes=40))
    kv.put("n", "k", "\x01" * 2)
    with pytest.raises(BrokerError) as refused:
        kv.put("n", "k", "\x01" * 3)
    assert refused.value.status is Status.NAMESRV_CONFIG_LIMIT
    kv.put("n", "l", '""\\\\ab')  # ten bytes
    kv.put("n", "m", "\u00e9" * 4)
    with pytest.raises(BrokerError, match="all entries together"):
        kv.put("n", "o", "1234")
    assert len(kv) == 3

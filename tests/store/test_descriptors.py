"""Descriptors run out: files wait for one, and nothing fails."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger import ConfigError
from dledger.infra.files import descriptors as module
from dledger.infra.files import disk
from dledger.infra.files.descriptors import MIN_LIMIT, DescriptorReserve, raise_limit
from dledger.infra.files.disk import OsDisk


@pytest.fixture
def reserve() -> Iterator[DescriptorReserve]:
    found = DescriptorReserve()
    yield found
    found.release_all()


class Exhausted:
    """`os.open` of a process that has `free` descriptors left; the null device counts, too."""

    def __init__(self, patch: pytest.MonkeyPatch, free: int, number: int = errno.EMFILE) -> None:
        self.free = free
        self._number = number
        self._open, self._close = os.open, os.close
        patch.setattr(module.os, "open", self.open)
        patch.setattr(module.os, "close", self.close)

    def open(self, *arguments: object, **options: object) -> int:
        if not self.free:
            raise OSError(self._number, "Too many open files")
        self.free -= 1
        return self._open(*arguments, **options)  # type: ignore[arg-type]

    def close(self, handle: int) -> None:
        self._close(handle)
        self.free += 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE], ids=["of the process", "of the machine"])
def test_a_file_gets_a_descriptor_of_the_reserve(
    number: int, reserve: DescriptorReserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Path] = []
    process = Exhausted(monkeypatch, 3, number)
    reserve.hold(3, told.append)
    assert process.free == 0
    handles = [reserve.open_file(tmp_path / f"{n}", os.O_RDWR | os.O_CREAT) for n in range(3)]
    assert told == [tmp_path / "0"], "once a second"
    for handle in handles:
        os.close(handle)
    reserve.refill()
    assert process.free == 0, "it is full again"


def test_a_file_that_is_closed_gives_the_reserve_back_what_it_took(
    reserve: DescriptorReserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the second shortage would find none."""
    process = Exhausted(monkeypatch, 3)
    monkeypatch.setattr(module, "sleep", lambda _: pytest.fail("there is a reserve to be had"))
    monkeypatch.setattr(disk, "descriptors", reserve)
    reserve.hold(3)
    for _ in range(5):
        handles = [OsDisk().open(tmp_path / f"{n}", create=True) for n in range(2)]
        for handle in handles:
            OsDisk().close(handle)
        assert process.free == 0


def test_without_any_left_a_file_waits_until_one_is_free(
    reserve: DescriptorReserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Exhausted(monkeypatch, 1)
    reserve.hold(1)
    first = reserve.open_file(tmp_path / "first", os.O_RDWR | os.O_CREAT)
    naps: list[float] = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            process.close(first)

    monkeypatch.setattr(module, "sleep", nap)
    second = reserve.open_file(tmp_path / "second", os.O_RDWR | os.O_CREAT)
    assert len(naps) == 3 and os.fstat(second)
    process.close(second)


def test_other_errors_and_processes_without_a_reserve_are_told_at_once(
    reserve: DescriptorReserve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FileNotFoundError):
        reserve.open_file(tmp_path / "none", os.O_RDONLY)
    Exhausted(monkeypatch, 0)
    with pytest.raises(OSError, match="Too many open files"):
        reserve.open_file(tmp_path / "none", os.O_RDWR | os.O_CREAT)


@pytest.mark.parametrize("hard", [256, MIN_LIMIT - 1])
def test_a_process_that_may_have_too_few_is_not_started_and_told_what_to_do(
    hard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(128, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limits.append(found))
    with pytest.raises(ConfigError, match="ulimit -n 1024"):
        raise_limit()


def test_the_soft_limit_is_raised_to_the_hard_one(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(256, 4096)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, found: limits.append(found))
    assert raise_limit() == 4096

"""Signals while a local cluster starts: they stop it, and end no step in the middle."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dledger.cli.local.cluster_commands import stopping_after_failure
from dledger.cli.local.local_cluster import LocalCluster


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    cluster = LocalCluster.create(tmp_path / "c", nodes=1, base_port=0)
    stopped: list[bool] = []
    monkeypatch.setattr(cluster, "stop", lambda: stopped.append(True))
    yield cluster
    assert stopped == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_effect_at_the_next_step(cluster: LocalCluster, number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), stopping_after_failure(cluster):
        signal.raise_signal(number)
        steps = 1
        cluster.start()
        steps += 1
    assert steps == 1 and not cluster.running()


def test_a_signal_in_the_last_step_still_stops_the_cluster(cluster: LocalCluster) -> None:
    with pytest.raises(KeyboardInterrupt), stopping_after_failure(cluster):
        signal.raise_signal(signal.SIGINT)


def test_a_second_signal_ends_a_step_that_hangs(cluster: LocalCluster) -> None:
    with pytest.raises(KeyboardInterrupt), stopping_after_failure(cluster):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")

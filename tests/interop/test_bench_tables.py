"""The table of `make bench-rocketmq`."""

from __future__ import annotations

import pytest

from .bench_client import show


def test_a_figure_without_its_peer_is_not_measured_and_has_no_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show("DLedger", {"sends": 200, "failed": 0, "proxy": 7}, {"sends": 300, "failed": 4, "over gRPC": 878})
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["sends", "200", "300", "1.50"],
        ["failed", "0", "4", "not measured"],
        ["proxy", "7", "not measured", "not measured"],
        ["over gRPC", "not measured", "878", "not measured"],
    ]

"""The table of `make bench-rocketmq`."""

from __future__ import annotations

import pytest

from .bench_client import Figure, Table


def test_a_figure_without_its_peer_is_not_measured_and_has_no_ratio(
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = Table("DLedger")
    for name, value in {"sends": 200, "failed": 0, "proxy": 7}.items():
        table.theirs.add(name, Figure(value, {}))
    table.ours.add("sends", Figure(300, {"master": 20.2, "client": 3}))
    table.ours.add("failed", Figure(4, {}))
    table.ours.add("over gRPC", Figure(878, {}))
    as_measured = capsys.readouterr().out.splitlines()
    assert as_measured[3] == "ours, DLedger: sends: 300; CPU µs per message: master 20, client 3"
    table.show()
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [[cell.strip() for cell in row] for row in rows] == [
        ["sends", "200", "300", "1.50", "", "master 20, client 3"],
        ["failed", "0", "4", "not measured", "", ""],
        ["proxy", "7", "not measured", "not measured", "", ""],
        ["over gRPC", "not measured", "878", "not measured", "", ""],
    ]


def test_a_table_without_figures_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    Table("DLedger").show()
    assert not capsys.readouterr().out

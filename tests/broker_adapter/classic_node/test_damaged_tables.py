"""A damaged or missing table with the version before beside it, and our first write of the tables."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from broker_adapter.api import GroupConfig, TopicConfig
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.log.classic.tables import table_at
from broker_adapter.metadata.commands import DeleteTopic, PutGroup, PutTopic
from broker_adapter.metadata.state import MetadataState
from broker_adapter.server import classic_tables
from broker_adapter.server.classic_tables import TableWriter
from broker_adapter.server.log_host import BrokerParts
from broker_adapter.server.table_base import prepared_path
from dledger.infra.files.disk import OsDisk

from .test_adopted_tables import EndingDisk, _Ended, applied, start_again, write_now


def writer_of(folder: Path, metadata: MetadataState) -> TableWriter:
    parts = SimpleNamespace(metadata=metadata, delivery_state=DeliveryState())
    return TableWriter(folder, cast(BrokerParts, parts), applied)


def written(folder: Path) -> MetadataState:
    metadata = MetadataState()
    for topic in ("deleted", "kept"):
        metadata.adopt(PutTopic(TopicConfig(topic, 1, 1)))
    metadata.adopt(PutGroup(GroupConfig("g")))
    write_now(writer_of(folder, metadata))
    return metadata


def damage(path: Path, content: bytes | None) -> None:
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{", b"[]", None])
def test_a_damaged_table_is_repaired_wherever_our_first_write_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    """A topic that was deleted before the write stays deleted, and no other one is lost."""
    number, is_done = 0, False
    while not is_done:
        number += 1
        folder = tmp_path / f"{number}"
        metadata = written(folder)
        damage(folder / "topics.json", content)
        start_again(folder, metadata)
        metadata.adopt(DeleteTopic("deleted"))
        disk = EndingDisk(number)
        monkeypatch.setattr(classic_tables, "OsDisk", lambda disk=disk: disk)
        try:
            write_now(writer_of(folder, metadata))
            is_done = True
        except _Ended:
            pass
        monkeypatch.setattr(classic_tables, "OsDisk", OsDisk)
        start_again(folder, metadata)
        assert sorted(metadata.topics) == ["kept"], number
        write_now(writer_of(folder, metadata))
        assert list(table_at(folder / "topics.json")["topicConfigTable"]) == ["kept"], number
        json.loads((folder / "topics.json").read_bytes())
        json.loads((folder / "topics.json.bak").read_bytes())
    assert number > 5


@pytest.mark.parametrize("content", [b"", None])
def test_a_damaged_table_is_written_again_though_nothing_changed(
    tmp_path: Path, content: bytes | None
) -> None:
    metadata = written(tmp_path)
    before = (tmp_path / "topics.json").read_bytes()
    damage(tmp_path / "topics.json", content)
    start_again(tmp_path, metadata)
    write_now(writer_of(tmp_path, metadata))
    assert (tmp_path / "topics.json").read_bytes() == before
    assert (tmp_path / "topics.json.bak").read_bytes() == before


@pytest.mark.parametrize("content", ["", "[]", '{"topicConfigTable": 7}'])
def test_an_earlier_content_that_cannot_be_read_deletes_nothing(tmp_path: Path, content: str) -> None:
    """Earlier versions of this broker kept what the file had, whatever it was."""
    metadata = written(tmp_path)
    path = tmp_path / "tables_base.json"
    base = json.loads(path.read_bytes())
    tables = {**base["written"]["tables"], "topics.json": content}
    base["before"] = {**base["written"], "tables": tables}
    prepared_path(tmp_path, "topics.json", base["number"]).write_text(
        base["written"]["tables"]["topics.json"]
    )
    path.write_text(json.dumps(base))
    table = json.loads((tmp_path / "topics.json").read_bytes())
    table["topicConfigTable"] = {"kept": {**table["topicConfigTable"]["kept"], "readQueueNums": 7}}
    (tmp_path / "topics.json").write_text(json.dumps(table))
    start_again(tmp_path, metadata)
    assert sorted(metadata.topics) == ["deleted", "kept"]
    assert metadata.topics["kept"].read_queues == 7

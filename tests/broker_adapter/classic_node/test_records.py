"""Records of a CommitLog for the Dispatcher and for readers."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.log.classic.commit_log_files import CommitLogFiles, CommitLogOptions
from broker_adapter.log.classic.node.records import (
    RECORDS,
    ClassicRecords,
    RecordPiece,
    RecordRun,
    whole_units,
)
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.wire.message import BLANK_MAGIC, MessageRecord, encode
from dledger import Code, ReadFailed, StorageError
from dledger.infra.files.disk import OsDisk

FILE_SIZE = 1 << 10


def appended(log: CommitLogFiles, count: int) -> list[tuple[int, int]]:
    """(physical offset, size) of records that were appended."""
    places = []
    for number in range(count):
        size = len(encode(MessageRecord("t", b"%03d" % number, "")))
        (offset,) = log.place([size])
        log.append([bytes(encode(MessageRecord("t", b"%03d" % number, "", physical_offset=offset)))])
        places.append((offset, size))
    return places


def opened(folder: Path) -> CommitLogFiles:
    return open_commit_log(folder, OsDisk(), CommitLogOptions(file_size=FILE_SIZE))


def whole_size(data: bytes, base: int, file_size: int) -> int:
    return sum(unit.total_bytes for unit in whole_units(data, base, file_size))


def test_records_are_read_over_the_borders_of_files_and_alone(tmp_path: Path) -> None:
    log = opened(tmp_path)
    places = appended(log, 30)
    reader = ClassicRecords()
    reader.open(log)
    assert reader.begin_offset == 0
    assert reader.read_records(places) == [reader.record_at(offset) for offset, _ in places]
    assert reader.read_positions(places[::3]) == reader.read_records(places)[::3]
    log.close()


def test_what_is_no_record_is_not_given(tmp_path: Path) -> None:
    log = opened(tmp_path)
    places = appended(log, 30)
    reader = ClassicRecords()
    reader.open(log)
    with pytest.raises(ReadFailed) as missing:
        reader.record_at(places[3][0] + 1)
    assert missing.value.code is Code.INDEX_OUT_OF_RANGE
    with pytest.raises(ReadFailed) as late:
        reader.record_at(log.end_offset)
    assert late.value.code is Code.INDEX_OUT_OF_RANGE
    with pytest.raises(StorageError) as other:
        reader.read_records([(places[3][0], places[3][1] - 1)])
    assert other.value.code is Code.DATA_DAMAGED
    log.flush()
    log.purge_below(2 * FILE_SIZE)
    with pytest.raises(ReadFailed) as purged:
        reader.read_records(places[:1])
    assert purged.value.code is Code.INDEX_LESS_THAN_LOCAL_BEGIN
    log.close()


def test_a_piece_is_cut_behind_whole_records_and_has_them_one_by_one(tmp_path: Path) -> None:
    log = opened(tmp_path)
    places = [place for place in appended(log, 30) if place[0] < FILE_SIZE]
    data = log.read(0, FILE_SIZE)
    assert whole_size(data, 0, FILE_SIZE) == FILE_SIZE, "with the blank at the end of the file"
    assert whole_size(data[: places[2][0] + 5], 0, FILE_SIZE) == places[2][0]
    run = RecordRun(RecordPiece(0, data))
    assert [(entry.pos, len(entry.body)) for entry in run] == places
    assert [entry.index for entry in run] == [entry.pos for entry in run]
    pieces = RECORDS.pieces(run)
    assert pieces is not None and pieces[0].physical_offset(places[1][0]) == places[1][0]
    later = RecordPiece(places[1][0], data[places[1][0] :])
    assert later.physical_offset(0) == later.begin(0)[2] == later.begin(0)[4] == places[1][0]
    log.close()


@pytest.mark.parametrize(
    "data", [bytes(100), struct.pack(">II", 7, BLANK_MAGIC), struct.pack(">II", FILE_SIZE + 1, BLANK_MAGIC)]
)
def test_what_begins_like_no_record_and_no_blank_is_damage(data: bytes) -> None:
    with pytest.raises(StoredDataDamaged, match="neither a record nor a blank"):
        whole_size(data, 0, FILE_SIZE)

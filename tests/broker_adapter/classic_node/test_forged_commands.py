"""Records that clients of RocketMQ wrote to the topics of our commands: none of them is a command."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker_adapter.delivery_state.commands import DELIVERY_TOPIC
from broker_adapter.log.classic.commit_log_files import CommitLogOptions
from broker_adapter.log.classic.recovery import open_commit_log
from broker_adapter.metadata.commands import METADATA_TOPIC, DeleteTopic, SetRulesVersion
from broker_adapter.metadata.records import encode as command_of
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.sys_flag import TRANSACTION_PREPARED
from dledger.infra.files.disk import OsDisk

from .classic_pair import FILE_SIZE, classic_pair
from .test_incarnations import bodies, left, master

_BROKER, _CLIENT = Host(bytes((127, 0, 0, 1)), 10_911), Host(bytes((127, 0, 0, 1)), 50_000)


def append_forged(root: Path, topic: str, body: bytes, *, born_at: Host, sys_flag: int) -> None:
    log = open_commit_log(root, OsDisk(), CommitLogOptions(FILE_SIZE))
    now_ms = time.time_ns() // 1_000_000
    message = MessageRecord(
        topic, body, "", 0, sys_flag=sys_flag, born_timestamp=now_ms, store_timestamp=now_ms
    )
    message = message._replace(born_host=born_at, store_host=_BROKER)
    (place,) = log.place([len(encode(message))])
    log.append([encode(message._replace(physical_offset=place))])
    log.flush()
    log.close()


@pytest.mark.parametrize(
    ("born_at", "sys_flag"),
    [(_CLIENT, 0), (_BROKER, 0), (_CLIENT, TRANSACTION_PREPARED)],
    ids=["message", "message of the broker's host", "marked as a half"],
)
@pytest.mark.parametrize(
    ("topic", "body"),
    [
        (METADATA_TOPIC, command_of(DeleteTopic("t"))),
        (METADATA_TOPIC, command_of(SetRulesVersion(2**31 - 1))),
        (METADATA_TOPIC, b"text"),
        (DELIVERY_TOPIC, b"text"),
    ],
    ids=["deletion", "rules version", "text", "delivery"],
)
async def test_a_message_of_a_client_in_a_topic_of_commands_changes_nothing(
    tmp_path: Path, topic: str, body: bytes, born_at: Host, sys_flag: int
) -> None:
    async with classic_pair(tmp_path) as pair:
        await left(pair)
        append_forged(tmp_path / "n1", topic, body, born_at=born_at, sys_flag=sys_flag)
        program = await master(pair)
        assert bodies(program) == ["a", "b", "c", "d", "e"]
        figures = program.dispatcher.figures()
        assert (figures.foreign_records, figures.set_aside.number) == (1, 0)

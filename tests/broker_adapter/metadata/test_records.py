"""The bytes of commands: pinned, there and back, and nothing else is taken for one."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.api import GroupConfig, QueueOffset, TopicConfig
from broker_adapter.errors import BrokerError, Status, StoredDataDamaged
from broker_adapter.metadata.commands import (
    MAX_OFFSETS_PER_COMMAND,
    MAX_QUEUES_PER_TOPIC,
    METADATA_TOPIC,
    BeginQueue,
    Command,
    CommitOffsets,
    DeleteGroup,
    DeleteTopic,
    ExpireGroup,
    GrantLocks,
    NewGeneration,
    PutGroup,
    PutTopic,
    ReleaseLocks,
    ResetOffsets,
)
from broker_adapter.metadata.records import (
    MAX_COMMAND_BYTES,
    NO_REQUEST,
    Record,
    UnknownCommand,
    decode,
    encode,
)
from broker_adapter.wire.topic_names import MAX_GROUP_LENGTH
from tests.broker_adapter.metadata.samples import (
    ID,
    any_command,
    commit,
    offsets_of,
    put_group,
    put_topic,
    reset,
)

ID_HEX = "000102030405060708090a0b0c0d0e0f"


def json_record(kind: str, payload: str) -> bytes:
    return bytes.fromhex("444d" + kind + "01" + ID_HEX) + payload.encode()


TABLE: list[tuple[Command, bytes]] = [
    (
        PutTopic(TopicConfig("t", 8, 4, 6, 0, True)),
        json_record(
            "01",
            '{"topicName":"t","readQueueNums":8,"writeQueueNums":4,"perm":6,"topicSysFlag":0,"order":true,'
            '"createOnly":false}',
        ),
    ),
    (DeleteTopic("t"), json_record("02", '{"topicName":"t"}')),
    (
        PutGroup(GroupConfig("g"), create_only=True),
        json_record(
            "03",
            '{"groupName":"g","consumeEnable":true,"consumeFromMinEnable":true,"consumeBroadcastEnable":true,'
            '"retryQueueNums":1,"retryMaxTimes":16,"createOnly":true}',
        ),
    ),
    (DeleteGroup("g"), json_record("04", '{"groupName":"g"}')),
    (
        commit("g", 7, ("t", 1, 256), ("u", 0, 5), ("t", 2, 1)),
        bytes.fromhex(
            "444d0502"
            + ID_HEX
            + "000167 0000000000000007 7fffffffffffffff 0000"
            + "0002 000174 000175"
            + "0003"
            + "0000 00000001 0000000000000100"
            + "0001 00000000 0000000000000005"
            + "0000 00000002 0000000000000001"
        ),
    ),
    (
        reset("g", ("t", 0, 3)),
        bytes.fromhex("444d0602" + ID_HEX + "000167 01 0001 000174 0001 0000 00000000 0000000000000003"),
    ),
    (
        NewGeneration("g", frozenset({"m1", "m2"})),
        json_record("07", '{"groupName":"g","topics":[],"members":{"m1":[],"m2":[]}}'),
    ),
    (BeginQueue("t", 3, 1 << 40), json_record("09", '{"topicName":"t","queueId":3,"offset":1099511627776}')),
    (ExpireGroup("g", 7, 9), json_record("08", '{"groupName":"g","generation":7,"progress":9}')),
    (
        GrantLocks("g", "c@1", (("t", 0), ("t", 1), ("u", 0))),
        json_record("10", '{"groupName":"g","clientId":"c@1","queues":{"t":[0,1],"u":[0]}}'),
    ),
    (
        ReleaseLocks("g", "c@1", (("t", 1),)),
        json_record("11", '{"groupName":"g","clientId":"c@1","queues":{"t":[1]}}'),
    ),
    (DeleteGroup("g", keeps_offsets=True), json_record("04", '{"groupName":"g","keepsOffsets":true}')),
]


@pytest.mark.parametrize(("command", "expected"), TABLE)
def test_bytes_of_commands(command: Command, expected: bytes) -> None:
    assert encode(command, ID) == expected
    found = decode(expected)
    assert found == Record(ID, command) and type(found.command) is type(command)


@given(any_command)
def test_every_command_comes_back(command: Command) -> None:
    found = decode(encode(command))
    assert found == Record(NO_REQUEST, command) and type(found.command) is type(command)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_damage_or_of_a_newer_node(data: bytes) -> None:
    try:
        assert isinstance(decode(data).command, UnknownCommand)
    except StoredDataDamaged as error:
        assert error.status is Status.COMMAND_DAMAGED


@given(any_command, st.data())
def test_a_flipped_or_cut_command_is_another_command_or_damage(command: Command, data: st.DataObject) -> None:
    raw = bytearray(encode(command, ID))
    at = data.draw(st.integers(0, len(raw) - 1))
    if data.draw(st.booleans()):
        raw[at] ^= data.draw(st.integers(1, 255))
    else:
        del raw[at:]
    try:
        decode(bytes(raw))
    except StoredDataDamaged as error:
        assert error.status is Status.COMMAND_DAMAGED


@pytest.mark.parametrize(("kind", "version"), [(99, 1), (9, 2), (0, 1), (255, 1), (5, 3), (1, 0), (1, 9)])
def test_kinds_and_versions_of_newer_nodes_are_known_as_such(kind: int, version: int) -> None:
    raw = struct.pack(">2sBB16s", b"DM", kind, version, ID) + b"whatever"
    assert decode(raw) == Record(ID, UnknownCommand(kind, version))


def test_what_a_newer_node_adds_to_an_object_is_ignored() -> None:
    assert decode(json_record("02", '{"topicName":"t","because":[1]}')).command == DeleteTopic("t")


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"DM",
        b"XX" + TABLE[0][1][2:],
        json_record("02", "[]"),
        json_record("02", "{}"),
        json_record("02", '{"topicName":1}'),
        json_record("02", '{"topicName":"a b"}'),
        json_record("02", '{"topicName":"\\ud800"}'),
        json_record("02", '{"topicName":"' + METADATA_TOPIC + '"}'),
        json_record("02", "[" * 200_000),
        json_record("02", "1" * 10_000),
        json_record("02", "x" * MAX_COMMAND_BYTES),
        TABLE[0][1].replace(b'"perm":6', b'"perm":8'),
        TABLE[0][1].replace(b'"perm":6', b'"perm":true'),
        TABLE[0][1].replace(b'"order":true', b'"order":1'),
        TABLE[4][1] + b"\0",
        TABLE[4][1][:-1],
        TABLE[6][1].replace(b'"m2"', b'"m 2"'),
        TABLE[6][1].replace(b'{"m1":[],"m2":[]}', b'["m1","m2"]'),
        # the table of topics has one that no offset uses
        bytes.fromhex("444d0601" + ID_HEX + "000167 0002 000174 000175 0001 0000 00000000 0000000000000003"),
    ],
)
def test_damage(raw: bytes) -> None:
    with pytest.raises(StoredDataDamaged) as caught:
        decode(raw)
    assert caught.value.status is Status.COMMAND_DAMAGED


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (put_topic("a b"), Status.TOPIC_NAME_INVALID),
        (put_topic("x" * 128), Status.TOPIC_NAME_TOO_LONG),
        (put_topic(METADATA_TOPIC), Status.TOPIC_RESERVED),
        (DeleteTopic("DLEDGER_SYS_OTHER"), Status.TOPIC_RESERVED),
        (put_topic("t", 0), Status.FIELD_OUT_OF_RANGE),
        (put_topic("t", MAX_QUEUES_PER_TOPIC + 1), Status.FIELD_OUT_OF_RANGE),
        (PutTopic(TopicConfig("t", perm=8)), Status.FIELD_OUT_OF_RANGE),
        (PutTopic(TopicConfig("t", sys_flag=-1)), Status.FIELD_OUT_OF_RANGE),
        (PutTopic(TopicConfig("t", message_type="fifo")), Status.FIELD_OUT_OF_RANGE),
        (put_group(""), Status.GROUP_NAME_INVALID),
        (put_group("g\n"), Status.GROUP_NAME_INVALID),
        (put_group("g" * (MAX_GROUP_LENGTH + 1)), Status.GROUP_NAME_INVALID),
        (PutGroup(GroupConfig("g", retry_queues=-1)), Status.FIELD_OUT_OF_RANGE),
        (PutGroup(GroupConfig("g", retry_max_times=-2)), Status.FIELD_OUT_OF_RANGE),
        (DeleteGroup("g h"), Status.GROUP_NAME_INVALID),
        (ExpireGroup("g h", 0, 0), Status.GROUP_NAME_INVALID),
        (ExpireGroup("g", -1, 0), Status.FIELD_OUT_OF_RANGE),
        (ExpireGroup("g", 0, -1), Status.FIELD_OUT_OF_RANGE),
        (ExpireGroup("g", 0, (1 << 96) + 1), Status.FIELD_OUT_OF_RANGE),
        (commit("g", -2), Status.FIELD_OUT_OF_RANGE),
        (commit("g", 0, ("t", -1, 0)), Status.QUEUE_UNKNOWN),
        (commit("g", 0, ("t", MAX_QUEUES_PER_TOPIC, 0)), Status.QUEUE_UNKNOWN),
        (commit("g", 0, ("t", 0, -1)), Status.OFFSET_OUT_OF_RANGE),
        (commit("g", 0, ("t", 0, 1 << 63)), Status.OFFSET_OUT_OF_RANGE),
        (commit("g", 0, *[("t", 0, 0)] * (MAX_OFFSETS_PER_COMMAND + 1)), Status.TOO_MANY_OFFSETS),
        (reset("g", ("t u", 0, 0)), Status.TOPIC_NAME_INVALID),
        (NewGeneration("g", frozenset({""})), Status.MEMBER_ID_INVALID),
        (BeginQueue("t", -1, 0), Status.FIELD_OUT_OF_RANGE),
        (BeginQueue("t", 1024, 0), Status.FIELD_OUT_OF_RANGE),
        (BeginQueue("t", 0, -1), Status.FIELD_OUT_OF_RANGE),
        (BeginQueue("t", 0, (1 << 50) + 1), Status.FIELD_OUT_OF_RANGE),
        (BeginQueue(METADATA_TOPIC, 0, 1), Status.TOPIC_RESERVED),
        (NewGeneration("g", frozenset({"a b"})), Status.MEMBER_ID_INVALID),
        (NewGeneration("g", frozenset({"m" * 256})), Status.MEMBER_ID_INVALID),
    ],
)
def test_what_may_not_be_in_the_log_is_refused_before_it_is_proposed(
    command: Command, status: Status
) -> None:
    with pytest.raises(BrokerError) as caught:
        encode(command)
    assert caught.value.status is status


def test_a_request_id_has_16_bytes() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        encode(DeleteTopic("t"), b"short")


def test_the_members_that_0_1_0_recorded_are_read_without_their_queues() -> None:
    body = json_record(
        "07", '{"groupName":"g","topics":["t","u"],"members":{"m1":[[0,[0,1]],[1,[0]]],"m2":[]}}'
    )
    assert decode(body).command == NewGeneration("g", frozenset({"m1", "m2"}))


def test_the_largest_commit_that_the_limits_allow_fits() -> None:
    topics = [f"%RETRY%{n:0248d}" for n in range(64)]
    most = tuple(QueueOffset(topics[n % 64], n % 1_024, n) for n in range(MAX_OFFSETS_PER_COMMAND))
    assert len(encode(CommitOffsets("g", 1, most))) < MAX_COMMAND_BYTES // 4


def test_an_offset_takes_14_bytes() -> None:
    one = encode(ResetOffsets("g", offsets_of(("t", 0, 1))))
    two = encode(ResetOffsets("g", offsets_of(("t", 0, 1), ("t", 1, 1))))
    assert len(two) - len(one) == 14


def test_json_is_ascii_without_blanks() -> None:
    payload = encode(put_topic("t"))[20:]
    assert payload == json.dumps(json.loads(payload), separators=(",", ":")).encode("ascii")

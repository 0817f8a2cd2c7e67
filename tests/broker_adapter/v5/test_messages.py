"""What becomes of a message on its way in and out; what is refused, with which code."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from broker_adapter.delivery.api import Delivery
from broker_adapter.endpoints.rejected import Code, Rejected
from broker_adapter.endpoints.v5.messages import message_properties as names
from broker_adapter.endpoints.v5.messages.message_in import Incoming, incoming
from broker_adapter.endpoints.v5.messages.message_out import delivered_message, duration, stored_message
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.wire.message import MessageRecord, encode
from broker_adapter.wire.properties import KEYS, TAGS, UNIQ_KEY, join_properties
from broker_adapter.wire.sys_flag import COMPRESSED
from tests.broker_adapter.v5.world import message, resource

KINDS = pb.MessageType
MAX_BODY = 1_000
#: Protobuf's times end with the year 9999; the field has room for more.
NO_TIME_S = 253_402_300_800


def judged(given: pb.Message) -> Incoming:
    return incoming(given, MAX_BODY)


def there_and_back(given: pb.Message) -> pb.Message:
    made = judged(given)
    properties = {**made.message.properties, UNIQ_KEY: made.message_id}
    record = encode(
        MessageRecord(
            "ns%t",
            made.message.body,
            join_properties(properties),
            queue_id=3,
            queue_offset=7,
            sys_flag=made.message.sys_flag,
            born_timestamp=made.message.born_timestamp,
            store_timestamp=1_700_000_000_123,
        )
    )
    return delivered_message(Delivery(bytes(record), 3, 7, 2, "h", 45_000), resource("t", "ns"), 15_000)


def test_everything_that_a_producer_says_comes_back() -> None:
    given = message(
        b"body",
        tag="a",
        keys=["k1", "k2"],
        trace_context="trace",
        born_host="host-1",
        user_properties={"p": "ü", "q": "2"},
    )
    given.system_properties.born_timestamp.FromMilliseconds(1_600_000_000_456)
    got = there_and_back(given)
    system = got.system_properties
    assert got.topic == resource("t", "ns")
    assert (got.body, dict(got.user_properties)) == (b"body", {"p": "ü", "q": "2"})
    assert (system.message_id, system.tag, list(system.keys)) == ("id-1", "a", ["k1", "k2"])
    assert (system.trace_context, system.born_host) == ("trace", "host-1")
    assert system.born_timestamp.ToMilliseconds() == 1_600_000_000_456
    assert system.store_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert system.message_type == KINDS.NORMAL


def test_a_delivery_says_by_what_and_how_often_it_is_held() -> None:
    system = there_and_back(message()).system_properties
    assert (system.receipt_handle, system.delivery_attempt) == ("h", 2)
    assert (system.queue_id, system.queue_offset) == (3, 7)
    assert system.invisible_duration.ToMilliseconds() == 30_000


def test_digests_are_md5_in_upper_case() -> None:
    """Quirk: other digests are written differently by each client, and some fail without one."""
    digest = there_and_back(message(b"body")).system_properties.body_digest
    assert digest.type == pb.DigestType.MD5
    assert digest.checksum == hashlib.md5(b"body").hexdigest().upper()


def test_a_compressed_body_stays_marked() -> None:
    given = message(b"zz", body_encoding=pb.Encoding.GZIP)
    assert judged(given).message.sys_flag == COMPRESSED
    assert there_and_back(given).system_properties.body_encoding == pb.Encoding.GZIP
    assert there_and_back(message()).system_properties.body_encoding == pb.Encoding.IDENTITY


def test_a_message_group_is_shown_as_a_property_too() -> None:
    got = there_and_back(message(message_type=KINDS.FIFO, message_group="one"))
    assert got.system_properties.message_group == "one"
    assert got.system_properties.message_type == KINDS.FIFO
    assert got.user_properties[names.SHARDING_KEY] == "one"


def test_the_time_of_a_delayed_message_is_kept() -> None:
    given = message(message_type=KINDS.DELAY)
    given.system_properties.delivery_timestamp.FromMilliseconds(1_800_000_000_000)
    assert judged(given).deliver_at_ms == 1_800_000_000_000
    system = there_and_back(given).system_properties
    assert system.delivery_timestamp.ToMilliseconds() == 1_800_000_000_000
    assert system.message_type == KINDS.DELAY


def test_a_priority_of_zero_is_one() -> None:
    system = there_and_back(message(message_type=KINDS.PRIORITY, priority=0)).system_properties
    assert (system.priority, system.message_type) == (0, KINDS.PRIORITY)


def test_a_half_message_says_when_it_is_checked() -> None:
    given = message(message_type=KINDS.TRANSACTION)
    given.system_properties.orphaned_transaction_recovery_duration.FromMilliseconds(1_500)
    made = judged(given)
    assert (made.kind, made.check_after_ms) == (KINDS.TRANSACTION, 1_500)
    system = there_and_back(given).system_properties
    assert system.message_type == KINDS.TRANSACTION
    assert system.orphaned_transaction_recovery_duration.seconds == 2


@pytest.mark.parametrize(
    ("more", "kind"),
    [({}, KINDS.NORMAL), ({"message_group": "g"}, KINDS.FIFO), ({"priority": 1}, KINDS.PRIORITY)],
)
def test_a_type_that_is_not_told_follows_from_the_fields(more: dict[str, Any], kind: int) -> None:
    given = message(message_type=KINDS.MESSAGE_TYPE_UNSPECIFIED, **more)
    assert judged(given).kind == kind


def test_what_consumers_were_shown_may_be_sent_on() -> None:
    given = message(user_properties={names.SHARDING_KEY: "one", names.TRANSACTION_ID: "tx", "p": "1"})
    assert dict(judged(given).message.properties) == {"p": "1"}


def test_a_dead_letter_says_where_it_comes_from() -> None:
    properties = {names.DEAD_LETTER_TOPIC: "t", names.DEAD_LETTER_MESSAGE_ID: "id", UNIQ_KEY: "id"}
    record = encode(MessageRecord("%DLQ%g", b"x", join_properties(properties)))
    got = stored_message(bytes(record), resource("%DLQ%g"))
    assert got.system_properties.dead_letter_queue == pb.DeadLetterQueue(topic="t", message_id="id")
    assert not got.user_properties


def test_a_message_of_another_producer_can_be_read() -> None:
    """No id of its own, and properties that are not what their names say."""
    properties = {names.PRIORITY: "high", names.DELIVER_AT_MS: "9" * 30, names.CHECK_IMMUNITY_S: "-1"}
    got = stored_message(bytes(encode(MessageRecord("t", b"x", join_properties(properties)))), resource("t"))
    system = got.system_properties
    assert system.message_id == MessageRecord("t", b"x").offset_id
    assert not (system.HasField("priority") or system.HasField("delivery_timestamp"))


def test_times_of_another_producer_are_such_as_protobuf_has() -> None:
    """Clients fail at others, with all that they have received, each time they receive it."""
    properties = {names.CHECK_IMMUNITY_S: str(NO_TIME_S)}
    text = join_properties(properties)
    record = encode(MessageRecord("t", b"x", text, born_timestamp=(1 << 63) - 1))
    system = stored_message(bytes(record), resource("t")).system_properties
    assert system.born_timestamp.seconds == NO_TIME_S - 1
    assert system.orphaned_transaction_recovery_duration.ToSeconds() == NO_TIME_S
    assert duration((1 << 63) - 1).ToSeconds() == 315_576_000_000


def refused(given: pb.Message) -> int:
    with pytest.raises(Rejected) as caught:
        judged(given)
    return caught.value.code


def digest(kind: int, checksum: str) -> pb.Digest:
    return pb.Digest(type=kind, checksum=checksum)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (message(b""), Code.MESSAGE_BODY_EMPTY),
        (message(b"x" * (MAX_BODY + 1)), Code.MESSAGE_BODY_TOO_LARGE),
        (message(message_id=""), Code.ILLEGAL_MESSAGE_ID),
        (message(message_id="a\x01"), Code.ILLEGAL_MESSAGE_ID),
        (message(message_id="a" * 256), Code.ILLEGAL_MESSAGE_ID),
        (message(tag="a|b"), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag=" "), Code.ILLEGAL_MESSAGE_TAG),
        (message(tag="a\x02"), Code.ILLEGAL_MESSAGE_TAG),
        (message(keys=["a", " "]), Code.ILLEGAL_MESSAGE_KEY),
        (message(keys=["a\x01"]), Code.ILLEGAL_MESSAGE_KEY),
        (message(message_type=KINDS.FIFO), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_type=KINDS.FIFO, message_group="ü" * 33), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_type=KINDS.FIFO, message_group="a\x01"), Code.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="g"), Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
        (
            message(message_type=KINDS.FIFO, message_group="g", priority=1),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (message(message_type=KINDS.DELAY), Code.ILLEGAL_DELIVERY_TIME),
        (message(message_type=KINDS.PRIORITY, priority=-1), Code.BAD_REQUEST),
        (message(message_type=KINDS.LITE, lite_topic="l"), Code.UNSUPPORTED),
        (message(message_type=77), Code.UNSUPPORTED),
        (message(user_properties={"KEYS": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"UNIQ_KEY": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"": "x"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"a": ""}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(user_properties={"a": "\x02"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (
            message(user_properties={str(i): "x" for i in range(129)}),
            Code.MESSAGE_PROPERTIES_TOO_LARGE,
        ),
        (message(user_properties={"a": "x" * (16 << 10)}), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(tag="t" * (16 << 10), keys=["k"]), Code.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(trace_context="x" * 1025), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(born_timestamp={"seconds": NO_TIME_S}), Code.BAD_REQUEST),
        (
            message(
                message_type=KINDS.TRANSACTION, orphaned_transaction_recovery_duration={"seconds": NO_TIME_S}
            ),
            Code.BAD_REQUEST,
        ),
        (
            message(message_type=KINDS.DELAY, delivery_timestamp={"seconds": NO_TIME_S}),
            Code.ILLEGAL_DELIVERY_TIME,
        ),
        (message(body_digest=digest(pb.DigestType.MD5, "00")), Code.MESSAGE_CORRUPTED),
        (message(body_digest=digest(pb.DigestType.SHA1, "00")), Code.MESSAGE_CORRUPTED),
    ],
)
def test_what_is_wrong_with_a_message_has_its_code(given: pb.Message, code: int) -> None:
    assert refused(given) == code


@pytest.mark.parametrize(
    "given",
    [
        message(b"x" * MAX_BODY),
        message(user_properties={str(i): "x" for i in range(128)}),
        message(user_properties={"a": "x" * ((16 << 10) - 1)}),
        message(message_type=KINDS.FIFO, message_group="g" * 64),
        message(b"x", body_digest=digest(pb.DigestType.MD5, hashlib.md5(b"x").hexdigest().upper())),
        message(b"x", body_digest=digest(pb.DigestType.SHA1, hashlib.sha1(b"x").hexdigest())),
        message(b"x", body_digest=digest(pb.DigestType.CRC32, "whatever")),
    ],
)
def test_what_is_just_allowed(given: pb.Message) -> None:
    assert judged(given).message.body == given.body


def test_names_of_tag_and_keys_are_rocketmqs() -> None:
    assert dict(judged(message(tag="a", keys=["b", "c"])).message.properties) == {TAGS: "a", KEYS: "b c"}

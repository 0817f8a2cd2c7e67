"""Actions of delayed messages, transactions and messages that are sent back.

An action waits until its message has arrived, so that later steps find the same queues at all brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.sys_flag import TRANSACTION_COMMIT, TRANSACTION_ROLLBACK
from tests.interop import genuine

from . import requests
from .actions import properties_of
from .session import ARRIVAL_S, CHECK_S, Observation, Sent, Session, action, numbers, pace

Args = Mapping[str, Any]
_RESOLUTIONS = {"commit": TRANSACTION_COMMIT, "rollback": TRANSACTION_ROLLBACK, "unknown": 0}
#: For what must not arrive: long enough for a message that is stored at once.
_NOTHING_S = 0.3
#: The answer to the end of a transaction that has ended otherwise.
_UNKNOWN_TRANSACTION = int(ResponseCode.SYSTEM_ERROR)
#: For a delay that was under way while the broker was down.
_LONG_S = 30


@action
async def send_delayed(session: Session, args: Args, number: int) -> Observation:
    """`properties` delay the message. A value "+n" is n ms after the time of the step, "@-n" before it.
    `arrives`: whether to wait for the message."""
    properties = properties_of(session, args)
    for name, value in properties.items():
        if value.startswith(("+", "@")):
            properties[name] = str(session.step_ms + int(value[1:]))
    topic, queue_id = args["topic"], args["queue"]
    end = await session.end_of(topic, queue_id)
    command = requests.send(
        session.name(topic),
        queue_id,
        str(args["body"]).encode(),
        properties,
        born_ms=session.born_ms + number,
    )
    answer = await session.ask_until_taken(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        within_s = ARRIVAL_S if args["arrives"] else _NOTHING_S
        seen["arrived"] = await session.wait_for_end(topic, queue_id, end + 1, within_s)
        await pace()
    return seen


@action
async def wait_for_end(session: Session, args: Args, number: int) -> Observation:
    """Until a queue has as many messages: what was delayed before a restart arrives."""
    return {"arrived": await session.wait_for_end(args["topic"], args["queue"], args["end"], _LONG_S)}


@action
async def half(session: Session, args: Args, number: int) -> Observation:
    """A half message, which no queue shows."""
    properties = properties_of(session, args) | {"TRAN_MSG": "true", "PGROUP": requests.PRODUCERS}
    command = requests.send(
        session.name(args["topic"]),
        args["queue"],
        str(args["body"]).encode(),
        properties,
        born_ms=session.born_ms + number,
        sys_flag=4,
    )
    answer = await session.ask_untranslated(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        unique_id = properties["UNIQ_KEY"]
        offset = int(answer.fields["queueOffset"])
        session.halves[number] = Sent(args["topic"], args["queue"], offset, command, answer, unique_id)
    return seen


@action
async def end_half(session: Session, args: Args, number: int) -> Observation:
    """End the transaction of a half, as its producer does after the answer (`checked`: after a check).
    RocketMQ is not asked for the end of one that has ended (see `accepted`)."""
    begun = session.halves[args["half"]]
    topic, queue_id = begun.topic, begun.queue_id
    fields: dict[str, object] = {
        "tranStateTableOffset": begun.queue_offset,
        "commitLogOffset": parse_offset_id(begun.answer.fields["msgId"]).physical_offset,
        "msgId": begun.unique_id,
        "transactionId": begun.answer.fields.get("transactionId", ""),
    }
    seen: Observation = {}
    if args.get("checked"):
        check = await _check_of(session, begun)
        seen["checked"] = check is not None
        if check is None:
            return seen
        for name in ("tranStateTableOffset", "commitLogOffset", "transactionId"):
            fields[name] = check.fields[name]
    resolution = _RESOLUTIONS[args["resolution"]]
    before = session.ended.get(args["half"])
    if session.is_genuine and resolution and before:
        is_same = before == args["resolution"]
        return seen | ({"code": 0, "arrived": False} if is_same else {"code": _UNKNOWN_TRANSACTION})
    end = await session.end_of(topic, queue_id)
    command = requests.end_transaction(
        session.name(topic),
        fields,
        resolution,
        from_check=bool(args.get("checked")),
        is_oneway=resolution == 0,
    )
    if resolution == 0:
        session.tell(command)
        return seen
    answer = await session.ask(command)
    seen["code"] = answer.code
    if answer.code == ResponseCode.SUCCESS:
        session.ended.setdefault(args["half"], args["resolution"])
        within_s = ARRIVAL_S if args["resolution"] == "commit" and not before else _NOTHING_S
        seen["arrived"] = await session.wait_for_end(topic, queue_id, end + 1, within_s)
        await pace()
    return seen


async def _check_of(session: Session, begun: Sent) -> Any:
    session.checks.pop(begun.unique_id, None)

    async def has_come() -> bool:
        return begun.unique_id in session.checks

    try:
        await genuine.eventually(has_come, within_s=CHECK_S)
    except TimeoutError:
        return None
    return session.checks[begun.unique_id]


@action
async def send_back(session: Session, args: Args, number: int) -> Observation:
    """A consumer returns a message of a group: level 1 (1 s), or a dead letter with a negative level."""
    message = await session.message(args["of"])
    if message is None:
        return {"skipped": True}
    group = args["group"]
    kind = "%DLQ%" if args["level"] < 0 or args.get("most") == 0 else "%RETRY%"
    topic = f"{kind}{group}"
    end = await session.end_of(topic, 0)
    command = requests.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        group=session.name(group),
        offset=message.physical_offset,
        delayLevel=args["level"],
        originMsgId=message.offset_id,
        originTopic=session.name(session.sent[args["of"]].topic),
        unitMode=False,
        maxReconsumeTimes=args.get("most"),
    )
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        seen["arrived"] = await session.wait_for_end(topic, 0, end + 1)
        await pace()
    return seen


@action
async def send_to_retry(session: Session, args: Args, number: int) -> Observation:
    """What the Java client sends when a message cannot be sent back, and orderly consumers beyond their
    maximum: the message itself, to the retry topic."""
    group = args["group"]
    topic = f"%RETRY%{group}"
    properties = properties_of(session, args) | {
        "RECONSUME_TIME": str(args["times"]),
        "MAX_RECONSUME_TIMES": str(args["most"]),
        "RETRY_TOPIC": session.name(args["origin"]),
        "DELAY": "1",
    }
    target = topic if args["times"] <= args["most"] else f"%DLQ%{group}"
    end = await session.end_of(target, 0)
    command = requests.send(
        session.name(topic),
        0,
        str(args["body"]).encode(),
        properties,
        born_ms=session.born_ms + number,
        reconsume_times=args["times"],
        max_reconsume_times=args["most"],
    )
    answer = await session.ask(command)
    seen = numbers(answer)
    if answer.code == ResponseCode.SUCCESS:
        seen["arrived"] = await session.wait_for_end(target, 0, end + 1)
        await pace()
    return seen

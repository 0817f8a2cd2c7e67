"""Actions of sends, reads and offsets. Each plays one step on one broker and returns what it observes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from broker_adapter.client.core.admin_bodies import parse_offset_table
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.wire.message import MessageRecord

from . import requests
from .session import (
    DRAIN_COUNT,
    Observation,
    Sent,
    Session,
    action,
    messages_of,
    numbers,
    pace,
)

Args = Mapping[str, Any]
#: RocketMQ's "no offset was given".
_LATEST = -1
#: After these answers a pull with an expression goes on.
_GOES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


# -- sends --------------------------------------------------------------------------------------------------


def properties_of(session: Session, args: Args) -> dict[str, str]:
    """`id`: the unique id; `tags`, `keys`, and `properties` of the program."""
    properties = {name: str(value) for name, value in args.get("properties", {}).items()}
    if args.get("keys"):
        properties["KEYS"] = str(args["keys"])
    if args.get("tags"):
        properties["TAGS"] = str(args["tags"])
    if args.get("id"):
        properties["UNIQ_KEY"] = session.unique_id(str(args["id"]))
    return properties


async def store(
    session: Session, number: int, args: Args, command: RemotingCommand, count: int = 1
) -> Observation:
    """Send a message, or a batch, and wait until its queue has it."""
    answer = await session.ask_until_taken(command)
    seen = numbers(answer, "queueId", "queueOffset")
    if answer.code != ResponseCode.SUCCESS:
        return seen
    seen["ids"] = len(answer.fields.get("msgId", "").split(","))
    unique_id = session.unique_id(str(args["id"])) if args.get("id") else ""
    sent = Sent(
        args["topic"],
        int(answer.fields["queueId"]),
        int(answer.fields["queueOffset"]),
        command,
        answer,
        unique_id,
        count,
    )
    session.sent[number] = sent
    seen["dispatched"] = await session.wait_for_end(sent.topic, sent.queue_id, sent.queue_offset + count)
    await pace()
    return seen


@action
async def send(session: Session, args: Args, number: int) -> Observation:
    command = requests.send(
        session.name(args["topic"]),
        args["queue"],
        str(args["body"]).encode(),
        properties_of(session, args),
        born_ms=session.born_ms + number,
        flag=args.get("flag", 0),
    )
    return await store(session, number, args, command)


@action
async def batch(session: Session, args: Args, number: int) -> Observation:
    """`messages`: arguments of each; `id`: of the whole, in the header's properties."""
    rows = [(str(one["body"]).encode(), properties_of(session, one), 0) for one in args["messages"]]
    header = {"UNIQ_KEY": session.unique_id(str(args["id"]))}
    command = requests.send(
        session.name(args["topic"]),
        args["queue"],
        requests.batch_of(rows),
        header,
        born_ms=session.born_ms + number,
        is_batch=True,
    )
    return await store(session, number, args, command, len(rows))


@action
async def retry_send(session: Session, args: Args, number: int) -> Observation:
    """The send of an earlier step once more, as a client does that missed the answer: the same id and
    content, within the span of retries. RocketMQ stores it twice; it is not asked (see `accepted`)."""
    first = session.sent[args["of"]]
    if session.is_genuine:
        return {**numbers(first.answer, "queueId", "queueOffset"), "end": first.queue_offset + first.count}
    again = RemotingCommand(first.request.code, dict(first.request.fields), first.request.body)
    again.fields["g"] = str(int(again.fields["g"]) + args.get("later_ms", 0))
    answer = await session.ask(again)
    seen = numbers(answer, "queueId", "queueOffset")
    # A copy that was stored would be there once a later message is: the drain at the end shows it, too.
    seen["end"] = first.queue_offset + first.count
    return seen


@action
async def repeat_send(session: Session, args: Args, number: int) -> Observation:
    """The program sends the same object again, later than clients retry: another message. `of`: the last send
    of the object."""
    first = session.sent[args["of"]]
    again = RemotingCommand(first.request.code, dict(first.request.fields), first.request.body)
    again.fields["g"] = str(int(again.fields["g"]) + args["later_ms"])
    return await store(session, number, {"topic": first.topic}, again, first.count)


# -- reads --------------------------------------------------------------------------------------------------


@action
async def pull(session: Session, args: Args, number: int) -> Observation:
    offset = args["offset"]
    if args.get("from_end"):
        offset += await session.end_of(args["topic"], args["queue"])
    command = requests.pull(
        session.name(args["group"]),
        session.name(args["topic"]),
        args["queue"],
        max(0, offset),
        args["count"],
    )
    answer = await session.ask(command)
    seen = numbers(answer, "nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId")
    return seen | session.observe_messages(answer.body)


@action
async def pull_filtered(session: Session, args: Args, number: int) -> Observation:
    """The first `count` messages that an expression matches. How far one pull looks is a broker's choice: it
    is repeated until enough messages have come, or the end."""
    offset, found = args["offset"], list[MessageRecord]()
    while True:
        command = requests.pull(
            session.name(args["group"]),
            session.name(args["topic"]),
            args["queue"],
            offset,
            args["count"] - len(found),
            args["expression"],
            args.get("type", "TAG"),
        )
        answer = await session.ask(command)
        found += messages_of(answer.body)
        if answer.code not in _GOES_ON or len(found) >= args["count"]:
            break
        offset = int(answer.fields["nextBeginOffset"])
    is_there = answer.code in (*_GOES_ON, ResponseCode.PULL_NOT_FOUND)
    return {"code": "read" if is_there else answer.code, **session.observe_list(found, "")}


@action
async def max_offset(session: Session, args: Args, number: int) -> Observation:
    command = requests.of_queue(RequestCode.GET_MAX_OFFSET, session.name(args["topic"]), args["queue"])
    return numbers(await session.ask(command), "offset")


@action
async def min_offset(session: Session, args: Args, number: int) -> Observation:
    command = requests.of_queue(RequestCode.GET_MIN_OFFSET, session.name(args["topic"]), args["queue"])
    return numbers(await session.ask(command), "offset")


@action
async def earliest_time(session: Session, args: Args, number: int) -> Observation:
    """Whether it is the store timestamp of the queue's first message."""
    topic = session.name(args["topic"])
    command = requests.of_queue(RequestCode.GET_EARLIEST_MSG_STORETIME, topic, args["queue"])
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        pulled = await session.ask(requests.pull(session.name("READER"), topic, args["queue"], 0, 1))
        first = messages_of(pulled.body)
        when = int(answer.fields["timestamp"])
        seen["timestamp"] = (
            "of the first message" if first and first[0].store_timestamp == when else min(0, when)
        )
    return seen


async def time_of(session: Session, args: Args) -> int | None:
    """`of`: the store timestamp of a step's message, plus `delta_ms`; else `when_ms`."""
    if "of" not in args:
        return int(args["when_ms"])
    message = await session.message(args["of"])
    return None if message is None else message.store_timestamp + int(args["delta_ms"])


@action
async def search(session: Session, args: Args, number: int) -> Observation:
    """By time, in the queue of the message or in the one that is named."""
    when = await time_of(session, args)
    if when is None:
        return {"skipped": True}
    command = requests.of_queue(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        session.name(args["topic"]),
        args["queue"],
        timestamp=when,
        boundaryType=args.get("boundary"),
    )
    return numbers(await session.ask(command), "offset")


@action
async def query_key(session: Session, args: Args, number: int) -> Observation:
    """By a key of the program, or (`of`) by the unique id of a step's message."""
    is_unique = "of" in args
    key = session.sent[args["of"]].unique_id if is_unique else args["key"]
    command = requests.query(session.name(args["topic"]), key, args["count"], is_unique=is_unique)
    answer = await session.ask(command)
    bodies = sorted(one.body.decode() for one in messages_of(answer.body))
    return {"code": answer.code, "bodies": bodies}


@action
async def view(session: Session, args: Args, number: int) -> Observation:
    """By the id in the answer to a send: the place in the log."""
    offset = session.sent[args["of"]].physical_offset
    answer = await session.ask(requests.request(RequestCode.VIEW_MESSAGE_BY_ID, offset=offset))
    return {"code": answer.code, **session.observe_messages(answer.body)}


# -- offsets of groups --------------------------------------------------------------------------------------


@action
async def query_offset(session: Session, args: Args, number: int) -> Observation:
    command = requests.of_queue(
        RequestCode.QUERY_CONSUMER_OFFSET,
        session.name(args["topic"]),
        args["queue"],
        consumerGroup=session.name(args["group"]),
        setZeroIfNotFound=args.get("zero"),
    )
    return numbers(await session.ask(command), "offset")


@action
async def commit(session: Session, args: Args, number: int) -> Observation:
    """An offset within the queue. RocketMQ takes a lower one, too; it is not asked (see `accepted`)."""
    key = (args["group"], args["topic"], args["queue"])
    offset = min(args["offset"], await session.end_of(args["topic"], args["queue"]))
    if session.is_genuine and offset < session.committed.get(key, 0):
        return {"code": int(ResponseCode.SUCCESS), "end": offset}
    command = requests.of_queue(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        session.name(args["topic"]),
        args["queue"],
        consumerGroup=session.name(args["group"]),
        commitOffset=offset,
    )
    answer = await session.ask_until_taken(command)  # busy up to a minute after a start and a reset
    if answer.code == ResponseCode.SUCCESS:
        session.committed[key] = offset
    return {"code": answer.code, "end": offset}


@action
async def reset(session: Session, args: Args, number: int) -> Observation:
    """To a time, or one queue to an offset. A pull of each queue follows, as of a member that goes on:
    RocketMQ passes over commits until then."""
    when = await time_of(session, args) if "offset" not in args else _LATEST
    if when is None:
        return {"skipped": True}
    offset = args.get("offset")
    if offset is not None:
        offset = min(offset, await session.end_of(args["topic"], args["queue"]))
    group, topic = session.name(args["group"]), session.name(args["topic"])
    command = requests.request(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        topic=topic,
        group=group,
        timestamp=when,
        isForce=args.get("force", True),
        queueId=args.get("queue", -1),
        offset=offset,
    )
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code, "to": offset}
    if answer.code == ResponseCode.SUCCESS:
        table = {
            queue.queue_id: int(stored) - session.bases.get((topic, queue.queue_id), 0)
            for queue, stored in parse_offset_table(answer.body).items()
        }
        seen["table"] = {str(queue_id): table[queue_id] for queue_id in sorted(table)}
        for queue_id, stored in sorted(table.items()):
            await session.ask(requests.pull(group, topic, queue_id, stored, 1))
            session.committed[args["group"], args["topic"], queue_id] = stored
    return seen


# -- the end ------------------------------------------------------------------------------------------------


@action
async def drain(session: Session, args: Args, number: int) -> Observation:
    """All messages of a topic's queues from their begin, read by one group."""
    seen: Observation = {}
    topic = session.name(args["topic"])
    for queue_id in range(args["queues"]):
        offset, found = 0, list[MessageRecord]()
        while True:
            command = requests.pull(session.name("READER"), topic, queue_id, offset, DRAIN_COUNT)
            answer = await session.ask(command)
            messages = messages_of(answer.body)
            found += messages
            following = int(answer.fields.get("nextBeginOffset", offset))
            if not messages or following <= offset:
                break
            offset = following
        path = f"queue[{queue_id}]."
        seen |= {f"{path}code": answer.code} | session.observe_list(found, path)
    return seen


@action
async def drain_offsets(session: Session, args: Args, number: int) -> Observation:
    """The offsets of a group in all queues of a topic."""
    seen: Observation = {}
    for queue_id in range(args["queues"]):
        found = await query_offset(session, {**args, "queue": queue_id}, number)
        seen |= {f"queue[{queue_id}].{name}": value for name, value in found.items()}
    return seen

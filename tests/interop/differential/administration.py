"""Actions of administrators: topics, groups, and what brokers say of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from broker_adapter.client.core.admin_bodies import parse_offset_table
from broker_adapter.errors import ResponseCode
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

from . import requests
from .session import Observation, Session, action

Args = Mapping[str, Any]
_BARE_KEY = re.compile(r"([{,])(\d+):")
_TOPIC_FACTS = ("readQueueNums", "writeQueueNums", "perm", "order", "attributes")
_GROUP_FACTS = (
    "consumeEnable",
    "consumeFromMinEnable",
    "consumeBroadcastEnable",
    "consumeMessageOrderly",
    "retryQueueNums",
    "retryMaxTimes",
)


@action
async def put_topic(session: Session, args: Args, number: int) -> Observation:
    command = requests.put_topic(
        session.name(args["topic"]),
        args["read"],
        args["write"],
        args.get("perm", 6),
        args.get("attributes", ""),
        args.get("order", False),
    )
    answer = await session.ask(command)
    await session.note_bases(args["topic"], args["write"])
    return {"code": answer.code}


@action
async def delete_topic(session: Session, args: Args, number: int) -> Observation:
    topic = session.name(args["topic"])
    answer = await session.ask(requests.request(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic))
    session.forget(args["topic"])
    return {"code": answer.code}


@action
async def put_group(session: Session, args: Args, number: int) -> Observation:
    answer = await session.ask(requests.put_group(session.name(args["group"]), args.get("settings", {})))
    return {"code": answer.code}


@action
async def delete_group(session: Session, args: Args, number: int) -> Observation:
    """`clean`: with its offsets, as mqadmin's deleteSubGroup -r does."""
    group = session.name(args["group"])
    command = requests.request(
        RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName=group, cleanOffset=args.get("clean", True)
    )
    answer = await session.ask(command)
    if args.get("clean", True):
        for key in [key for key in session.committed if key[0] == args["group"]]:
            del session.committed[key]
    return {"code": answer.code}


@action
async def setup_topic(session: Session, args: Args, number: int) -> Observation:
    return await put_topic(session, args, number)


@action
async def setup_group(session: Session, args: Args, number: int) -> Observation:
    return await put_group(session, args, number)


@action
async def restart(session: Session, args: Args, number: int) -> Observation:
    """The campaign has restarted the broker before."""
    return {}


@action
async def topic_config(session: Session, args: Args, number: int) -> Observation:
    command = requests.request(RequestCode.GET_TOPIC_CONFIG, topic=session.name(args["topic"]))
    answer = await session.ask(command)
    return {"code": answer.code, **_facts(answer, _TOPIC_FACTS)}


@action
async def group_config(session: Session, args: Args, number: int) -> Observation:
    command = requests.request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group=session.name(args["group"]))
    answer = await session.ask(command)
    return {"code": answer.code, **_facts(answer, _GROUP_FACTS)}


def _facts(answer: RemotingCommand, names: tuple[str, ...]) -> Observation:
    if answer.code != ResponseCode.SUCCESS:
        return {}
    found = json.loads(answer.body)
    return {name: found.get(name) for name in names}


@action
async def topic_stats(session: Session, args: Args, number: int) -> Observation:
    """The ends of all queues."""
    command = requests.request(RequestCode.GET_TOPIC_STATS_INFO, topic=session.name(args["topic"]))
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        for queue, told in parse_offset_table(answer.body).items():
            base = session.bases.get((queue.topic, queue.queue_id), 0)
            seen[f"queue[{queue.queue_id}]"] = [max(0, told["minOffset"] - base), told["maxOffset"] - base]
    return seen


@action
async def consume_stats(session: Session, args: Args, number: int) -> Observation:
    """What a group has consumed of a topic."""
    command = requests.request(
        RequestCode.GET_CONSUME_STATS,
        consumerGroup=session.name(args["group"]),
        topic=session.name(args["topic"]),
    )
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        for queue, told in parse_offset_table(answer.body).items():
            base = session.bases.get((queue.topic, queue.queue_id), 0)
            consumed = max(0, told["consumerOffset"] - base)
            seen[f"queue[{queue.queue_id}]"] = [told["brokerOffset"] - base, consumed]
    return seen


@action
async def groups_of_topic(session: Session, args: Args, number: int) -> Observation:
    command = requests.request(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic=session.name(args["topic"]))
    answer = await session.ask(command)
    seen: Observation = {"code": answer.code}
    if answer.code == ResponseCode.SUCCESS:
        seen["groups"] = sorted(map(session.logical, json.loads(answer.body).get("groupList") or ()))
    return seen


@action
async def all_offsets(session: Session, args: Args, number: int) -> Observation:
    """Of the groups and topics of this play, as a slave copies them."""
    answer = await session.ask(requests.request(RequestCode.GET_ALL_CONSUMER_OFFSET))
    seen: Observation = {"code": answer.code}
    quoted = _BARE_KEY.sub(r'\1"\2":', answer.body.decode())  # fastjson writes numbers as keys
    for name, offsets in (json.loads(quoted).get("offsetTable") or {}).items():
        if session.prefix in name:
            for queue_id, offset in offsets.items():
                base = session.bases.get((name.partition("@")[0], int(queue_id)), 0)
                seen[f"{session.logical(name)}[{queue_id}]"] = offset - base
    return seen

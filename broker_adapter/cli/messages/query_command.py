"""`dledger broker query`: find messages by key, id or offset."""

from __future__ import annotations

import asyncio
import sys

import click

from broker_adapter.cli.connect.options import call_broker, moment, shown_time, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.messages.message_output import write_json
from broker_adapter.cli.messages.queue_choice import choose_queues
from broker_adapter.client import Admin, MessageExt, PullConsumer, PullStatus
from broker_adapter.errors import BrokerError, ReadFailed, Status, error_for

_LAST_MS = (1 << 63) - 1


@click.command()
@target_options
@click.option("--topic", help="Topic of the message; optional for an offset id.")
@click.option("--key", help="A key of the messages.")
@click.option("--id", "message_id", help="A producer's message id (with --topic), or an offset id.")
@click.option("--offset", type=click.IntRange(0), help="Offset of the message in its --queue.")
@click.option("--queue", type=click.IntRange(0), help="Queue of the message, with --offset.")
@click.option(
    "--begin",
    callback=moment,
    metavar="TIME",
    default="0",
    help="With --key: only messages stored at or after this time.",
)
@click.option(
    "--end", callback=moment, metavar="TIME", help="With --key: only messages stored at or before this time."
)
@click.option(
    "--count",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    help="With --key: maximum number of messages.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one object per line.")
def query(
    target: Target,
    topic: str | None,
    key: str | None,
    message_id: str | None,
    offset: int | None,
    queue: int | None,
    begin: int,
    end: int | None,
    count: int,
    as_json: bool,
) -> None:
    """Find messages by key, by id, or by queue and offset, newest first.

    Exits with 1 if no message is found.

    \b
    Examples:
      dledger broker query --topic orders --key A17
      dledger broker query --topic orders --key A17 --begin 1h --json
      dledger broker query --topic orders --id 7F0000010000A1B2C3D4000102030405
      dledger broker query --topic orders --queue 2 --offset 1500
    """
    if sum(given is not None for given in (key, message_id, offset)) != 1:
        raise click.UsageError("exactly one of --key, --id and --offset is required")
    if topic is None and message_id is None:
        raise click.UsageError("--topic is required")
    if (queue is None) != (offset is None):
        raise click.UsageError("--queue and --offset must be passed together")

    async def find_messages(admin: Admin) -> list[MessageExt]:
        if message_id is not None:
            return await _by_id(admin, topic, message_id)
        assert topic is not None and key is not None
        return await admin.query(
            topic, key, begin_ms=begin, end_ms=_LAST_MS if end is None else end, max_messages=count
        )

    if offset is not None:
        assert topic is not None and queue is not None
        found = [_by_offset(target, topic, queue, offset)]
    else:
        found = call_broker(target, find_messages)
    if not found:
        raise ReadFailed(
            Status.MESSAGE_NOT_FOUND, f"topic {topic} has no message with the key {key or message_id!r}"
        )
    for message in found:
        if as_json:
            write_json(sys.stdout.buffer, message)
        else:
            _print_message(message)
    sys.stdout.buffer.flush()


async def _by_id(admin: Admin, topic: str | None, message_id: str) -> list[MessageExt]:
    """Return the message with an id.

    Producers' ids and brokers' ids look alike. If a topic is given, the id is first tried as a producer's id.
    """
    if topic is not None and (found := await admin.query(topic, message_id, is_unique=True)):
        return found
    try:
        return [await admin.view_message(message_id)]
    except BrokerError as error:
        if topic is not None:
            raise
        text = f"{error.message}; if {message_id} is the message id of a producer, pass --topic"
        raise error_for(error.status, text) from None


def _by_offset(target: Target, topic: str, queue: int, offset: int) -> MessageExt:
    async def run() -> MessageExt:
        names = await target.name_servers()
        async with PullConsumer(
            "dledger-query", names, options=target.options, tls=target.client_tls
        ) as consumer:
            found = choose_queues(topic, await consumer.queues(topic), queue)
            batch = await consumer.pull(found[0], offset, max_messages=1)
        if batch.status is not PullStatus.FOUND:
            text = f"{topic} has no message {offset} in queue {queue}, which has {batch.min_offset} to "
            raise ReadFailed(Status.MESSAGE_NOT_FOUND, f"{text}{batch.max_offset - 1}")
        if batch.unreadable and (error := batch.unreadable[0].body_error) is not None:
            raise error
        return batch.messages[0]

    return asyncio.run(run())


def _print_message(message: MessageExt) -> None:
    facts = {
        "topic": message.topic,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "message id": message.message_id,
        "offset id": message.offset_message_id,
        "tag": message.tags,
        "keys": " ".join(message.keys),
        "stored": shown_time(message.store_timestamp),
        "born": shown_time(message.born_timestamp),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            click.echo(f"{name:<11} {value}")
    click.echo(f"{'body':<11} ", nl=False)
    sys.stdout.flush()
    sys.stdout.buffer.write(message.body + b"\n\n")
    sys.stdout.buffer.flush()

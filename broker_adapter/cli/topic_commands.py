"""`dledger broker topic`: create, delete and list topics, and show their statistics."""

from __future__ import annotations

import click

from broker_adapter.api import MESSAGE_TYPES, PERM_READ, PERM_WRITE
from broker_adapter.cli.connect.options import call_broker, json_option, shown_time, target_options
from broker_adapter.cli.connect.target import Target
from broker_adapter.errors import Status, error_for
from broker_adapter.wire.attributes import MESSAGE_TYPE, UNSPECIFIED
from broker_adapter.wire.topic_names import UNSENDABLE_TOPICS
from dledger.cli.output import counted, print_json, print_table
from dledger.cli.suggesting_group import SuggestingGroup

_PERMS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}
_MAX_QUEUES = 1024


@click.group(cls=SuggestingGroup)
def topic() -> None:
    """Create, delete and list topics, and show their statistics.

    \b
    Examples:
      dledger broker topic create orders --queues 8
      dledger broker topic list
      dledger broker topic stats orders
      dledger broker topic delete orders
    """


@topic.command()
@click.argument("name")
@target_options
@click.option(
    "--queues",
    type=click.IntRange(1, _MAX_QUEUES),
    default=None,
    help="Number of queues: the maximum number of consumers of a group.  [default of a new topic: 4]",
)
@click.option(
    "--perm",
    type=click.Choice(list(_PERMS)),
    default=None,
    help="Permission: readable, writable, both or none.  [default of a new topic: rw]",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice((*MESSAGE_TYPES[1:], UNSPECIFIED), case_sensitive=False),
    default=None,
    help="Type of the messages of clients that declare one.  [default of a new topic: UNSPECIFIED, any]",
)
@click.option("--force", is_flag=True, help="Remove queues even if they contain messages.")
def create(
    name: str, target: Target, queues: int | None, perm: str | None, message_type: str | None, force: bool
) -> None:
    """Create topic NAME, or change the given settings of an existing one.

    The removal of queues with messages requires --force, because consumers would never receive these
    messages.

    \b
    Examples:
      dledger broker topic create orders
      dledger broker topic create orders --queues 8
      dledger broker topic create orders --perm r        (no new messages)
      dledger broker topic create orders --type FIFO
    """
    if name in UNSENDABLE_TOPICS:
        raise error_for(
            Status.TOPIC_RESERVED, f"topic {name} is reserved for the broker: choose another name"
        )
    config = call_broker(
        target,
        lambda admin: admin.create_topic(
            name,
            queues=queues,
            permission=None if perm is None else _PERMS[perm],
            attributes={f"+{MESSAGE_TYPE}": message_type} if message_type else {},
            is_forced=force,
        ),
    )
    click.echo(f"{name}: {counted(config.write_queues, 'queue')}, {_perm_name(config.perm)}")


@topic.command()
@click.argument("name")
@target_options
def delete(name: str, target: Target) -> None:
    """Delete topic NAME, its messages and the offsets of all groups in it.

    \b
    Example:
      dledger broker topic delete orders
    """
    call_broker(target, lambda admin: admin.delete_topic(name))
    click.echo(f"{name} is deleted")


@topic.command(name="list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List all topics.

    \b
    Example:
      dledger broker topic list
    """
    topics = call_broker(target, lambda admin: admin.topics())
    if as_json:
        print_json([config.to_fields() for config in topics])
        return
    print_table(
        ("topic", "read queues", "write queues", "perm", "type"),
        [
            (
                c.name,
                c.read_queues,
                c.write_queues,
                _perm_name(c.perm),
                c.message_type or "all",
            )
            for c in topics
        ],
    )


@topic.command()
@click.argument("name")
@target_options
@json_option
def stats(name: str, target: Target, as_json: bool) -> None:
    """Show the queues of topic NAME: offsets, number of messages, time of the newest message.

    `end` is the offset after the last message.

    \b
    Example:
      dledger broker topic stats orders
    """
    found = list(call_broker(target, lambda admin: admin.topic_stats(name)).values())
    if as_json:
        print_json([queue.to_fields() for queue in found])
        return
    print_table(
        ("queue", "begin", "end", "messages", "newest"),
        [
            (
                q.queue_id,
                q.min_offset,
                q.max_offset,
                q.max_offset - q.min_offset,
                shown_time(q.last_update_ms),
            )
            for q in found
        ],
    )
    messages = sum(q.max_offset - q.min_offset for q in found)
    click.echo(f"{counted(messages, 'message')} in {counted(len(found), 'queue')}")


def _perm_name(perm: int) -> str:
    names = {bits: name for name, bits in _PERMS.items()}
    return names[perm & _PERMS["rw"]]

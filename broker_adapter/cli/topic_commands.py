"""`dledger broker topic`: create, delete, list, stats."""

from __future__ import annotations

import click

from broker_adapter.api import MESSAGE_TYPES, PERM_READ, PERM_WRITE
from broker_adapter.cli.connect.options import ask_broker, json_option, shown_time, target_options
from broker_adapter.cli.connect.target import Target
from dledger.cli.output import counted
from dledger.platform import print_json, print_table

_PERMS = {"rw": PERM_READ | PERM_WRITE, "r": PERM_READ, "w": PERM_WRITE, "none": 0}
_MAX_QUEUES = 1024


@click.group()
def topic() -> None:
    """Create, delete, list and measure topics.

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
    default=4,
    show_default=True,
    help="How many queues: at most so many consumers of a group share the topic.",
)
@click.option(
    "--perm",
    type=click.Choice(list(_PERMS)),
    default="rw",
    show_default=True,
    help="Readable, writable, both or nothing.",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice(MESSAGE_TYPES[1:], case_sensitive=False),
    default=None,
    help="Which messages it takes of clients that say what theirs are. All, if not given.",
)
def create(name: str, target: Target, queues: int, perm: str, message_type: str | None) -> None:
    """Create topic NAME, or change the one of that name.

    \b
    Examples:
      dledger broker topic create orders
      dledger broker topic create orders --queues 8
      dledger broker topic create orders --perm r        (no new messages)
      dledger broker topic create orders --type FIFO
    """
    ask_broker(
        target,
        lambda admin: admin.create_topic(
            name,
            queues=queues,
            permission=_PERMS[perm],
            attributes={"+message.type": message_type} if message_type else {},
        ),
    )
    click.echo(f"{name}: {counted(queues, 'queue')}, {perm}")


@topic.command()
@click.argument("name")
@target_options
def delete(name: str, target: Target) -> None:
    """Delete topic NAME, its messages and the offsets of all groups in it.

    \b
    Example:
      dledger broker topic delete orders
    """
    ask_broker(target, lambda admin: admin.delete_topic(name))
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
    found = ask_broker(target, lambda admin: admin.topics())
    if as_json:
        print_json([config.told() for config in found])
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
            for c in found
        ],
    )


@topic.command()
@click.argument("name")
@target_options
@json_option
def stats(name: str, target: Target, as_json: bool) -> None:
    """Show every queue of topic NAME: offsets, messages, time of the newest one.

    `end` is one behind the last message.

    \b
    Example:
      dledger broker topic stats orders
    """
    found = list(ask_broker(target, lambda admin: admin.topic_stats(name)).values())
    if as_json:
        print_json([queue._asdict() for queue in found])
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

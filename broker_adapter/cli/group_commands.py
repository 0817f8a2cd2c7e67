"""`dledger broker group`: create, delete and list consumer groups."""

from __future__ import annotations

import click

from broker_adapter.api import GroupConfig
from broker_adapter.cli.connect.options import call_broker, json_option, target_options
from broker_adapter.cli.connect.target import Target
from dledger.cli.output import print_json, print_table
from dledger.cli.suggesting_group import SuggestingGroup

_YES = {True: "yes", False: "no"}


@click.group(cls=SuggestingGroup)
def group() -> None:
    """Create, delete and list consumer groups.

    Consumers create theirs on first use, unless automatic creation is off.

    \b
    Examples:
      dledger broker group create billing
      dledger broker group list
      dledger broker group delete billing
    """


@group.command()
@click.argument("name")
@target_options
@click.option(
    "--orderly/--not-orderly",
    default=None,
    help="Deliver one message of a queue at a time (clients that receive and acknowledge).  "
    "[default of a new group: not]",
)
@click.option(
    "--retries",
    type=click.IntRange(-1),
    default=None,
    help="Number of redeliveries before a message becomes a dead letter; -1: no limit.  "
    f"[default of a new group: {GroupConfig('').retry_max_times}]",
)
def create(name: str, target: Target, orderly: bool | None, retries: int | None) -> None:
    """Create group NAME, or change the given settings of an existing one.

    \b
    Examples:
      dledger broker group create billing
      dledger broker group create billing --orderly --retries 3
    """
    call_broker(
        target,
        lambda admin: admin.create_group(name, retry_max_times=retries, consume_orderly=orderly),
    )
    click.echo(f"{name} exists")


@group.command()
@click.argument("name")
@target_options
@click.option("--force", is_flag=True, help="Delete the group even if it has connected members.")
def delete(name: str, target: Target, force: bool) -> None:
    """Delete group NAME and its offsets.

    Stop its members first: they would recreate it with default settings, and are therefore an error without
    --force. A later group of the same name
    starts without offsets. `mqadmin deleteSubGroup` keeps them unless -r is true.

    \b
    Example:
      dledger broker group delete billing
    """
    call_broker(target, lambda admin: admin.delete_group(name, is_forced=force))
    click.echo(f"{name} is deleted")


@group.command(name="list")
@target_options
@json_option
def list_(target: Target, as_json: bool) -> None:
    """List all groups.

    \b
    Example:
      dledger broker group list
    """
    groups = call_broker(target, lambda admin: admin.groups())
    if as_json:
        print_json([config.to_fields() for config in groups])
        return
    print_table(
        ("group", "may consume", "retries", "orderly"),
        [(c.name, _YES[c.consume_enable], c.retry_max_times, _YES[c.consume_orderly]) for c in groups],
    )

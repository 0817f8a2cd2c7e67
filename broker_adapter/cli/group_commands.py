"""`dledger broker group`: create, delete, list."""

from __future__ import annotations

import click

from broker_adapter.api import GroupConfig
from broker_adapter.cli.connect.options import ask_broker, json_option, target_options
from broker_adapter.cli.connect.target import Target
from dledger.platform import print_json, print_table

_YES = {True: "yes", False: "no"}


@click.group()
def group() -> None:
    """Create, delete and list consumer groups. Consumers create theirs on first use, unless that is off.

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
    "--orderly",
    is_flag=True,
    help="Give nothing more of a queue while something of it is held (clients that receive and acknowledge).",
)
@click.option(
    "--retries",
    type=click.IntRange(-1),
    default=GroupConfig("").retry_max_times,
    show_default=True,
    help="How often a message is given again before it goes to the dead letters; -1: for ever.",
)
def create(name: str, target: Target, orderly: bool, retries: int) -> None:
    """Create group NAME, or change the one of that name.

    \b
    Examples:
      dledger broker group create billing
      dledger broker group create billing --orderly --retries 3
    """
    config = GroupConfig(name, retry_max_times=retries, consume_orderly=orderly)
    ask_broker(target, lambda admin: admin.put_group(config))
    click.echo(f"{name} is there")


@group.command()
@click.argument("name")
@target_options
def delete(name: str, target: Target) -> None:
    """Delete group NAME and its offsets. Refused while it has members.

    \b
    Example:
      dledger broker group delete billing
    """
    ask_broker(target, lambda admin: admin.delete_group(name))
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
    found = ask_broker(target, lambda admin: admin.groups())
    if as_json:
        print_json([config.told() for config in found])
        return
    print_table(
        ("group", "may consume", "retries", "orderly"),
        [(c.name, _YES[c.consume_enable], c.retry_max_times, _YES[c.consume_orderly]) for c in found],
    )

"""`dledger broker group`: create, delete, list."""

from __future__ import annotations

import click

from broker_adapter.api import GroupConfig
from broker_adapter.cli.broker_options import ask_broker, json_option, target_options
from broker_adapter.cli.broker_target import Target
from dledger import print_json, print_table


@click.group()
def group() -> None:
    """Consumer groups: create, delete, list. Consumers create theirs by themselves, unless that is off.

    \b
    Examples:
      dledger broker group create billing
      dledger broker group list
      dledger broker group delete billing
    """


@group.command()
@click.argument("name")
@target_options
def create(name: str, target: Target) -> None:
    """Create group NAME.

    \b
    Example:
      dledger broker group create billing
    """
    ask_broker(target, lambda admin: admin.put_group(GroupConfig(name)))
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
        print_json([config._asdict() for config in found])
        return
    print_table(
        ("group", "may consume", "retries"),
        [(c.name, "yes" if c.consume_enable else "no", c.retry_max_times) for c in found],
    )

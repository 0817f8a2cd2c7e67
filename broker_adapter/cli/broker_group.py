"""`dledger broker`: root of the broker's commands, and their error handling."""

from __future__ import annotations

from typing import Any

import click

from broker_adapter.cli.backup_commands import backup, restore
from broker_adapter.cli.connect.errors import error_line, exit_code_of
from broker_adapter.cli.group_commands import group
from broker_adapter.cli.import_command import import_
from broker_adapter.cli.messages.consume_command import consume
from broker_adapter.cli.messages.produce_command import produce
from broker_adapter.cli.messages.query_command import query
from broker_adapter.cli.mirror_command import mirror
from broker_adapter.cli.offset_commands import offsets
from broker_adapter.cli.role_command import role
from broker_adapter.cli.status_command import status
from broker_adapter.cli.topic_commands import topic
from broker_adapter.errors import BrokerError
from dledger.cli.suggesting_group import SuggestingGroup


class _Group(SuggestingGroup):
    """Prints a broker error on one line and exits with the code of the error.

    The root command handles errors of the log.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokerError as error:
            if ctx.find_root().params.get("debug"):
                raise
            click.echo(error_line(error), err=True)
            ctx.exit(exit_code_of(error))


@click.group(cls=_Group)
def broker() -> None:
    """Use and monitor the message broker: topics, messages, groups.

    \b
    Try it on this machine, with three nodes and a NameServer:
      dledger cluster up --broker --dir /tmp/broker --detach
      export DLEDGER_NAMESRV=127.0.0.1:21111
      dledger broker topic create orders --queues 4
      echo hello | dledger broker produce --topic orders
      dledger broker consume --topic orders --group billing
      dledger cluster kill --dir /tmp/broker leader
      echo again | dledger broker produce --topic orders
      dledger broker consume --topic orders --group billing
      dledger broker offsets show billing
      dledger broker status
    """


for _command in (
    topic,
    produce,
    consume,
    offsets,
    group,
    query,
    status,
    import_,
    mirror,
    role,
    backup,
    restore,
):
    broker.add_command(_command)

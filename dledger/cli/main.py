"""The `dledger` command, which contains all commands and handles their errors."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

import click

from dledger.cli.exits import EXIT_CODES_HELP, Exit, disk_error, exit_code_of, print_error, show_exit_codes
from dledger.cli.start import importing
from dledger.cli.suggesting_group import SuggestingGroup
from dledger.cli.version_option import version_option
from dledger.errors import DLedgerError
from dledger.infra.libraries import configure_libraries

# command -> module:attribute, loaded on use, so that a server does not load the dependencies of other
# commands.
_COMMANDS = {
    "init": "dledger.cli.server_commands:init",
    "server": "dledger.cli.server_commands:server",
    "cluster": "dledger.cli.local.cluster_commands:cluster",
    "append": "dledger.cli.append_command:append",
    "read": "dledger.cli.read_command:read",
    "status": "dledger.cli.status_command:status",
    "health": "dledger.cli.health_command:health",
    "transfer": "dledger.cli.status_command:transfer",
    "member": "dledger.cli.member_commands:member",
    "purge": "dledger.cli.upkeep_commands:purge",
    "scrub": "dledger.cli.upkeep_commands:scrub",
    "backup": "dledger.cli.upkeep_commands:backup",
    "restore": "dledger.cli.upkeep_commands:restore",
    "set-term": "dledger.cli.set_term_command:set_term",
    "recover": "dledger.cli.recover_command:recover",
    "mirror": "dledger.cli.mirror_commands:mirror",
    "inspect": "dledger.cli.inspect_command:inspect",
}


#: The entry point group for packages that add commands.
PLUG_INS: Final = "dledger.commands"


class RootGroup(SuggestingGroup):
    """Loads commands on demand, and turns errors into one line and an exit code."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.targets = dict(_COMMANDS)

    def extended(self, more: Mapping[str, str]) -> RootGroup:
        """Return a copy with additional commands, for packages above this one: name -> module:attribute.
        Replaces commands of the same name."""
        root = copy.copy(self)
        root.targets = {**self.targets, **more}
        return root

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.targets:
            return None
        module, _, attribute = self.targets[cmd_name].partition(":")
        with importing():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        show_exit_codes(command, EXIT_CODES_HELP)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DLedgerError as error:
            if ctx.params.get("debug"):
                raise
            print_error(error)
            ctx.exit(exit_code_of(error))
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(Exit.INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise  # the reader of the pipe, such as `head`, has closed it: click exits silently
        except OSError as error:
            if ctx.params.get("debug"):
                raise
            refused = disk_error(error)
            print_error(refused)
            ctx.exit(exit_code_of(refused))
        except Exception as error:
            if ctx.params.get("debug"):
                raise
            click.echo(
                f"error 500 INTERNAL_ERROR: {type(error).__name__}: {error}; "
                "this is a bug: `dledger --debug ...` shows the traceback",
                err=True,
            )
            ctx.exit(Exit.FAILED)


@click.group(
    cls=RootGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EXIT_CODES_HELP,
)
@click.option("--debug", is_flag=True, help="Show a traceback instead of a one-line error.")
@version_option
def cli(debug: bool) -> None:
    """Run, use and inspect a replicated, durable log.

    \b
    Try it on this machine, with three nodes:
      dledger cluster up --dir /tmp/log --detach
      export DLEDGER_SERVERS=127.0.0.1:20911,127.0.0.1:20912,127.0.0.1:20913
      echo hello | dledger append
      dledger read
      dledger cluster kill --dir /tmp/log leader
      echo again | dledger append
      dledger status
      dledger cluster down --dir /tmp/log

    Each command has examples in its own help: `dledger append --help`.
    """


def main(root: click.Command = cli) -> None:
    configure_libraries()
    root(prog_name="dledger")


@importing()
def with_plug_ins(root: RootGroup) -> RootGroup:
    """Return the root with the commands of installed packages. Each entry point of the group PLUG_INS is a
    function that takes the root and returns an extended one. Entry points of missing packages are ignored."""
    for point in sorted(metadata.entry_points(group=PLUG_INS), key=lambda point: point.name):
        package = point.module.partition(".")[0]
        try:
            extended = point.load()
        except ModuleNotFoundError as error:
            if error.name != package:
                raise
            continue
        root = extended(root)
        assert isinstance(root, RootGroup), f"{point.value} gives {root!r}"
    return root


def command() -> None:
    """Run the installed `dledger` command."""
    assert isinstance(cli, RootGroup)
    main(with_plug_ins(cli))

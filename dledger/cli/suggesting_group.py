"""A group of commands that suggests commands in place of an unknown one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from dledger.infra.similar_names import did_you_mean


class SuggestingGroup(click.Group):
    """Suggests the command of the same name in a group below, or else commands with similar names.

    Click itself suggests options, but no commands that are loaded on demand, and before version 8.4 none.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        paths = list(_paths_below(self, ctx))
        nested = [path for path in paths if path.split()[-1] == name]
        hint = (
            f"did you mean {' or '.join(nested)}?"
            if nested
            else did_you_mean(name, self.list_commands(ctx)) or did_you_mean(name, paths)
        )
        raise click.UsageError(f"there is no command {name!r}" + (f"; {hint}" if hint else ""), ctx)


def _paths_below(group: click.Group, ctx: click.Context, above: str = "") -> Iterator[str]:
    for name in group.list_commands(ctx):
        path = f"{above} {name}".strip()
        yield path
        command = group.get_command(ctx, name)
        if isinstance(command, click.Group):
            yield from _paths_below(command, ctx, path)

"""`dledger explain`: meaning, cause and fix of an error."""

from __future__ import annotations

import re

import click

from broker_adapter.errors import Status
from dledger import Code
from dledger.infra.similar_names import did_you_mean

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>\.\./)?(?P<target>[^)#]*)[^)]*\)")


@click.command()
@click.argument("error")
def explain(error: str) -> None:
    """Explain ERROR, a number or a name: its meaning, its cause, and its fix.

    \b
    Examples:
      dledger explain 415
      dledger explain NOT_MASTER

    \b
    Exit codes:
      0  done
      2  unknown error
    """
    for row in _look_up(error):
        click.echo(f"{int(row)} {row.name}")
        for label, text in (("meaning", row.meaning), ("cause", row.cause), ("fix", row.fix)):
            click.echo(f"{label + ':':<9}{_plain(text)}")


def _look_up(text: str) -> list[Code | Status]:
    """Return the errors with this number or name. The log and the broker share some names."""
    errors: tuple[Code | Status, ...] = (*Code, *Status)
    name = text.upper().replace("-", "_")
    if rows := [row for row in errors if text == str(int(row)) or name == row.name]:
        return rows
    hint = did_you_mean(name, (row.name for row in errors))
    hint = hint or "docs/reference/troubleshooting.md lists all errors"
    raise click.UsageError(f"there is no error {text}; {hint}")


def _plain(text: str) -> str:
    """Remove Markdown markup; links become the paths of files in docs/."""

    def shown(link: re.Match[str]) -> str:
        return f"{link['text']} (docs/{'' if link['up'] else 'reference/'}{link['target']})"

    return _LINK.sub(shown, text).replace("`", "")

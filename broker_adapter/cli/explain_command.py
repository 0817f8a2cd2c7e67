"""`dledger explain`: meaning, cause and fix of an error."""

from __future__ import annotations

import re

import click

from broker_adapter.errors import Status
from dledger import Code
from dledger.infra.similar_names import did_you_mean

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>\.\./)?(?P<target>[^)#]*)[^)]*\)")

_ERRORS: tuple[Code | Status, ...] = (*Code, *Status)


@click.command()
@click.argument("error", required=False)
def explain(error: str | None) -> None:
    """Explain ERROR, a number or a name: its meaning, its cause, and its fix. Without ERROR, list all errors.

    \b
    Examples:
      dledger explain
      dledger explain 415
      dledger explain NOT_MASTER

    \b
    Exit codes:
      0  done
      2  unknown error
    """
    if error is None:
        for row in _ERRORS:
            click.echo(f"{int(row)} {row.name}: {_plain(row.meaning)}")
        return
    for row in _look_up(error):
        click.echo(f"{int(row)} {row.name}")
        for label, text in (("meaning", row.meaning), ("cause", row.cause), ("fix", row.fix)):
            click.echo(f"{label + ':':<9}{_plain(text)}")


def _look_up(text: str) -> list[Code | Status]:
    """Return the errors with this number or name. The log and the broker share some names."""
    name = text.upper().replace("-", "_")
    if rows := [row for row in _ERRORS if text == str(int(row)) or name == row.name]:
        return rows
    hint = did_you_mean(name, (row.name for row in _ERRORS))
    hint = hint or "`dledger explain` lists all errors"
    raise click.UsageError(f"there is no error {text}; {hint}")


def _plain(text: str) -> str:
    """Remove Markdown markup; links become the paths of files in docs/."""

    def shown(link: re.Match[str]) -> str:
        return f"{link['text']} (docs/{'' if link['up'] else 'reference/'}{link['target']})"

    return _LINK.sub(shown, text).replace("`", "")

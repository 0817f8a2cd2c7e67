"""`dledger explain`: meaning, cause and fix of an error number."""

from __future__ import annotations

import re

import click

from broker_adapter.errors import Status
from dledger import Code

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>\.\./)?(?P<target>[^)#]*)[^)]*\)")


@click.command()
@click.argument("number", type=int)
def explain(number: int) -> None:
    """Explain error NUMBER: its meaning, its cause, and its fix.

    \b
    Examples:
      dledger explain 415
      dledger explain 700

    \b
    Exit codes:
      0  done
      2  unknown number
    """
    error = _look_up(number)
    click.echo(f"{number} {error.name}")
    for label, text in (("meaning", error.meaning), ("cause", error.cause), ("fix", error.fix)):
        click.echo(f"{label + ':':<9}{_plain(text)}")


def _look_up(number: int) -> Code | Status:
    errors: tuple[Code | Status, ...] = (*Code, *Status)
    for error in errors:
        if error == number:
            return error
    raise click.UsageError(f"there is no error {number}; docs/reference/troubleshooting.md lists all errors")


def _plain(text: str) -> str:
    """Remove Markdown markup; links become the paths of files in docs/."""

    def shown(link: re.Match[str]) -> str:
        return f"{link['text']} (docs/{'' if link['up'] else 'reference/'}{link['target']})"

    return _LINK.sub(shown, text).replace("`", "")

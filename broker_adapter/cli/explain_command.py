"""`dledger explain`: what an error number means, what causes it, and what to do."""

from __future__ import annotations

import re

import click

from broker_adapter.error_advice import BROKER_ADVICE
from dledger.platform import LOG_ADVICE, Advice

_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<up>\.\./)?(?P<target>[^)#]*)[^)]*\)")


@click.command()
@click.argument("number", type=int)
def explain(number: int) -> None:
    """Explain error NUMBER: its meaning, its cause, and what to do.

    \b
    Examples:
      dledger explain 415
      dledger explain 700

    \b
    Exit codes:
      0  done
      2  there is no such number
    """
    name, advice = _look_up(number)
    click.echo(f"{number} {name}")
    for label, text in (("meaning", advice.meaning), ("cause", advice.cause), ("fix", advice.fix)):
        click.echo(f"{label + ':':<9}{_plain(text)}")


def _look_up(number: int) -> tuple[str, Advice]:
    for table in (LOG_ADVICE, BROKER_ADVICE):
        for known, advice in table.items():
            if known == number:
                return known.name, advice
    raise click.UsageError(f"there is no error {number}; docs/reference/troubleshooting.md has all of them")


def _plain(text: str) -> str:
    """Without the marks of Markdown; links as the files of docs/ that they lead to."""

    def shown(link: re.Match[str]) -> str:
        return f"{link['text']} (docs/{'' if link['up'] else 'reference/'}{link['target']})"

    return _LINK.sub(shown, text).replace("`", "")

"""Whether a command line that a page names is one that the programs take."""

from __future__ import annotations

import re
from functools import cache
from typing import cast

import click

from broker_adapter.cli.main import cli as dledger
from broker_adapter.cli.namesrv_command import cli as dledger_namesrv
from chaos.checker.main import command as dledger_check
from chaos.cli.main import cli as dledger_chaos
from tests.docs.pages import ROOT, Command

PROGRAMS: dict[str, click.Command] = {
    "dledger": dledger,
    "dledger-namesrv": dledger_namesrv,
    "dledger-chaos": dledger_chaos,
    "dledger-check": cast(click.Command, dledger_check),
}
_VARIABLE = re.compile(r"([A-Z]+)=")


@cache
def make_targets() -> frozenset[str]:
    phony = re.findall(r"^([a-z][\w-]*):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return frozenset(phony)


@cache
def make_variables() -> frozenset[str]:
    return frozenset(re.findall(r"^([A-Z][A-Z_]*) [:?]?=", (ROOT / "Makefile").read_text(), re.MULTILINE))


def fault_of(command: Command) -> str | None:
    """What is wrong with it; None if nothing is."""
    program, *words = command.words
    if program == "make":
        return _fault_of_make(words)
    if program == "python":
        return _fault_of_python(words)
    return _fault_of_click(PROGRAMS[program], words)


def _fault_of_python(words: list[str]) -> str | None:
    """A module or a file of ours has to exist; modules of others are theirs."""
    if words[:1] == ["-m"] and words[1].split(".")[0] in ("dledger", "broker_adapter", "chaos", "tests"):
        path = ROOT / words[1].replace(".", "/")
        runnable = path.with_suffix(".py").exists() or (path / "__main__.py").exists()
        return None if runnable else f"there is no module {words[1]} to run"
    if words[:1] and words[0].endswith(".py") and not (ROOT / words[0]).exists():
        return f"there is no {words[0]}"
    return None


def _fault_of_make(words: list[str]) -> str | None:
    for word in words:
        if variable := _VARIABLE.match(word):
            if variable[1] not in make_variables() | {"PYTHON"}:
                return f"make reads no variable {variable[1]}"
        elif re.fullmatch(r"[a-z][\w-]*", word) and word not in make_targets():
            return f"make has no target {word}"
    return None


def _fault_of_click(command: click.Command, words: list[str]) -> str | None:
    context = click.Context(command)
    arguments = 0
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word in ("--", "..."):
            continue
        if word.startswith("-") and len(word) > 1:
            name, equals, _ = word.partition("=")
            option = _option(command, context, name)
            if option is None:
                return f"{command.name}: no option {name}"
            if not option.is_flag and not option.count and not equals:
                at += option.nargs
        elif isinstance(command, click.Group):
            names = word.split("|") if "|" in word else [word]
            found = [command.get_command(context, name) for name in names]
            if None in found:
                return f"{command.name}: no command {word}"
            assert found[0] is not None
            command, context = found[0], click.Context(found[0], parent=context)
        else:
            arguments += 1
    return None


def _option(command: click.Command, context: click.Context, name: str) -> click.Option | None:
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option) and name in (*parameter.opts, *parameter.secondary_opts):
            return parameter
    return None

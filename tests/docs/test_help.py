"""Each `--help` has an example that works, the exit codes, and a text for every option."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from tests.docs.command_lines import PROGRAMS, fault_of
from tests.docs.pages import Command, commands_of


def commands_below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands_below(inner, (*path, name))


PATHS = [path for name, command in PROGRAMS.items() for path in commands_below(command, (name,))]


def found(path: tuple[str, ...]) -> click.Command:
    command = PROGRAMS[path[0]]
    for name in path[1:]:
        assert isinstance(command, click.Group)
        inner = command.get_command(click.Context(command), name)
        assert inner is not None
        command = inner
    return command


def help_of(path: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(PROGRAMS[path[0]], [*path[1:], "--help"], prog_name=path[0])
    assert shown.exit_code == 0
    return shown.output


def examples_of(text: str) -> list[Command]:
    """Commands on lines of their own, in the part of the help that click does not wrap."""
    # From 3.13 on, the compiler removes the indentation of docstrings.
    text = inspect.cleandoc(text)
    lines = "\n".join(line.strip() for line in text.splitlines() if line.startswith("  "))
    return list(commands_of(f"```sh\n{lines}\n```\n"))


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_has_exit_codes_and_an_example_that_the_program_accepts(path: tuple[str, ...]) -> None:
    shown = help_of(path)
    assert "Exit code" in shown
    examples = examples_of(found(path).help or "")
    assert any(example.words[: len(path)] == path for example in examples), "no example"
    assert [f"{example}: {fault}" for example in examples if (fault := fault_of(example))] == []


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_every_option_has_a_description(path: tuple[str, ...]) -> None:
    command = found(path)
    options = (p for p in command.get_params(click.Context(command)) if isinstance(p, click.Option))
    assert [option.name for option in options if not option.hidden and not option.help] == []


def test_commands_in_groups_are_looked_at() -> None:
    assert ("dledger", "broker", "topic", "create") in PATHS

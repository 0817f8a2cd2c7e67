"""Pages name commands, options and make targets that exist."""

from __future__ import annotations

import re

import pytest

from tests.docs.command_lines import fault_of
from tests.docs.pages import HISTORY, ROOT, Block, Command, blocks_of, commands_of, markdown_pages

PAGES = [page for page in markdown_pages() if page != HISTORY]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_one_that_the_programs_take(page: str) -> None:
    text = (ROOT / page).read_text()
    written = {f"python {name}" for name in re.findall(r"^# (\w+\.py)$", text, re.MULTILINE)}
    commands = [c for c in commands_of(text) if " ".join(c.words[:2]) not in written]
    found = ((command, fault_of(command)) for command in commands)
    assert [f"{page}:{command.line}: {command}: {fault}" for command, fault in found if fault] == []


def test_commands_of_all_programs_are_looked_at() -> None:
    found = [command for page in PAGES for command in commands_of((ROOT / page).read_text())]
    assert {command.words[0] for command in found} >= {"make", "dledger", "dledger-chaos", "dledger-namesrv"}


PAGE = """\
Text with `dledger append --file F` and `make test`.

    echo a | dledger broker produce --topic t   # a comment
    sudo -u dledger dledger init --config n1.toml

```sh
DLEDGER_SERVERS=a:1 .venv/bin/dledger status \\
  --json && make demo INPUT=x
```
"""


def test_commands_are_found_in_sentences_and_in_blocks() -> None:
    assert list(blocks_of(PAGE)) == [
        Block("", 3, PAGE.split("\n    ", 1)[1].replace("\n    ", "\n").split("\n\n")[0] + "\n"),
        Block("sh", 7, PAGE.split("```sh\n")[1].removesuffix("\n```\n")),
    ]
    assert [str(command) for command in commands_of(PAGE)] == [
        "dledger broker produce --topic t",
        "dledger init --config n1.toml",
        "dledger status --json",
        "make demo INPUT=x",
        "dledger append --file F",
        "make test",
    ]


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("dledger append --fil", "append: no option --fil"),
        ("dledger broker topics", "broker: no command topics"),
        ("dledger-check --sparks a", "no option --sparks"),
        ("make tests", "make has no target tests"),
        ("make sim SEEDZ=1", "make reads no variable SEEDZ"),
        ("dledger cluster up|down --dir D", None),
        ("python -m tests.fuz --only x", "no module tests.fuz"),
        ("python examples/kw.py", "no examples/kw.py"),
    ],
)
def test_a_wrong_command_is_found(words: str, fault: str | None) -> None:
    found = fault_of(Command(1, tuple(words.split())))
    assert (found is None) if fault is None else found is not None and fault in found

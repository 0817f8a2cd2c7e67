"""The pages of docs/reference say what the code says, and the code leaves nothing undescribed."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from broker_adapter.cli.main import cli
from broker_adapter.error_advice import BROKER_ADVICE
from broker_adapter.errors import Status
from dledger.error_advice import LOG_ADVICE
from dledger.errors import Code
from tools.reference import config, metrics
from tools.reference.__main__ import FOLDER, PAGES
from tools.reference.symptoms import SYMPTOMS

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {int(code) for code in Code} | {int(status) for status in Status}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_page_of_the_folder_is_generated() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(PAGES)


def test_every_key_of_a_configuration_has_a_description() -> None:
    keys = [(key, text) for _, _, model in config._FILES for key, _, _, text in config.keys_of(model)]
    assert len(keys) > 150
    assert [key for key, text in keys if not text] == []


def test_every_metric_has_a_description() -> None:
    found = [metric for part in asyncio.run(metrics.families()) for metric in part]
    assert len(found) > 80
    assert [metric.name for metric in found if len(metric.documentation) < 10] == []


def test_every_error_number_has_advice() -> None:
    assert set(LOG_ADVICE) == set(Code)
    assert set(BROKER_ADVICE) == set(Status)
    for advice in (*LOG_ADVICE.values(), *BROKER_ADVICE.values()):
        assert advice.meaning and advice.cause and advice.fix


def codes_named(folder: Path) -> Iterator[str]:
    """Members of Code that the code names, except in the tables of all numbers."""
    for path in folder.rglob("*.py"):
        if path.name in ("errors.py", "error_advice.py") or "v1" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "Code"
            ):
                yield node.attr


def test_only_numbers_that_nothing_gives_are_said_never_to_be_given() -> None:
    named = set(codes_named(ROOT / "dledger"))
    assert len(named) > 30
    never = {code.name for code, advice in LOG_ADVICE.items() if not advice.is_given}
    assert never & named == set()
    defaults = {"SUCCESS", "UNKNOWN"}
    assert {code.name for code in Code} - never - named <= defaults


def test_symptoms_lead_to_numbers_that_exist() -> None:
    texts = [" ".join(row) for _, rows in SYMPTOMS for row in rows]
    numbers = {int(number) for text in texts for number in re.findall(r"\b[34567]\d\d\b", text)}
    assert len(numbers) > 25
    assert numbers - NUMBERS == set()


@pytest.mark.parametrize("number", [415, 700])
def test_a_number_is_explained_on_the_command_line(number: int) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(number)])
    assert shown.exit_code == 0
    advice = LOG_ADVICE[Code(number)] if number < 700 else BROKER_ADVICE[Status(number)]
    for text in (str(number), advice.meaning.replace("`", ""), advice.cause.replace("`", "")):
        assert text in shown.output


def test_links_of_an_explanation_lead_to_files() -> None:
    outputs = [CliRunner().invoke(cli, ["explain", "--", str(number)]).output for number in sorted(NUMBERS)]
    targets = {target for output in outputs for target in re.findall(r"\(docs/([^)]*)\)", output)}
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


def test_an_unknown_number_is_a_usage_error() -> None:
    assert CliRunner().invoke(cli, ["explain", "12"]).exit_code == 2

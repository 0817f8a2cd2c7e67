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
from broker_adapter.errors import BrokerError, Status
from chaos.checker.checks import CHECKS
from dledger.errors import Code, DLedgerError
from tests.docs.reference import checks, config, metrics
from tests.docs.reference.__main__ import FOLDER, PAGES
from tests.docs.reference.symptoms import SYMPTOMS

ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {int(code) for code in Code} | {int(status) for status in Status}


@pytest.mark.parametrize("name", sorted(PAGES))
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name](), "run `make reference`"


def test_every_page_of_the_folder_is_generated() -> None:
    assert {page.name for page in FOLDER.iterdir()} == set(PAGES)


@pytest.mark.parametrize("name", (checks.DESIGN, *checks.FAMILIES))
def test_tables_of_checks_are_generated(name: str) -> None:
    assert (checks.FOLDER / name).read_text() == checks.page(name), "run `make reference`"


def test_every_check_is_on_one_page() -> None:
    assert {page.name for page in checks.FOLDER.iterdir()} == {checks.DESIGN, *checks.FAMILIES}
    assert {check.id[0] for check in CHECKS} == set("".join(checks.FAMILIES.values()))


def test_every_key_of_a_configuration_has_a_description() -> None:
    keys = [(key, text) for _, _, model in config._FILES for key, _, _, text in config.keys_of(model)]
    assert keys
    assert [key for key, text in keys if not text] == []


def test_every_metric_has_a_description() -> None:
    found = [metric for part in asyncio.run(metrics.families()) for metric in part]
    assert found
    assert [metric.name for metric in found if len(metric.documentation) < 10] == []


@pytest.mark.parametrize("error", (*Code, *Status))
def test_every_error_number_has_a_complete_row(error: Code | Status) -> None:
    assert error.meaning and error.cause and error.fix
    assert error.error not in (DLedgerError, BrokerError)


def names_used(enumeration: str, *folders: str) -> Iterator[str]:
    """Members of the enumeration that modules name, without the modules that define it."""
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        if path.name == "errors.py" or path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == enumeration
            ):
                yield node.attr


@pytest.mark.slow
def test_every_error_number_is_used() -> None:
    """A number that no module names, such as one of DLedger's that no node gives, has no row."""
    codes, statuses = names_used("Code", "dledger", "broker_adapter"), names_used("Status", "broker_adapter")
    assert {code.name for code in Code} <= {*codes}
    # FrameRefused gives FRAME_INVALID, in errors.py.
    assert {status.name for status in Status} <= {*statuses, "FRAME_INVALID"}


def test_symptoms_lead_to_numbers_that_exist() -> None:
    texts = [" ".join(row) for _, rows in SYMPTOMS for row in rows]
    numbers = {int(number) for text in texts for number in re.findall(r"\b[34567]\d\d\b", text)}
    assert numbers
    assert numbers - NUMBERS == set()


@pytest.mark.parametrize("number", [415, 700])
def test_a_number_is_explained_on_the_command_line(number: int) -> None:
    shown = CliRunner().invoke(cli, ["explain", str(number)])
    assert shown.exit_code == 0
    error = Code(number) if number < 700 else Status(number)
    for text in (f"{number} {error.name}", error.meaning.replace("`", ""), error.cause.replace("`", "")):
        assert text in shown.output


def test_links_of_an_explanation_lead_to_files() -> None:
    outputs = [CliRunner().invoke(cli, ["explain", "--", str(number)]).output for number in sorted(NUMBERS)]
    targets = {target for output in outputs for target in re.findall(r"\(docs/([^)]*)\)", output)}
    assert targets
    for target in targets:
        assert (ROOT / "docs" / target).exists(), target


@pytest.mark.parametrize("name", ["NOT_MASTER", "not_master", "not-master"])
def test_a_name_is_explained_as_its_number_is(name: str) -> None:
    assert (
        CliRunner().invoke(cli, ["explain", name]).output
        == CliRunner().invoke(cli, ["explain", "700"]).output
    )


def test_a_name_of_two_errors_explains_both() -> None:
    shown = CliRunner().invoke(cli, ["explain", "DISK_FULL"]).output
    assert f"{Code.DISK_FULL:d} DISK_FULL" in shown and f"{Status.DISK_FULL:d} DISK_FULL" in shown


@pytest.mark.parametrize(
    ("error", "hint"),
    [("12", "`dledger explain` lists all errors"), ("NOT_MASTR", "did you mean NOT_MASTER")],
)
def test_an_unknown_error_is_a_usage_error(error: str, hint: str) -> None:
    shown = CliRunner().invoke(cli, ["explain", error])
    assert shown.exit_code == 2
    assert hint in shown.output

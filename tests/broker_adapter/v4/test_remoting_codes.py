"""The table of request codes (endpoints.v4.requests), and the part of docs/remoting.md about it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from broker_adapter.endpoints.v4.request import CHANGE, Repetition
from broker_adapter.endpoints.v4.requests import ROWS, TABLE, Row, request_of, to_request
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand

PAGE = Path(__file__).parents[3] / "docs" / "remoting.md"
#: Requests from nodes to clients.
TO_CLIENTS = {RequestCode.CHECK_TRANSACTION_STATE, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
#: Requests of this project's own programs.
OWN = {
    RequestCode.BEGIN_QUEUE,
    RequestCode.IMPORT_MESSAGES,
    RequestCode.READ_QUEUE,
    RequestCode.CHANGE_BROKER_ROLE,
}
BY_CODE = pytest.mark.parametrize("row", TABLE, ids=lambda row: row.code.name)


class HandlerDependencies:
    """Every processor with every method: notes which one a row names."""

    def __init__(self, path: str = "") -> None:
        self.path = path

    def __getattr__(self, name: str) -> HandlerDependencies:
        return HandlerDependencies(f"{self.path}.{name}")

    def get(self, code: int) -> HandlerDependencies:
        return HandlerDependencies(f"{self.path}.{code}")


def codes_of(text: str) -> set[int]:
    """Codes in a cell, with ranges such as "29 to 32"."""
    found = re.findall(r"(\d+)(?: to (\d+))?", text)
    return {code for first, last in found for code in range(int(first), int(last or first) + 1)}


def test_each_code_has_one_row() -> None:
    assert len(ROWS) == len(TABLE)


@BY_CODE
def test_a_row_names_processors_that_exist(row: Row) -> None:
    """A row that names no processor of the node goes to the master, and has a handler there."""
    at_node = cast(Any, row.at_node)(HandlerDependencies("node")).path
    assert row.handler is not None or at_node != "node.forwarding.pass_on"


@BY_CODE
def test_a_change_is_never_cancelled_with_its_caller(row: Row) -> None:
    is_change = row.kind.repetition is not Repetition.SAFE or row.kind is CHANGE or row.for_operators
    assert not (is_change and row.kind.ends_with_caller)
    assert not (row.for_operators and (row.kind.is_read or row.kind.is_admin_query))


@BY_CODE
def test_a_change_that_tools_send_to_each_name_is_for_operators(row: Row) -> None:
    assert row.for_operators or not row.once_per_route
    assert not (row.once_per_route and row.send_only)


@BY_CODE
def test_a_forwarded_request_is_of_the_kind_of_its_row(row: Row) -> None:
    request = to_request(RemotingCommand(row.code))
    received = request_of(request.name, request.encoded())
    assert request.kind == row.kind
    assert (received.is_read, received.appends) == (row.kind.is_read, row.kind.appends)


def test_requests_that_are_not_repeated_at_another_master() -> None:
    unsafe = {code for code, row in ROWS.items() if row.kind.repetition is Repetition.UNSAFE}
    assert unsafe == {RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.CHANGE_MESSAGE_INVISIBLETIME}
    with_id = {code for code, row in ROWS.items() if row.kind.repetition is Repetition.WITH_ID}
    assert with_id == {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
    }


def test_the_page_names_the_codes_of_the_table() -> None:
    section = PAGE.read_text().split("## Requests to a broker\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\d, ]+) \|", section, re.MULTILINE)
    named = {int(code) for row in rows for code in row.split(",")}
    assert named - TO_CLIENTS == set(ROWS) - OWN


def test_the_page_names_the_codes_that_a_send_only_port_answers_differently() -> None:
    section = PAGE.read_text().split("| request | response at the send-only port |\n")[1].split("\n\n")[0]
    cells = [line.split("|")[1] for line in section.splitlines()[1:]]
    named = set().union(*(codes_of(cell) for cell in cells if "others" not in cell))
    assert named == {code for code, row in ROWS.items() if row.send_only or row.once_per_route}

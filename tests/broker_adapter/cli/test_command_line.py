"""Help that teaches, usage errors, times."""

from __future__ import annotations

import time
from datetime import datetime

import click
import pytest

from broker_adapter.cli.broker_group import broker
from broker_adapter.cli.connect.errors import error_line, exit_code_of
from broker_adapter.cli.connect.options import parse_moment, shown_time
from broker_adapter.errors import NotMaster, PutIndeterminate, Status, error_for
from dledger import Code
from dledger.cli.exits import Exit
from tests.cli.test_command_line import all_commands

from .conftest import BrokerCommand

COMMANDS = list(all_commands(broker, ("broker",)))
HERE = ("--namesrv", "127.0.0.1:1")


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: BrokerCommand, path: tuple[str, ...]) -> None:
    shown = command(*path, "--help").stdout
    assert "Example" in shown
    assert f"dledger {' '.join(path)}" in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("topic", "list"), "no broker given"),
        (("topic", "list", *HERE, "--servers", "127.0.0.1:2"), "mutually exclusive"),
        (("topic", "list", "--namesrv", "nowhere"), "'nowhere' is not an address of the form host:port"),
        (("topic", "list", *HERE, "--timeout", "nan"), "not a number of seconds"),
        (("status", *HERE, "--watch", "--interval", "inf"), "not a number of seconds"),
        (("topic", "create", "x", *HERE, "--queues", "0"), "0 is not in the range"),
        (("produce", "--topic", "x", *HERE, "--ordered"), "--ordered requires"),
        (("produce", "--topic", "x", *HERE, "--ordered", "--key", "k", "--queue", "1"), "mutually exclusive"),
        (("produce", "--topic", "x", *HERE, "--key", "a b"), "must not be empty or contain blanks"),
        (("produce", "--topic", "x", *HERE, "--tag", "a || b"), "consumers cannot select this tag"),
        (("consume", "--topic", "x", *HERE, "--group", "g", "--queue", "1"), "determines its own queues"),
        (("consume", "--topic", "x", *HERE, "--offset", "1"), "--offset requires --queue"),
        (("consume", "--topic", "x", "--topic", "y", *HERE, "--queue", "1"), "requires exactly one --topic"),
        (("consume", "--topic", "x", *HERE, "--from", "soon"), "'soon' is not a valid time"),
        (("offsets", "reset", "g", *HERE), "exactly one of --to-earliest"),
        (("offsets", "reset", "g", *HERE, "--to", "1", "--to-latest"), "exactly one of --to-earliest"),
        (("offsets", "reset", "g", *HERE, "--to", "1", "--queue", "1"), "requires exactly one --topic"),
        (("query", *HERE), "exactly one of --key, --id and --offset"),
        (("query", *HERE, "--key", "k"), "--topic is required"),
        (("query", *HERE, "--topic", "t", "--offset", "1"), "must be passed together"),
        (("query", *HERE, "--topic", "t", "--key", "k", "--begin", "x"), "'x' is not a valid time"),
    ],
)
def test_wrong_options_are_refused_before_anybody_is_asked(
    command: BrokerCommand, arguments: tuple[str, ...], complaint: str
) -> None:
    assert complaint in command("broker", *arguments, code=2).stderr


def test_without_anybody_there_the_error_says_what_to_check(command: BrokerCommand) -> None:
    shown = command("broker", "topic", "list", *HERE, "--timeout", "0.2", code=1).stderr
    assert shown.startswith("error 705 NOT_CONNECTED: no NameServer responded")
    assert "check --servers or --namesrv" in shown and shown.count("\n") == 1


def test_errors_are_one_line_with_the_fix_and_an_exit_code() -> None:
    unknown = PutIndeterminate(Status.OUTCOME_UNKNOWN, "no answer")
    assert error_line(unknown).startswith("error 710 OUTCOME_UNKNOWN: no answer; check ")
    assert exit_code_of(unknown) is Exit.INDETERMINATE
    assert exit_code_of(NotMaster("not here")) is Exit.FAILED
    assert error_line(error_for(Status.BODY_TOO_LARGE, "much")) == "error 734 BODY_TOO_LARGE: much"


def test_times_are_numbers_dates_or_ages() -> None:
    assert parse_moment("1700000000000") == 1_700_000_000_000
    assert parse_moment("2025-01-31T12:00:00+00:00") == 1_738_324_800_000
    local = datetime(2025, 1, 31, 12, 0)
    assert parse_moment("2025-01-31T12:00") == int(local.timestamp() * 1000)
    before = time.time_ns() // 1_000_000
    assert before - 600_000 <= parse_moment("10m") <= time.time_ns() // 1_000_000 - 600_000
    for wrong in ("soon", "", "10x", "-5"):
        with pytest.raises(click.BadParameter):
            parse_moment(wrong)
    assert shown_time(0) == ""
    assert shown_time(int(local.timestamp() * 1000) + 7) == "2025-01-31 12:00:00.007"


def test_explain_without_an_error_lists_them_all(command: BrokerCommand) -> None:
    lines = command("explain").stdout.splitlines()
    assert [line.partition(" ")[0] for line in lines] == [str(int(one)) for one in (*Code, *Status)]

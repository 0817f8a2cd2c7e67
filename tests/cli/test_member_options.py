"""What `dledger member` asks of the group for each line, without a group."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from dledger.cli import member_commands
from dledger.core.membership_change import ChangeKind, MemberStep
from dledger.status.model import MemberAddress
from tests.cli.conftest import Command
from tests.status.fakes import make_follower, make_status

ADDRESS = "10.0.0.4:20911"
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """What becomes of the commands in this test."""
    made: list[Call] = []

    class Recorder:
        def __init__(self, client: object, *, timeout: float, report: object) -> None: ...

        def __getattr__(self, name: str) -> Callable[..., Awaitable[None]]:
            async def call(*arguments: Any, **options: Any) -> None:
                made.append((name, arguments, options))

            return call

    monkeypatch.setattr(member_commands, "MemberChanges", Recorder)
    return made


def step(kind: ChangeKind, node_id: str, address: str = "") -> tuple[MemberStep]:
    return (MemberStep(kind, node_id, address),)


@pytest.mark.parametrize(
    ("line", "expected", "said"),
    [
        (
            f"add n4 --address {ADDRESS}",
            ("add", ("n4", ADDRESS), {"as_voter": True, "force": False}),
            "n4 is a voter",
        ),
        (
            f"add n4 --address {ADDRESS} --learner --force",
            ("add", ("n4", ADDRESS), {"as_voter": False, "force": True}),
            "n4 is a learner",
        ),
        ("promote n4", ("change", step(ChangeKind.PROMOTE, "n4"), {"force": False}), "n4 is a voter"),
        ("promote n4 --force", ("change", step(ChangeKind.PROMOTE, "n4"), {"force": True}), "n4 is a voter"),
        ("demote n3 --force", ("change", step(ChangeKind.DEMOTE, "n3"), {"force": True}), "n3 is a learner"),
        ("remove n3", ("remove", ("n3",), {"force": False}), "n3 is no longer a member"),
        ("remove n3 --force", ("remove", ("n3",), {"force": True}), "n3 is no longer a member"),
        (
            f"move n3 --address {ADDRESS}",
            ("change", step(ChangeKind.MOVE, "n3", ADDRESS), {}),
            f"n3 is at {ADDRESS}",
        ),
        (
            f"replace n3 --by n4 --address {ADDRESS} --force",
            ("replace", ("n3", "n4", ADDRESS), {"force": True}),
            "n4 is a voter in place of n3",
        ),
        (
            f"replace n3 --address {ADDRESS}",
            ("replace", ("n3", "n3", ADDRESS), {"force": False}),
            "n3 is a voter in place of the old n3",
        ),
    ],
)
def test_each_option_reaches_the_group(
    command: Command, calls: list[Call], line: str, expected: Call, said: str
) -> None:
    result = command("member", *line.split(), "--servers", "127.0.0.1:1")
    assert calls == [expected] and result.stdout.strip() == said


def test_a_list_says_why_a_member_is_not_ready_and_which_learner_is() -> None:
    roles = {"n1": "voter", "n2": "voter", "n4": "learner", "n5": "learner"}
    members = tuple(MemberAddress(node, f"{node}:1", "", role) for node, role in roles.items())
    followers = (
        replace(make_follower("n2"), lag_entries=3, push_state="APPEND", not_ready=""),
        replace(make_follower("n4"), lag_entries=0, not_ready=""),
        replace(make_follower("n5"), lag_entries=9, not_ready="it lags"),
    )
    rows = member_commands._rows(make_status("n1", members=members, followers=followers))
    assert [row[-2:] for row in rows] == [(0, "leader"), (3, "APPEND"), (0, "ready"), (9, "it lags")]

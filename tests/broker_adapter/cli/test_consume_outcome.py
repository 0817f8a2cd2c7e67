"""What `consume --group` reports is what the broker has committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner, Result

from broker_adapter.cli.connect.target import Target
from broker_adapter.cli.main import cli
from broker_adapter.remoting.codes import RequestCode
from dledger.infra.loops.loop_thread import LoopThread
from tests.broker_adapter.client.test_members import MESSAGES, Broker, broker


@contextmanager
def running_broker() -> Iterator[Broker]:
    """A scripted one, on a thread of its own: commands need this one."""
    thread, world = LoopThread("broker"), broker()
    try:
        yield thread.run(world.__aenter__())
        thread.run(world.__aexit__(None, None, None))
    finally:
        thread.stop()


def consume(world: Broker, group: str, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    address = world.server.server.address

    async def name_servers(target: Target) -> list[str]:
        return [address]

    monkeypatch.setattr(Target, "name_servers", name_servers)
    arguments = ("--namesrv", address, "--topic", "t", "--group", group, "--follow")
    return CliRunner().invoke(cli, ["broker", "consume", *arguments, "--count", str(MESSAGES), *options])


def test_what_was_committed_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_broker() as world:
        result = consume(world, "g", monkeypatch)
    assert (result.exit_code, result.stderr) == (0, f"{MESSAGES} messages, committed for g\n")
    assert world.committed == {"0": MESSAGES}


def test_a_commit_that_a_reset_has_replaced_is_not_reported_as_made(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(
            0, "Offset has been previously reset"
        )
        result = consume(world, "g", monkeypatch)
    told = f"{MESSAGES} messages; the offsets of g were reset meanwhile, and the reset prevails\n"
    assert (result.exit_code, result.stderr) == (0, told)


@pytest.mark.parametrize("options", [(), ("--quiet",)])
def test_what_was_not_committed_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """As when all nodes are killed: the messages were printed, and come again."""
    with running_broker() as world:
        world.answers[RequestCode.UPDATE_CONSUMER_OFFSET] = lambda request: request.answer(1, "no master")
        result = consume(world, "g", monkeypatch, *options)
    assert result.exit_code == 1 and result.stdout.count("\n") == MESSAGES
    assert f"{MESSAGES} messages, not all committed for g\n" in result.stderr
    assert "no master" in result.stderr and ", committed for" not in result.stderr


def test_an_invalid_group_consumes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_broker() as world:
        result = consume(world, "a b", monkeypatch)
    assert (result.exit_code, result.stdout) == (1, "") and "767 GROUP_NAME_INVALID" in result.stderr
    assert not world.server.seen

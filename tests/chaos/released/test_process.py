"""A client's process, seen from the harness: it answers, raises, hangs, is killed, and dies."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from chaos.trace.outcomes import ClientError
from chaos.workloads.released import process
from chaos.workloads.released.process import ClientDied, ClientProcess

FAKE = Path(__file__).with_name("fake")
DRIVER = Path(process.__file__).with_name("driver.py")

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))


def command() -> list[str]:
    return [sys.executable, str(DRIVER), "4", "somewhere"]


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[ClientProcess]:
    client = ClientProcess("c", folder, command())
    await client.start()
    try:
        yield client
    finally:
        client.kill()
        await client.wait()


def sending(body: bytes) -> dict[str, Any]:
    return {"topic": "t", "body": b64encode(body).decode(), "tag": "a", "key": "k"}


async def test_a_producer_sends_and_says_what_it_raises(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await client.request("producer", topics=["t"])
        receipt = await client.request("send", **sending(b"12345"), message_group="g")
        assert receipt == {"offset": 5, "message_id": "id"}
        with pytest.raises(ClientError, match="no such topic") as refused:
            await client.request("send", **sending(b"refuse"))
        assert (refused.value.kind, refused.value.code) == ("RefusedException", 40002)
        assert await client.request("close") == {}


async def test_one_in_forty_answers_is_lost_and_the_client_sends_again(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await client.request("producer", topics=["t"])
        receipts = [await client.request("send", **sending(b"1")) for _ in range(41)]
        assert [receipt["message_id"] for receipt in receipts].count("id again") == 1


async def test_a_call_that_waits_holds_up_no_other(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await client.request("producer", topics=["t"])
        hanging = asyncio.create_task(client.request("send", **sending(b"hang")))
        assert (await client.request("send", **sending(b"1")))["offset"] == 1
        assert not hanging.done()
        client.kill()
        with pytest.raises(ClientDied, match="was killed"):
            await hanging


async def test_a_consumer_tells_where_a_message_stands_and_holds_it(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await client.request("consumer", group="g", topics=["t"], filter="*", wait_s=1)
        one, other = (await client.request("receive", most=2, invisible_s=4))["messages"]
        assert (one["topic"], one["q"], one["qoff"], one["attempt"]) == ("t", 3, 70, 2)
        await client.request("ack", handle=one["handle"])
        with pytest.raises(ClientError, match="KeyError"):
            await client.request("ack", handle=one["handle"])
        with pytest.raises(ClientError, match="not 1"):
            await client.request("change", handle=other["handle"], invisible_s=1)
        await client.request("forget", handle=other["handle"])
        with pytest.raises(ClientError, match="KeyError"):
            await client.request("ack", handle=other["handle"])


async def speak_of_transactions_and_delays(client: ClientProcess) -> None:
    await client.request("producer", topics=["t"])
    receipt = await client.request("send", **sending(b"1"), due_ms=1_700_000_000_000)
    assert await client.request("recall", topic="t", recall_handle=receipt["recall_handle"]) == {}
    with pytest.raises(ClientError, match="another"):
        await client.request("recall", topic="t", recall_handle="another")
    handles = []
    for body in (b"12", b"34"):
        begun = await client.request("half", **sending(body))
        [asked] = (await client.request("checks", wait_s=60))["messages"]
        assert b64decode(asked["body"]) == body
        handles.append((begun["handle"], asked["handle"]))
    (committed, asked_first), (rolled_back, asked_then) = handles
    assert await client.request("end", handle=committed, commit=True) == {}
    with pytest.raises(ClientError, match="no such transaction"):
        await client.request("end", handle=rolled_back, commit=False)
    assert await client.request("decide", handle=asked_first, commit=True) == {}
    with pytest.raises(ClientError, match="rolled back before"):
        await client.request("decide", handle=asked_then, commit=False)
    assert await client.request("checks", wait_s=0) == {"messages": []}


async def be_pushed_to(client: ClientProcess) -> None:
    """The first message fails once, and of the second the ack."""
    begun_ns = time.monotonic_ns()
    await client.request("push", group="g", topics=["t"], filter="*")
    attempts, received = [], [begun_ns]
    for is_done in (False, True):
        [one] = (await client.request("take", most=5, wait_s=60))["messages"]
        assert (one["topic"], one["q"], one["qoff"]) == ("t", 3, 70) and b64decode(one["body"]) == b"5 \xff"
        assert received[-1] < one["received_ns"] <= time.monotonic_ns()
        received.append(one["received_ns"])
        attempts.append(one["attempt"])
        assert await client.request("settle", handle=one["handle"], is_done=is_done) == {}
    assert attempts == [2, 3], "tries of the client count as well"
    [other] = (await client.request("take", most=5, wait_s=60))["messages"]
    with pytest.raises(ClientError, match="no such handle") as refused:
        await client.request("settle", handle=other["handle"], is_done=True)
    assert refused.value.code == 40002 and other["attempt"] == 2
    assert await client.request("take", most=5, wait_s=0) == {"messages": []}


async def test_transactions_are_ended_by_whoever_is_asked(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await speak_of_transactions_and_delays(client)


async def test_a_push_consumer_hands_over_and_is_told_what_became_of_it(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await be_pushed_to(client)


async def test_a_client_that_dies_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    async with started(tmp_path) as client:
        await client.request("producer", topics=["t"])
        with pytest.raises(ClientDied, match="something terrible"):
            await client.request("send", **sending(b"die"))
        with pytest.raises(ClientDied, match="died"):
            await client.request("close")


async def test_a_client_that_does_not_start_says_why(tmp_path: Path) -> None:
    client = ClientProcess("c", tmp_path, [sys.executable, "-c", "raise SystemExit('no such module')"])
    with pytest.raises(ClientDied, match="did not start: no such module"):
        await client.start()
    await client.wait()


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no `node` on PATH")
async def test_a_client_in_node_speaks_the_same(tmp_path: Path) -> None:
    driver = Path(process.__file__).with_name("driver.cjs")
    environment = {"NODE_PATH": str(FAKE.with_name("fake_node"))}
    client = ClientProcess("c", tmp_path, ["node", str(driver), "somewhere"], environment)
    await client.start()
    try:
        await client.request("producer", topics=["t"])
        assert await client.request("send", **sending(b"12345")) == {"offset": 5, "message_id": "id"}
        with pytest.raises(ClientError, match="no such topic") as refused:
            await client.request("send", **sending(b"refuse"))
        assert (refused.value.kind, refused.value.code) == ("RefusedException", 40002)
        await client.request("close")
        await client.request("consumer", group="g", topics=["t"], filter="*", wait_s=1)
        one, other = (await client.request("receive", most=2, invisible_s=4))["messages"]
        assert (one["topic"], one["q"], one["qoff"], one["attempt"]) == ("t", 3, 70, 2)
        assert b64decode(one["body"]) == b"5 \xff"
        await client.request("ack", handle=one["handle"])
        with pytest.raises(ClientError, match="not 1000"):
            await client.request("change", handle=other["handle"], invisible_s=1)
        await client.request("forget", handle=other["handle"])
        await client.request("close")
        await speak_of_transactions_and_delays(client)
        await client.request("close")
        await be_pushed_to(client)
    finally:
        client.kill()
        await client.wait()


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """A call that never returns does not keep it."""
    request = json.dumps({"id": 1, "do": "producer", "topics": ["t"]})
    hang = json.dumps({"id": 2, "do": "send", **sending(b"hang")})
    ended = subprocess.run(
        command(),
        input=f"{request}\n{hang}\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    first, *_ = ended.stdout.splitlines()
    assert ended.returncode == 0 and json.loads(first) == {"ready": True}
    assert all(json.loads(line) for line in ended.stdout.splitlines()), "what is printed is no answer"

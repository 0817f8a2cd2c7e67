"""Delayed messages and transactions of classic logs: begun at one broker, ended by the other one's kind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from broker_adapter.client import (
    Admin,
    LocalTransactionState,
    Message,
    MessageExt,
    Producer,
    TransactionProducer,
)
from dledger.cli.local.local_cluster import LocalCluster
from tests.process.cluster import free_ports

from . import genuine
from .genuine import eventually
from .test_classic_brokers import OURS, bodies, our_master

pytestmark = [pytest.mark.xdist_group("interop"), pytest.mark.process, pytest.mark.long]

#: Of a genuine broker: it asks soon, and until the producer has found it again.
#: It must keep an answer before it asks again, or it stores the message twice: an op message is written late.
SOON = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1000,
    "transactionOpBatchInterval": 50,
}
LEVEL_10_S = 3


class Asked:
    """What producers were asked about; they say that it is to be committed, once they `may_answer`."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.may_answer = False

    def check(self, message: MessageExt) -> LocalTransactionState:
        if not self.may_answer:
            return LocalTransactionState.UNKNOWN
        self.bodies.append(message.body)
        return LocalTransactionState.COMMIT_MESSAGE


@asynccontextmanager
async def producers(names: str, asked: Asked) -> AsyncIterator[TransactionProducer]:
    async with TransactionProducer("transactors", names, asked.check) as producer:
        yield producer


async def begin(names: str, transactions: TransactionProducer) -> None:
    """0 to 4 wait for 10 s, 5 to 9 are delivered, 10 is committed, 11 rolled back, 12 and 13 are open."""
    async with Producer("makers", names) as producer:
        for number in range(5, 10):
            await producer.send(Message("t", b"%d." % number, delay_level=1))

        async def are_delivered() -> bool:
            return await bodies(names, "t") == list(range(5, 10))

        await eventually(are_delivered)
        states = (
            LocalTransactionState.COMMIT_MESSAGE,
            LocalTransactionState.ROLLBACK_MESSAGE,
            LocalTransactionState.UNKNOWN,
            LocalTransactionState.UNKNOWN,
        )
        for number, state in enumerate(states, 10):
            await transactions.send_in_transaction(Message("t", b"%d." % number), lambda _, end=state: end)
        for number in range(5):
            await producer.send(Message("t", b"%d." % number, delay_level=LEVEL_10_S))


#: All of `begin` but what was rolled back.
WANTED = [*range(11), 12, 13]


async def until_all_have_come(names: str) -> None:
    async def have_come() -> bool:
        try:
            return len(await bodies(names, "t")) >= len(WANTED)
        except Exception:
            return False  # the broker is still being started

    with suppress(TimeoutError):
        await genuine.eventually(have_come, within_s=120)
    assert await bodies(names, "t") == WANTED, "each once"


async def until_kept(store: Path) -> None:
    """A genuine broker writes every 5 and 10 s how far it has come."""

    async def is_kept() -> bool:
        try:
            delays = (store / "config/delayOffset.json").read_text()
            return "1:5" in delays.replace('"', "").replace(" ", "")
        except FileNotFoundError:
            return False

    await eventually(is_kept)


async def test_a_genuine_broker_ends_what_ours_has_begun(tmp_path: Path) -> None:
    genuine.require()
    port, asked = free_ports(1)[0], Asked()
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        async with producers(names, asked) as transactions:
            async with Admin(names) as admin:
                await admin.create_topic("t", queues=2)
            await begin(names, transactions)
            running.stop_node("n1")
            assert json.loads((store / "config/delayOffset.json").read_text())["offsetTable"] == {"1": 5}
            asked.may_answer = True
            with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths, **SOON}):
                await until_all_have_come(names)
                assert sorted(set(asked.bodies)) == [b"12.", b"13."]
            # And back: what it has delivered does not come again.
            running.start_node("n1")
            await until_all_have_come(names)
            async with Producer("makers", names) as producer:
                await producer.send(Message("t", b"14.", delay_level=1))

            async def is_last() -> bool:
                return 14 in await bodies(names, "t")

            await eventually(is_last)
            assert await bodies(names, "t") == [*WANTED, 14]


async def test_ours_ends_what_a_genuine_broker_has_begun(tmp_path: Path) -> None:
    genuine.require()
    port, asked = free_ports(1)[0], Asked()
    with our_master(tmp_path / "ours") as (running, names):
        store = running.store_directory("n1")
        paths = {"storePathRootDir": store, "storePathCommitLog": store / "commitlog"}
        async with Admin(names) as admin:
            await admin.create_topic("t", queues=2)
        running.stop_node("n1")
        async with producers(names, asked) as transactions:
            with genuine.broker(tmp_path / "java", names, port, **{**OURS, **paths}):

                async def is_there() -> bool:
                    try:
                        return await bodies(names, "t") == []
                    except Exception:
                        return False

                await eventually(is_there)
                await begin(names, transactions)
                await until_kept(store)
            asked.may_answer = True
            running.start_node("n1")
            await until_all_have_come(names)
            assert sorted(set(asked.bodies)) == [b"12.", b"13."]


def got(said: list[str]) -> list[list[str]]:
    return [line.split()[1:] for line in said if line.startswith("got ")]


async def test_java_clients_delay_retry_and_end_transactions_at_ours(tmp_path: Path) -> None:
    genuine.require()
    java = await asyncio.to_thread(genuine.java_client, "5.5.0", tmp_path)
    with our_master(tmp_path / "ours") as (running, names):
        await asyncio.to_thread(_at_ours, running, names, java)


def _at_ours(running: LocalCluster, names: str, java: genuine.Client) -> None:
    said = dict(line.split(" ", 1) for line in java.run("kinds", names, "kinds"))
    assert said["delayed"] == "SEND_OK"
    assert "late" in {one[0] for one in got(java.run("push", names, "kinds", "all", "*", "11"))}
    java.run("send", names, "retry", "1", "1")
    consumed = got(java.run("retry", names, "retry", "retry"))
    assert [(one[0], one[4]) for one in consumed] == [("0", "0"), ("0", "1"), ("0", "2")]
    dead = got(java.run("push", names, "%DLQ%retry", "dead", "*", "1"))
    assert [one[0] for one in dead] == ["0"]
    said_of = java.run("transactions", names, "transactions")
    assert said_of.count("half SEND_OK") == 3
    assert [line.split()[1] for line in said_of if line.startswith("asked")] == ["UNKNOW"]
    ended = got(java.run("push", names, "transactions", "transactions", "*", "2"))
    assert {one[0] for one in ended} == {"COMMIT_MESSAGE", "UNKNOW"}
    table = json.loads((running.store_directory("n1") / "config/delayOffset.json").read_text())
    assert table["offsetTable"]["1"] >= 1, "they were kept by levels"

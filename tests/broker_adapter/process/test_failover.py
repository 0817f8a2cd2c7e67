"""Real brokers that are killed, paused and restarted under load: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from broker_adapter.client import Message, MessageQueue, Producer, SendResult
from broker_adapter.client.core.route_data import parse_route
from broker_adapter.errors import BrokerError, ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import DETAILS, WATCH_ROUTE, RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from tests.broker_adapter.process.checker import check
from tests.broker_adapter.process.load import Load
from tests.broker_adapter.process.processes import NAME, OPTIONS, BrokerProcesses, Seen, step_of

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("broker-failover")]


async def test_masters_are_killed_again_and_again(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path) as brokers:
        async with Load(brokers) as load:
            for _ in range(4):
                await load.progress(300)
                old = await brokers.kill_master()
                await load.progress(300)
                await brokers.nodes.start([old])
            await load.progress(300)
            await load.found_by_key()
        await check(brokers, load)


async def test_all_nodes_are_killed_at_once_and_then_restarted_one_by_one(tmp_path: Path) -> None:
    async with BrokerProcesses(tmp_path) as brokers:
        nodes = brokers.nodes
        async with Load(brokers) as load:
            for _ in range(2):
                await load.progress(300)
                await nodes.kill(*nodes.members)
                await nodes.start()
            await load.progress(300)
            # Two are enough for progress: the third may not even listen to signals yet.
            await nodes.wait_for(lambda seen: len(seen) == len(nodes.members))
            for node in nodes.members:
                assert await nodes.stop(node) == 0
                await load.progress(100)
                await nodes.start([node])
                await nodes.wait_for(lambda seen, node=node: step_of(seen[node]) in ("SLAVE", "MASTER"))  # type: ignore[misc]
                await load.progress(100)
        await check(brokers, load)


async def masters_shown(address: str, shown: list[tuple[int, str]]) -> None:
    """(term, address) of the group's master in the routes that a client gets, now and after each notice."""
    changed = asyncio.Event()

    async def on_notice(_: RemotingConnection, request: RemotingCommand) -> None:
        changed.set()

    dispatch = Dispatch()
    dispatch.register([RequestCode.ROUTES_CHANGED], on_notice, Executor("notices", 8, 8))
    connection = await connect(address, timeout_s=30, dispatch=dispatch)
    fields = {"topic": "orders", "acceptStandardJsonOnly": "true", WATCH_ROUTE: "true", DETAILS: "true"}
    while True:
        changed.clear()
        answer = await connection.invoke(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {**fields}), 60)
        is_known = answer.code == ResponseCode.SUCCESS  # the topic, which the first send creates
        if is_known:
            route = parse_route(answer.body)
            master = route.master(NAME)
            if master is not None and (found := (route.master_terms[NAME], master)) not in shown[-1:]:
                shown.append(found)
        with suppress(TimeoutError):  # connections without requests are closed after 120 s
            async with asyncio.timeout(30 if is_known else 0.1):
                await changed.wait()


async def send_to(producer: Producer, node: str, writer: int) -> SendResult | BrokerError:
    """By way of this node, whoever is the master."""
    message = Message("orders", b"%d:0:" % writer)
    try:
        return await producer.send(message, queue=MessageQueue("orders", f"{NAME}-{node}", 0))
    except BrokerError as error:
        return error


async def test_a_master_that_was_paused_acknowledges_nothing_and_is_not_shown_again(tmp_path: Path) -> None:
    patient = replace(OPTIONS, timeout=60.0, request_timeout=60.0)
    async with (
        BrokerProcesses(tmp_path) as brokers,
        Producer("paused", brokers.names, options=patient) as producer,
    ):
        nodes = brokers.nodes
        shown: list[tuple[int, str]] = []
        watching = asyncio.create_task(masters_shown(brokers.names[0], shown))
        async with Load(brokers) as load:
            await load.progress(200)
            for turn in range(2):
                old = await brokers.master()
                before = await send_to(producer, old, 1000 + 10 * turn)  # connected
                assert isinstance(before, SendResult) and before.node_id == old
                brokers.signal(old, signal.SIGSTOP)
                # They are in its hands before it knows that it was deposed.
                sends = [asyncio.create_task(send_to(producer, old, 1001 + 10 * turn + n)) for n in range(3)]
                new = await brokers.master(other_than=old)
                await load.progress(200)
                brokers.signal(old, signal.SIGCONT)
                # It passes them on to whoever is the master now, or says no.
                for outcome in await asyncio.gather(*sends):
                    if isinstance(outcome, SendResult):
                        assert outcome.node_id != old and outcome.term > before.term, outcome

                def is_slave(seen: Seen, old: str = old, new: str = new) -> bool:
                    leads = seen[new].role == "LEADER"
                    return step_of(seen[old]) == "SLAVE" and (seen[old].leader_id == new or not leads)

                await nodes.wait_for(is_slave)
                await load.progress(200)
        await check(brokers, load)
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert len({term for term, _ in shown}) >= 3
        assert [term for term, _ in shown] == sorted(term for term, _ in shown), "a deposed master was shown"
        assert len(set(shown)) == len({term for term, _ in shown}), "one master a term"

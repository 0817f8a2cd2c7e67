"""What administrators ask each node: its connections and its settings.

A group may have tens of thousands of members: threads make their text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from broker_adapter.errors import ResponseCode
from broker_adapter.processor import admin_bodies
from broker_adapter.processor.clients import RemotingClients
from broker_adapter.processor.fields import text
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.remoting.json_bodies import LongTexts, dump
from broker_adapter.traffic.traffic import Traffic

#: Characters of what was asked for, in answers.
_SHOWN = 255

Facts = Callable[[], Mapping[str, str]]


class NodeQueries:
    """`settings` and `runtime`: as RocketMQ's broker names them."""

    def __init__(self, clients: RemotingClients, settings: Facts, runtime: Facts, traffic: Traffic) -> None:
        self._clients = clients
        self._settings = settings
        self._runtime = runtime
        self._traffic = traffic
        self._texts = LongTexts()

    def register_with(self, dispatch: Dispatch, executor: Executor) -> None:
        for code, processor in (
            (RequestCode.GET_CONSUMER_CONNECTION_LIST, self._consumers),
            (RequestCode.GET_PRODUCER_CONNECTION_LIST, self._producers),
            (RequestCode.GET_ALL_PRODUCER_INFO, self._all_producers),
            (RequestCode.GET_BROKER_CONFIG, self._config),
            (RequestCode.GET_BROKER_RUNTIME_INFO, self._runtime_info),
            (RequestCode.VIEW_BROKER_STATS_DATA, self._stats),
        ):
            dispatch.register([code], processor, executor)

    async def _consumers(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        group = text(request.fields, "consumerGroup")
        members = self._clients.consumers.get(group)
        if not members:
            problem = f"the consumer group[{group}] not online"
            return request.answer(ResponseCode.CONSUMER_NOT_ONLINE, problem)
        body = await self._texts.make(admin_bodies.consumer_connection, dict(members))
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _producers(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        group = text(request.fields, "producerGroup")
        producers = self._clients.producers.get(group)
        if not producers:
            problem = f"the producer group[{group}] not exist"
            return request.answer(ResponseCode.SYSTEM_ERROR, problem)
        body = await self._texts.make(admin_bodies.producer_connection, dict(producers))
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _all_producers(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        groups = {group: dict(producers) for group, producers in self._clients.producers.items()}
        body = await self._texts.make(admin_bodies.all_producers, groups, time.time_ns() // 1_000_000)
        return request.answer(ResponseCode.SUCCESS, body=body)

    async def _config(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        lines = (f"{name}={value}\n" for name, value in self._settings().items())
        return request.answer(ResponseCode.SUCCESS, body="".join(lines).encode())

    async def _stats(self, connection: RemotingConnection, request: RemotingCommand) -> RemotingCommand:
        name, key = text(request.fields, "statsName"), text(request.fields, "statsKey")
        found = self._traffic.sums(name, key)
        if found is None:
            problem = f"The stats <{name[:_SHOWN]}> <{key[:_SHOWN]}> not exist"
            return request.answer(ResponseCode.SYSTEM_ERROR, problem)
        return request.answer(ResponseCode.SUCCESS, body=dump(admin_bodies.stats_data(found)))

    async def _runtime_info(
        self, connection: RemotingConnection, request: RemotingCommand
    ) -> RemotingCommand:
        return request.answer(ResponseCode.SUCCESS, body=dump({"table": dict(self._runtime())}))

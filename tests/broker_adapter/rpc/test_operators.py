"""With mutual TLS topics, groups and offsets are changed by operators and members; clients use them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.api import TopicConfig
from broker_adapter.errors import BrokerError, Status
from broker_adapter.rpc.broker_client import BrokerClient
from broker_adapter.rpc.service import BrokerService
from broker_adapter.v1 import broker_pb2 as pb
from broker_adapter.v1 import broker_pb2_grpc
from dledger.platform import AdminNames, PeerNames, open_channel
from dledger.rpc.transport.tls import channel_security, load
from tests.broker_adapter.cluster import brokers
from tests.broker_adapter.memory_broker import MemoryBrokers, MemoryNode
from tests.tls.world import TlsWorld


class ShownNames(AdminNames):
    """As if each connection had shown a certificate with these names."""

    shown: tuple[str, ...] = ()

    def check(self, auth_context: Mapping[str, Iterable[bytes]]) -> None:
        super().check({"x509_subject_alternative_name": [name.encode() for name in self.shown]})


MEMBERS = {"n1": "10.0.0.1:1", "n2": "10.0.0.2:1"}
CHANGES: dict[str, Any] = {
    "PutTopic": pb.PutTopicRequest(),
    "DeleteTopic": pb.DeleteTopicRequest(),
    "PutGroup": pb.PutGroupRequest(),
    "DeleteGroup": pb.DeleteGroupRequest(),
    "ResetOffsets": pb.ResetOffsetsRequest(),
}
OTHERS: dict[str, Any] = {
    "GetBroker": pb.GetBrokerRequest(),
    "ListTopics": pb.ListTopicsRequest(),
    "CommitOffsets": pb.CommitOffsetsRequest(),
    "FetchOffsets": pb.FetchOffsetsRequest(),
    "Join": pb.JoinRequest(),
    "Leave": pb.LeaveRequest(),
}


@pytest.fixture
def names() -> ShownNames:
    return ShownNames(["Ops"], PeerNames(MEMBERS, {}))


@pytest.fixture
async def stub(names: ShownNames) -> AsyncIterator[Any]:
    async with MemoryBrokers(1) as brokers:
        node = MemoryNode(brokers.nodes[0].broker)
        node.service = BrokerService(node.broker, operators=names)
        await node.start()
        async with open_channel(node.broker.address) as channel:
            yield broker_pb2_grpc.BrokerServiceStub(channel)  # type: ignore[no-untyped-call]
        await node.stop(0)


async def is_refused(stub: Any, name: str, request: Any) -> bool:
    answer = await getattr(stub, name)(request)
    return int(answer.status.code) == Status.CHANGE_NOT_ALLOWED


@pytest.mark.parametrize(
    ("shown", "may"), [((), False), (("app",), False), (("ops",), True), (("n2", "10.0.0.2"), True)]
)
async def test_changes_are_for_operators_and_members(
    stub: Any, names: ShownNames, shown: tuple[str, ...], may: bool
) -> None:
    names.shown = shown
    for name, request in CHANGES.items():
        assert await is_refused(stub, name, request) is not may, name
    for name, request in OTHERS.items():
        assert not await is_refused(stub, name, request), name


@pytest.mark.parametrize("names", [{}, {"admin_names": ["ops"]}])
async def test_at_a_broker_that_names_no_operators_only_members_change(
    tmp_path: Path, names: dict[str, Any]
) -> None:
    world = TlsWorld(tmp_path)
    section = world.section(world.files("n1"), **names)
    async with brokers(tmp_path, 1, tls_of={"n1": section}) as cluster:
        program = await cluster.master()
        for who, may in (("app", False), ("ops", bool(names)), ("n1", True)):
            files = world.files(who, hosts=(who, "127.0.0.1") if who == "n1" else (), folder="clients")
            client = BrokerClient(program.config.address, channel_security(load(files, "client")))
            try:
                await client.put_topic(TopicConfig(f"of-{who}"), 60)
            except BrokerError as error:
                assert error.status is Status.CHANGE_NOT_ALLOWED
            await client.close()
            assert (program.metadata.topic(f"of-{who}") is not None) is may, who

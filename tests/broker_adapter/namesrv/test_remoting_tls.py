"""Who may change what by the remoting protocol, with certificates: no more than by gRPC."""

from __future__ import annotations

import ssl
import zlib
from pathlib import Path
from typing import Any

import pytest

from broker_adapter.errors import ResponseCode
from broker_adapter.namesrv import remoting_bodies as bodies
from broker_adapter.namesrv.remoting_bodies import DataVersion
from broker_adapter.namesrv.server import NameServerProcess
from broker_adapter.namesrv.tables import RouteTables
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from dledger import TlsFiles
from tests.broker_adapter.namesrv.helpers import ORDERS, name_server, registration
from tests.tls.world import TlsWorld


def of_node(node: str) -> dict[str, str]:
    given = registration(node)
    fields = {"brokerName": given.broker_name, "brokerAddr": given.address, "clusterName": given.cluster}
    return {**fields, "brokerId": "0", "nodeId": node, "term": "6", "roleEpoch": "9"}


BODY = bodies.encode_register_body([ORDERS], DataVersion(0, 1, 1))
SUM = {"bodyCrc32": str(zlib.crc32(BODY) & 0x7FFFFFFF)}
KEY = {"namespace": "space", "key": "key"}
CHANGES: dict[str, tuple[RequestCode, dict[str, str], bytes]] = {
    "register the client": (RequestCode.REGISTER_BROKER, {**of_node("app"), **SUM}, BODY),
    "register n1": (RequestCode.REGISTER_BROKER, {**of_node("n1"), **SUM}, BODY),
    "un-register n1": (RequestCode.UNREGISTER_BROKER, {**of_node("n1"), "roleEpoch": "1"}, b""),
    "say that n1 lives": (RequestCode.BROKER_HEARTBEAT, of_node("n1"), b""),
    "ask for n1's version": (
        RequestCode.QUERY_DATA_VERSION,
        of_node("n1"),
        bodies.dump(DataVersion(0, 1, 1).to_json()),
    ),
    "wipe": (RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
    "give back": (RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"}, b""),
    "delete a topic": (RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"}, b""),
    "put": (RequestCode.PUT_KV_CONFIG, {**KEY, "value": "value"}, b""),
    "delete": (RequestCode.DELETE_KV_CONFIG, KEY, b""),
}
OF_N1 = {"register n1", "un-register n1", "say that n1 lives", "ask for n1's version"}
SETTINGS = {"wipe", "give back", "delete a topic", "put", "delete"}


async def allowed(server: NameServerProcess, files: TlsFiles) -> set[str]:
    """Which changes succeed for who holds these files, with n1 registered before each."""
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(str(files.certificate), str(files.key))
    connection = await connect(server.address, timeout_s=10, tls=context)
    found = set()
    try:
        for name, (code, fields, body) in CHANGES.items():
            server.name_server.tables = tables = RouteTables()
            server.name_server.register(registration("n1", 0, term=5))
            server.name_server.kv.put("space", "key", "before")
            before = tables.brokers(0), tables.route("orders"), server.name_server.kv.list("space")
            answer = await connection.invoke(RemotingCommand(code, dict(fields), body), 10)
            if answer.code == ResponseCode.SUCCESS:
                found.add(name)
            else:
                assert "may not" in (answer.remark or "")
                after = tables.brokers(0), tables.route("orders"), server.name_server.kv.list("space")
                assert after == before, name
    finally:
        connection.close("the test is over")
    return found


@pytest.mark.parametrize(
    ("who", "changes"),
    [("app", set()), ("ops", {"un-register n1", *SETTINGS}), ("n2", SETTINGS), ("n1", OF_N1 | SETTINGS)],
)
async def test_a_certificate_may_change_what_it_may_by_grpc(
    tmp_path: Path, who: str, changes: set[str]
) -> None:
    world = TlsWorld(tmp_path)
    files = world.files("namesrv")
    tls: dict[str, Any] = {"broker_names": ["n1", "n2"], "admin_names": ["ops"]}
    tls |= {"certificate": str(files.certificate), "key": str(files.key), "ca": str(files.ca)}
    async with name_server(tmp_path / "data", tls=tls) as server:
        assert await allowed(server, world.files(who, hosts=(who,))) == changes

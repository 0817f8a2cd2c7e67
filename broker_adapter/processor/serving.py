"""The door of the remoting protocol put together for one node."""

from __future__ import annotations

from broker_adapter.api import BrokerApi
from broker_adapter.config.remoting import RemotingSettings
from broker_adapter.format.host import Host
from broker_adapter.pop.api import DeliveryApi
from broker_adapter.processor.door import SENDS, RemotingDoor
from broker_adapter.processor.handlers import BothProtocols, Handler
from broker_adapter.processor.port import RemotingPort
from broker_adapter.processor.sends import SendProcessor
from broker_adapter.proxy.calls.handlers import Answering
from broker_adapter.remoting.executors import Dispatch
from dledger import TlsFiles


def both_protocols(
    proxy: Answering,
    *,
    broker: BrokerApi,
    delivery: DeliveryApi,
    store_host: Host,
    max_body_bytes: int,
) -> BothProtocols:
    """As the master answers. `proxy`: clients of RocketMQ 5; `max_body_bytes`: of one message."""
    table: dict[int, Handler] = {}
    table |= dict.fromkeys(SENDS, SendProcessor(broker, delivery, store_host, max_body_bytes).send)
    return BothProtocols(proxy, table)


def remoting_port(
    settings: RemotingSettings,
    member_address: str,
    answering: Answering,
    node_files: TlsFiles | None,
    *,
    allow_plaintext: bool,
) -> RemotingPort:
    """`answering`: who has what this node does not answer itself. ConfigError as from RemotingPort."""
    dispatch, door = Dispatch(), RemotingDoor(answering, settings)
    door.register_with(dispatch)
    return RemotingPort(settings, member_address, dispatch, node_files, allow_plaintext=allow_plaintext)

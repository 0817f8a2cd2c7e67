"""What brokers tell a NameServer, and what it tells others. What is wrong with a registration, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from broker_adapter.api import BrokerRole, TopicConfig
from broker_adapter.errors import BrokerError, NameServerBusy, NameServerRefused, Status
from broker_adapter.format.broker_ids import MASTER_ID
from broker_adapter.format.topic_names import check_topic_name
from dledger.platform import MAX_TERM

#: The broker does not know its role yet: it lives, and is not published.
UNKNOWN_ID = -1
NO_TERM = -1
#: An un-registration that does not care which role_epoch is registered.
ANY_EPOCH = -1

MAX_NAME = 255
MAX_NUMBER = (1 << 63) - 1
MAX_QUEUES = 65_536
MAX_FILTER_SERVERS = 16
#: Of the word for the messages that a topic takes (characters).
MAX_MESSAGE_TYPE = 64
_PERMS = range(8)
_FLAGS = range(1 << 31)


class Registration(NamedTuple):
    """What a broker says of itself. Only those of masters decide about topics."""

    cluster: str
    broker_name: str  # shared by a master and its slaves
    node_id: str
    broker_id: int  # 0: master, above: slave, -1: role not known
    role: BrokerRole
    address: str  # host:port
    term: int
    role_epoch: int
    http_address: str = ""
    data_version: int = 0  # grows when topics change
    topics: Sequence[TopicConfig] = ()
    expire_ms: int = 0  # 0: the NameServer's default
    ha_address: str = ""  # host:port at which slaves fetch the log of a broker of RocketMQ's own
    filter_servers: Sequence[str] = ()  # host:port
    remoting_address: str = ""  # host:port for clients of the remoting protocol; "": `address` is that


class RegistrationAnswer(NamedTuple):
    """Who is published as master of the broker name now."""

    master_address: str = ""  # "": nobody
    master_term: int = NO_TERM
    master_ha_address: str = ""


class RemotingNode(NamedTuple):
    """Where clients of the remoting protocol reach a node that speaks others at its address."""

    node_id: str
    broker_id: int
    address: str


class Route(NamedTuple):
    """Where a topic is. Nowhere (any more) if `queues` is empty."""

    topic: str
    queues: Mapping[str, TopicConfig] = {}  # by broker name
    brokers: Mapping[str, Mapping[int, str]] = {}  # broker name -> broker id -> address; 0 is the master
    master_terms: Mapping[str, int] = {}  # of the broker names that have a master
    clusters: Mapping[str, str] = {}  # broker name -> cluster
    filter_servers: Mapping[str, Sequence[str]] = {}  # address of a broker -> addresses
    remoting: Mapping[str, Sequence[RemotingNode]] = {}  # broker name -> nodes, if they speak both protocols


class BrokerEntry(NamedTuple):
    """One row of the brokerLiveTable. Times in milliseconds."""

    cluster: str
    broker_name: str
    node_id: str
    broker_id: int
    role: str
    address: str
    http_address: str
    term: int
    role_epoch: int
    last_update_ms: int  # since its last registration
    expire_ms: int
    has_session: bool
    remoting_address: str


class ClusterInfo(NamedTuple):
    """What one NameServer knows, and how it is."""

    version: str
    pid: int
    uptime_ms: int
    brokers: Sequence[BrokerEntry]
    topics: int
    sessions: int
    watchers: int
    config_entries: int
    write_wiped: Sequence[str]  # broker names
    limits_hit: Mapping[str, int]
    remoting_address: str  # "": the protocol is not spoken


class TableLimits(NamedTuple):
    """How much the tables take. Past these a registration is refused with NAMESRV_LIMIT."""

    max_broker_names: int = 256
    max_names_per_address: int = 64  # of them, that one address has brought up
    max_nodes_per_name: int = 16
    max_topics: int = 20_000
    min_expire_ms: int = 10_000
    default_expire_ms: int = 120_000
    max_expire_ms: int = 600_000

    def expire_ms(self, wanted: int) -> int:
        """What a broker asked for, within bounds; 0: the default."""
        return min(max(wanted, self.min_expire_ms), self.max_expire_ms) if wanted else self.default_expire_ms


def check_registration(registration: Registration, limits: TableLimits) -> None:
    """NameServerRefused (NAMESRV_INVALID, naming the field) or NameServerBusy (NAMESRV_LIMIT)."""
    for field in ("cluster", "broker_name", "node_id"):
        check_name(field, getattr(registration, field))
    check_address("address", registration.address)
    for field in ("http_address", "ha_address", "remoting_address"):
        if address := getattr(registration, field):
            check_address(field, address)
    if len(registration.filter_servers) > MAX_FILTER_SERVERS:
        raise invalid(f"{len(registration.filter_servers)} filter servers; {MAX_FILTER_SERVERS} are possible")
    for address in registration.filter_servers:
        check_address("filter server", address)
    _check_number("broker_id", registration.broker_id, least=UNKNOWN_ID)
    for field in ("role_epoch", "data_version", "expire_ms"):
        _check_number(field, getattr(registration, field))
    # A node that has taken part in no election yet has no term.
    _check_number("term", registration.term, least=NO_TERM)
    if registration.term > MAX_TERM:
        raise NameServerRefused(
            Status.NAMESRV_TERM_REFUSED, f"term {registration.term} is above {MAX_TERM}, where terms end"
        )
    if registration.broker_id != UNKNOWN_ID:
        is_slave = registration.role is BrokerRole.SLAVE
        if is_slave == (registration.broker_id == MASTER_ID):
            raise invalid(f"broker id {registration.broker_id} does not go with role {registration.role}")
    check_topic_count(len(registration.topics), limits.max_topics)
    for topic in registration.topics:
        check_topic(topic)


def check_topic_count(count: int, most: int) -> None:
    """NameServerBusy (NAMESRV_LIMIT)."""
    if count > most:
        raise NameServerBusy(Status.NAMESRV_LIMIT, f"{count} topics; this NameServer takes {most}")


def check_topic(topic: TopicConfig) -> None:
    """NameServerRefused (NAMESRV_INVALID)."""
    try:
        check_topic_name(topic.name)
    except BrokerError as error:
        raise invalid(error.message) from None
    for queues in (topic.read_queues, topic.write_queues):
        if not 0 <= queues <= MAX_QUEUES:
            raise invalid(f"topic {topic.name}: {queues} queues; 0 to {MAX_QUEUES} are possible")
    if topic.perm not in _PERMS:
        raise invalid(f"topic {topic.name}: perm {topic.perm}; 4 is readable, 2 writable, 6 both")
    # These two go into routes as they are: what cannot be written there would leave the topic without one.
    if topic.sys_flag not in _FLAGS:
        raise invalid(f"topic {topic.name}: sys_flag {topic.sys_flag} is not within 0 and {_FLAGS[-1]}")
    if len(topic.message_type) > MAX_MESSAGE_TYPE or not topic.message_type.isprintable():
        text = f"message type {topic.message_type[:MAX_MESSAGE_TYPE]!r}"
        raise invalid(f"topic {topic.name}: {text}; at most {MAX_MESSAGE_TYPE} printable characters")


def check_name(field: str, text: str) -> None:
    """NameServerRefused (NAMESRV_INVALID) unless it is 1 to 255 printable characters without spaces."""
    if not 0 < len(text) <= MAX_NAME or not text.isprintable() or " " in text:
        raise invalid(f"{field} {text[:MAX_NAME]!r}: 1 to {MAX_NAME} printable characters without spaces")


def check_address(field: str, text: str) -> None:
    """NameServerRefused (NAMESRV_INVALID) unless it is host:port; the port of somebody one can reach."""
    check_name(field, text)
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise invalid(f"{field} {text!r} is not host:port")


def _check_number(field: str, value: int, *, least: int = 0) -> None:
    if not least <= value <= MAX_NUMBER:
        raise invalid(f"{field} {value} is not within {least} and {MAX_NUMBER}")


def invalid(problem: str) -> NameServerRefused:
    """What a request is refused with that cannot be meant so."""
    return NameServerRefused(Status.NAMESRV_INVALID, problem)

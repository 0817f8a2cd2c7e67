"""Size limits and addresses of records, and limits of append rounds.

They are derived from the configuration of a node.
"""

from __future__ import annotations

import os
import socket
from functools import partial

from broker_adapter.config.settings import BrokerSettings
from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.log.node import BrokerNode
from broker_adapter.put.committer import LEAST_ROUND_ENTRIES, ROUND_BYTES, Committer
from broker_adapter.put.message_writer import MessageWriter
from broker_adapter.put.sender import Sender
from broker_adapter.wire.host import Host
from broker_adapter.wire.message import Version, record_size
from broker_adapter.wire.properties import MAX_PROPERTIES_BYTES
from broker_adapter.wire.topic_names import MAX_DERIVED_TOPIC_LENGTH
from dledger import Code, ConfigError
from dledger.infra.loops.polling import when_idle

#: Maximum size of a record without its body, and the same for a command, which has no properties.
_MAX_OVERHEAD = record_size(0, MAX_DERIVED_TOPIC_LENGTH, MAX_PROPERTIES_BYTES, version=Version.V2, v6_hosts=2)
COMMAND_OVERHEAD = record_size(0, MAX_DERIVED_TOPIC_LENGTH, 0, version=Version.V2, v6_hosts=2)
#: Maximum size of a round with a classic log: more messages share a sync, the handovers between threads, and
#: the dispatch than with a replicated log, whose followers receive a round in one call.
_CLASSIC_ROUND_BYTES = 1 << 20
#: Maximum size of an append without its messages: entry headers, the time, and a command.
_APPEND_OVERHEAD = 4 << 10


def largest_body(max_body_bytes: int, max_batch_bytes: int) -> int:
    """Return the maximum size of a message body that the log's limits permit.

    Raises ConfigError if the limits are too small for any message.
    """
    if max_body_bytes <= _MAX_OVERHEAD:
        text = (
            f"limits.max_body_bytes {max_body_bytes} is too small: a broker needs more than {_MAX_OVERHEAD}"
        )
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    if max_batch_bytes <= (overhead := _MAX_OVERHEAD + _APPEND_OVERHEAD):
        text = (
            f"limits.max_batch_bytes {max_batch_bytes} is too small: a broker needs more than {overhead}, "
            "and data files of that size"
        )
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return min(max_body_bytes, max_batch_bytes - _APPEND_OVERHEAD) - _MAX_OVERHEAD


def batch_entries(limit: int) -> int:
    """Return the log's limit of entries per batch. Raises ConfigError if it is too low for a broker."""
    if limit < LEAST_ROUND_ENTRIES:
        text = f"limits.max_batch_entries {limit} is too small: a broker needs at least {LEAST_ROUND_ENTRIES}"
        raise ConfigError(text, code=Code.CONFIG_INVALID)
    return limit


def make_sender(
    settings: BrokerSettings, state: DeliveryState, writer: MessageWriter, node: BrokerNode, max_entries: int
) -> tuple[Committer, Sender]:
    """Create committer and sender. `max_entries`: maximum entries of one append."""
    round_bytes = _CLASSIC_ROUND_BYTES if settings.store == "classic" else ROUND_BYTES
    committer = Committer(
        writer,
        new_request_id=partial(os.urandom, 16),
        max_waiting_bytes=settings.delivery.max_waiting_bytes,
        when_idle=when_idle,
        max_round_bytes=min(round_bytes, node.max_batch_bytes // 2),
        max_round_entries=max_entries,
    )
    sender = Sender(
        state,
        committer,
        writer,
        now_ms=node.cluster_time_ms,
        retry_span_ms=settings.delivery.retry_span_ms,
        timeout_ms=settings.send_timeout_ms,
    )
    return committer, sender


def resolve_store_host(address: str) -> Host:
    """Resolve the address of a node. Records and message ids contain IP addresses, not names."""
    host, _, port = address.rpartition(":")
    try:
        return Host.parse(address)
    except ValueError:
        pass
    try:
        infos = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is empty or too long
        raise ConfigError(
            f"{address}: unknown host name ({error}); message ids contain its IP address",
            code=Code.CONFIG_INVALID,
        ) from error
    family, _, _, _, socket_address = sorted(infos, key=lambda info: info[0] != socket.AF_INET)[0]
    text = f"[{socket_address[0]}]" if family == socket.AF_INET6 else str(socket_address[0])
    return Host.parse(f"{text}:{port}")

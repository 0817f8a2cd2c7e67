"""Limits that no configuration changes are what docs/limits.md says: no other page tells of them."""

from __future__ import annotations

import re

import pytest

from broker_adapter.ha import slave_progress
from broker_adapter.ha.options import HaOptions
from broker_adapter.metadata import commands, creation_limits
from broker_adapter.pop import api as pop
from broker_adapter.processor import pulls
from broker_adapter.proxy import telemetry
from broker_adapter.proxy.calls import consumer_calls
from broker_adapter.proxy.messages import filters, sql92
from dledger.core import sessions, term_allowance
from dledger.core.values import MAX_INCARNATION, MAX_INDEX, MAX_POS, MAX_TERM
from dledger.node.disk import body_reader, page_cache_release
from dledger.node.members import inbound
from dledger.rpc.transport import channels, field_count, unsent_requests
from dledger.status.connections import ConnectionLimits
from tests.docs.pages import ROOT

HTTP = ConnectionLimits()
HA = HaOptions()
EACH, ALL = creation_limits.EACH_CLIENT, creation_limits.ALL_CLIENTS


def mib(size: int) -> str:
    return f"{size / (1 << 20):g} MiB"


def power(number: int) -> str:
    exponent = number.bit_length() - 1
    return (
        f"2^{exponent}" if number == 1 << exponent else f"2^{exponent + 1} - {(1 << exponent + 1) - number}"
    )


FIXED = {
    "uncommitted batches of a session": f"{sessions.RESULTS_KEPT}",
    "sessions": f"{sessions.MAX_SESSIONS:,}",
    "calls under way on one connection": f"{channels.MAX_CALLS_PER_CONNECTION:,}",
    "connections to a gRPC port, of clients and members": f"{channels.MAX_CONNECTIONS:,}",
    "how long a connection may take until it speaks HTTP/2, TLS included": (
        f"{channels.HANDSHAKE_TIMEOUT_MS / 1000:g}"
    ),
    "how long a push stream, or an append stream too many, may take until its first message": (
        f"{channels.FIRST_MESSAGE_TIMEOUT_S:g}"
    ),
    "such streams that have not sent one yet": f"{channels.MAX_FIRST_MESSAGES} of each kind",
    "how long a request may take to arrive completely, for calls with a single request": (
        f"{unsent_requests.REQUEST_TIMEOUT_S:g}"
    ),
    "such calls whose request has been incomplete for more than a second, at a port": (
        f"{unsent_requests.MAX_UNSENT}, so {mib(unsent_requests.MAX_UNSENT * channels.MAX_MESSAGE_BYTES)}"
    ),
    "one gRPC message": mib(channels.MAX_MESSAGE_BYTES),
    "bodies read by position in one call": mib(body_reader.MAX_BYTES),
    "newest entries stored during catch-up, kept in the page cache": mib(page_cache_release.KEPT_BYTES),
    "repairs of other members that read from this node": f"{inbound._MAX_FETCHES}",
    "questions of members without an answer": f"{inbound._MAX_WAITING}",
    "connections to the status port": f"{HTTP.connections}, and {HTTP.per_address} of one address",
    "... when all of these are busy": f"{HTTP.probes}, and {HTTP.probes_per_address} of one address",
    "how long the head of an HTTP request may take, TLS included": f"{HTTP.head_s:g}",
    "how long such a connection may be without a request, or leave an answer unread": f"{HTTP.idle_s:g}",
    "how far a peer's term may lie beyond a node's own": (
        f"{power(term_allowance.MAX_TERM_ADVANCE)}, and {power(term_allowance.TERMS_PER_MS)} more each ms"
    ),
    "a term; an index; a position; an incarnation": (
        "; ".join(map(power, (MAX_TERM, MAX_INDEX, MAX_POS, MAX_INCARNATION)))
    ),
    "connections of slaves to a classic master; of one address": f"{HA.connections}; {HA.per_address}",
    "what a slave that does not read has waiting for it at its master": (
        f"{(HA.unsent_bytes + HA.read_ahead_bytes) / (1 << 20):g} MiB"
    ),
    "reports of a slave beyond four for each frame": (
        f"{slave_progress._FREE_REPORTS:,}, and {slave_progress._REPORTS_PER_S} more each second"
    ),
    "how far behind a slave may be that sends wait for": mib(HA.max_gap_bytes),
    "how fast they do": (
        f"{EACH.burst:g} at once and {EACH.per_second:g} a second for an address; "
        f"{ALL.burst:g} and {ALL.per_second:g} for all"
    ),
}
COSTS = {
    "compiling a SQL92 filter": (
        f"{sql92.MAX_LENGTH:,} characters, {sql92.MAX_WORDS:,} words, {sql92.MAX_OPERATORS} operators, "
        f"{sql92.MAX_DEPTH} levels"
    ),
    "evaluating it": f"{pop.MAX_FILTER_STEPS:,} steps",
    "tags": f"{filters.MAX_TAGS} tags",
    "settings of a client": f"{telemetry.MAX_COMMAND_BYTES >> 10} KiB",
    "parsing any request of RocketMQ 5 but a send": f"{field_count.MAX_FIELDS:,} fields",
    "acknowledging, changing times": f"{consumer_calls._MAX_ACKS:,} handles",
    "offsets in one commit or reset": f"{commands.MAX_OFFSETS_PER_COMMAND:,}",
    "members, topics and queues of a group's assignment": (
        f"{commands.MAX_MEMBERS_PER_GROUP} members, {commands.MAX_TOPICS_PER_GROUP} topics, "
        f"{commands.MAX_QUEUES_PER_TOPIC:,} queues"
    ),
    "finding by key, by time, by offset": f"{pulls._MAX_MESSAGES:,} messages",
}


def cells_of(row: str) -> list[str]:
    text = (ROOT / "docs" / "limits.md").read_text()
    found = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", text, re.MULTILINE)
    assert found is not None, f"docs/limits.md has no row {row!r}"
    return [cell.strip() for cell in found[1].split(" | ")]


@pytest.mark.parametrize("row", FIXED)
def test_a_fixed_limit_is_what_the_page_says(row: str) -> None:
    assert cells_of(row)[0].startswith(FIXED[row])


@pytest.mark.parametrize("row", COSTS)
def test_what_bounds_the_cost_of_a_request_is_what_the_page_says(row: str) -> None:
    assert COSTS[row] in cells_of(row)[-1]

"""Limits that no configuration changes are what docs/limits.md lists."""

from __future__ import annotations

import re

import pytest

from broker_adapter.delivery import api as pop
from broker_adapter.endpoints.filters import filters, sql92, sql_instructions, sql_tokens
from broker_adapter.endpoints.v4 import bodies, pulls
from broker_adapter.endpoints.v5 import telemetry
from broker_adapter.endpoints.v5.calls import consumer_calls
from broker_adapter.log.classic.ha import connection as ha_connection
from broker_adapter.log.classic.ha.options import HaOptions
from broker_adapter.metadata import commands, creation_limits
from dledger.core import sessions, term_allowance
from dledger.core.directories import MAX_DIRECTORY
from dledger.core.values import MAX_INCARNATION, MAX_INDEX, MAX_POS, MAX_TERM
from dledger.infra.http.connections import HttpConnectionLimits
from dledger.infra.transport import channels, field_count, first_messages
from dledger.node.disk import body_reader, disk_worker
from tests.docs.pages import ROOT

HTTP = HttpConnectionLimits()
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
    "sessions, equal on all nodes": f"{sessions.MAX_SESSIONS:,}",
    "concurrent calls on one connection": f"{channels.MAX_CALLS_PER_CONNECTION:,}",
    "calls of all connections that a gRPC port has not accepted yet": f"{channels.MAX_PENDING_CALLS:,}",
    "connections to a gRPC port, of clients and members": f"{channels.MAX_CONNECTIONS:,}",
    "time until a connection speaks HTTP/2, TLS included": (f"{channels.HANDSHAKE_TIMEOUT_MS / 1000:g}"),
    "time until the first message of a call is complete": f"{first_messages.FIRST_MESSAGE_TIMEOUT_S:g}",
    "calls of a port whose first message takes more than 1 s": (
        f"{first_messages.MAX_FIRST_MESSAGES}, "
        f"so {mib(first_messages.MAX_FIRST_MESSAGES * channels.MAX_MESSAGE_BYTES)}"
    ),
    "one gRPC message": mib(channels.MAX_MESSAGE_BYTES),
    "bodies read by position in one call": mib(body_reader.MAX_BYTES),
    "newest entries that catch-up keeps in the page cache": mib(disk_worker.KEPT_BYTES),
    "connections to the status port": f"{HTTP.connections}, and {HTTP.per_address} of one address",
    "additional connections while all of these are busy": (
        f"{HTTP.probes}, and {HTTP.probes_per_address} of one address"
    ),
    "time until the head of an HTTP request is complete, TLS included": f"{HTTP.head_s:g}",
    "idle time, or time with an unread response": f"{HTTP.idle_s:g}",
    "a peer's term above the node's own": (
        f"{power(term_allowance.MAX_TERM_ADVANCE)}, and {power(term_allowance.TERMS_PER_MS)} more each ms"
    ),
    "a term; an index; a position; a directory number; an incarnation": (
        "; ".join(map(power, (MAX_TERM, MAX_INDEX, MAX_POS, MAX_DIRECTORY, MAX_INCARNATION)))
    ),
    "a JSON request body; its values; a name or client id; an expression": (
        f"{mib(bodies.MAX_BODY_BYTES)}; {bodies.MAX_BODY_VALUES:,}; {bodies._MAX_NAME}; {sql92.MAX_LENGTH:,}"
    ),
    "a filter expression: length; words of SQL92; tags; digits of a number": (
        f"{sql92.MAX_LENGTH:,}; {sql_tokens.MAX_WORDS:,}; {filters.MAX_TAGS:,}; {sql_tokens.MAX_DIGITS}"
    ),
    "a property that a filter compares as a number": f"{sql_instructions.MAX_NUMBER_LENGTH:,}",
    "connections of slaves to a classic master; of one address": f"{HA.connections}; {HA.per_address}",
    "data queued for a slave that does not read": (
        f"{(HA.unsent_bytes + HA.read_ahead_bytes) / (1 << 20):g} MiB"
    ),
    "reports of a slave beyond four for each 32 KiB or frame": (
        f"{ha_connection._FREE_REPORTS:,}, and {ha_connection._REPORTS_PER_S} more each second"
    ),
    "lag up to which sends wait for a slave": mib(HA.max_gap_bytes),
    "automatic creation of topics, and likewise of groups": (
        f"{EACH.burst:g} at once and {EACH.per_second:g} a second for an address; "
        f"{ALL.burst:g} and {ALL.per_second:g} for all"
    ),
}
COSTS = {
    "compiling a SQL92 filter": (
        f"{sql92.MAX_LENGTH:,} characters, {sql_tokens.MAX_WORDS:,} words, of which an IN list is one"
    ),
    "evaluating a SQL92 filter": f"{pop.MAX_FILTER_STEPS:,} steps",
    "tags": f"{filters.MAX_TAGS:,} tags",
    "settings of a client": f"{telemetry.MAX_COMMAND_BYTES >> 10} KiB",
    "parsing any request of RocketMQ 5 except a send": f"{field_count.MAX_FIELDS:,} fields",
    "acknowledgements, changes of invisible times": f"{consumer_calls._MAX_ACKS:,} handles",
    "offsets in one commit or reset": f"{commands.MAX_OFFSETS_PER_COMMAND:,}",
    "searches by key, by time, by offset": f"{pulls._MAX_MESSAGES:,} messages",
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

"""Decoders of texts: configuration, accounts, filters, options, signatures, histories of other systems."""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import click

from broker_adapter.cli.connect.options import parse_moment
from broker_adapter.config.settings import parse_settings
from broker_adapter.endpoints.access import accounts, guard
from broker_adapter.endpoints.filters.filters import filter_of
from broker_adapter.endpoints.filters.sql92 import compile_sql
from broker_adapter.endpoints.filters.sql_tokens import SqlError
from broker_adapter.endpoints.rejected import Rejected
from broker_adapter.errors import IllegalMessage
from broker_adapter.namesrv import config as namesrv_config
from broker_adapter.server.advertising import parse_ports
from broker_adapter.v2 import definition_pb2
from broker_adapter.wire.attributes import parse_changes
from chaos.checker.readers import edn, jepsen, porcupine
from chaos.checker.readers.history import ReaderError
from chaos.plans.scenario import FOLDER, load_scenario
from chaos.syncs.journal import DAMAGE, JournalDamaged, read_damage, read_lines
from dledger.cli.client_options import parse_servers
from dledger.cli.local.cluster_plan import PLAN_FILE, ClusterPlan, NodePlan, load_plan, save_plan, to_toml
from dledger.errors import ConfigError
from dledger.infra.files.config_faults import read_toml
from dledger.infra.http.server import AllowedHosts
from dledger.node.setup.config import load_config, parse_config
from dledger.node.setup.secret_file import load_secret
from dledger.status.encoding import node_status_from_json, node_status_to_json
from tests.broker_adapter.v5.access.signed import DATE, NOW_S, signed
from tests.chaos.checker.runs import HISTORIES
from tests.fuzz.files import folder
from tests.fuzz.messages import Known
from tests.fuzz.target import Target
from tests.fuzz.targets_broker import text
from tests.fuzz.targets_log import from_wire, made
from tests.status.fakes import make_status


def in_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def decode(data: bytes) -> Any:
        path = folder() / name
        path.write_bytes(data)
        path.chmod(0o600)
        return read(path)

    return decode


# -- configuration

_SECRET = "s" * 32
_NODE: dict[str, Any] = {
    "directory": "/data/n1",
    "node_id": "n1",
    "cluster_id": "c",
    "members": {"n1": "127.0.0.1:1001", "n2": "host-2:1002", "n3": "[::1]:1003"},
    "http_listen": "127.0.0.1:0",
    "timing": {"heartbeat_ms": 100},
    "limits": {"max_push_bytes": 1 << 20},
    "retention": {"max_age": "7d"},
    "program": {"factory": "m:f", "settings": {"name": "broker-a"}},
}
_SETTINGS: dict[str, Any] = {
    "name": "b",
    "namesrv": ["127.0.0.1:9876"],
    "directory": "d",
    "max_wait_ms": 5,
    "delivery": {},
    "remoting": {"listen": "127.0.0.1:10911"},
    "rocketmq_v2": {},
}
_NAMESRV: dict[str, Any] = {
    "directory": "d",
    "listen": "127.0.0.1:9876",
    "http_allowed_hosts": ["a.b"],
    "expiry": {},
    "limits": {},
}
_ACCOUNTS: dict[str, Any] = {
    "freshness_s": 60,
    "accounts": [
        {
            "access_key": "k",
            "secret": _SECRET,
            "topics": {"a*": "PUB|SUB"},
            "source_addresses": ["10.0.0.0/8"],
        }
    ],
}


def _toml(content: dict[str, Any]) -> Callable[[Random], bytes]:
    return lambda _: to_toml(content).encode()


def _settings(data: bytes) -> None:
    """As they come: out of TOML that was read."""
    try:
        content = tomllib.loads(data.decode())
    except (ValueError, RecursionError):
        return
    parse_settings(content)


def _config(data: bytes) -> None:
    in_file("node.toml", read_toml)(data)
    in_file("node.toml", load_config)(data)


def _accounts_toml(rng: Random) -> bytes:
    lines = (
        f"{key} = {json.dumps(value)}" for key, value in _ACCOUNTS["accounts"][0].items() if key != "topics"
    )
    rules = 'topics = { "a*" = "PUB|SUB" }'
    return "\n".join((f"freshness_s = {rng.choice((60, 1.5))}", "[[accounts]]", *lines, rules)).encode()


def _plan(_: Random) -> bytes:
    made = folder() / "plan"
    made.mkdir(exist_ok=True)
    nodes = tuple(NodePlan(f"n{i}", f"127.0.0.1:{i}", f"127.0.0.1:{i + 100}") for i in range(3))
    save_plan(made, ClusterPlan("c", "g", nodes))
    return (made / PLAN_FILE).read_bytes()


def _load_plan(data: bytes) -> None:
    in_file(PLAN_FILE, lambda path: load_plan(path.parent))(data)


def _scenario(rng: Random) -> bytes:
    return rng.choice(sorted(FOLDER.glob("*.toml"))).read_bytes()


# -- what clients say

_SQL = (
    "a = 'x' AND (n BETWEEN 1 AND 10 OR NOT (TAGS IN ('t', 'u'))) AND b IS NOT NULL",
    "a STARTSWITH 'x' OR a NOT CONTAINS 'it''s' AND n >= -1.5e3",
    "NOT (a <> b) AND c = TRUE",
    "n > 3L -- note\n AND TAGS IN ('t' /* ' */, 'u') OR -.5e1 < n AND a = 'x' IS NOT NULL",
)
_PROPERTIES: tuple[dict[str, str], ...] = (
    {},
    {"a": "x", "n": "5", "b": "1", "TAGS": "t", "c": "true"},
    {"a": "x" * 30_000, "n": "9" * 64, "b": "1e999", "TAGS": "", "c": "nan"},
)
_FILTERS: Known = {"type": (1, 2), "expression": ("*", "a || b", *_SQL)}


def _compile(expression: str) -> None:
    matches, steps = compile_sql(expression)
    assert steps > 0
    for properties in _PROPERTIES:
        matches(properties)


def _filter(expression: definition_pb2.FilterExpression) -> None:
    found = filter_of(expression)
    if found.matches is not None:
        for properties in _PROPERTIES:
            found.matches(properties)


def _signature(_: Random) -> bytes:
    found = signed("k", _SECRET)
    return f"{found['authorization']}\n{DATE}".encode()


def _account_of(data: bytes) -> None:
    """gRPC gives metadata of printable ASCII."""
    authorization, _, date = data.decode("ascii", "ignore").partition("\n")
    known = accounts.parse_accounts(_ACCOUNTS, "here").by_key()
    sent = {"authorization": authorization, "x-mq-date-time": date}
    guard.account_of(sent, known, now_s=NOW_S, freshness_s=60.0)


def _servers(value: str) -> None:
    parse_servers(None, None, value)  # type: ignore[arg-type]


def _status(_: Random) -> bytes:
    return json.dumps(node_status_to_json(make_status())).encode()


def _status_of(data: bytes) -> None:
    """As a command reads the status of a node."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    node_status_from_json(found)


def _allow(header: str) -> None:
    AllowedHosts(["a.b", ".example.com"]).allow(header)
    AllowedHosts([header])


# -- histories


def _history(pattern: str) -> Callable[[Random], bytes]:
    """Of those that the checker is tested with: a piece of whole lines, as all of it takes long."""

    def valid(rng: Random) -> bytes:
        files = sorted(path for path in HISTORIES.glob(pattern) if path.stat().st_size < 20_000)
        return rng.choice(files).read_bytes()

    return valid


def _converted(suffix: str, convert: Callable[[Path, Path, str], None]) -> Callable[[bytes], None]:
    def read(path: Path) -> None:
        run = path.with_name("run")
        try:
            convert(path, run, "run")
        finally:
            shutil.rmtree(run, ignore_errors=True)

    return in_file(f"history{suffix}", read)


def _forms(data: bytes) -> None:
    list(edn.forms(data.decode("utf-8", "replace").splitlines(keepends=True)))


_JOURNAL = b"""life 1 2 boot
has 7 100 data/0
listed 2
write 3 7 100 50 5:1:0:20,30
wrote 4 50
sync 4 5 7 4 -
name 6 7 old new
gone 7 old
"""


def _read_journal(path: Path) -> None:
    for line in read_lines(path):
        line.name_at(0)


def _changes(rng: Random) -> bytes:
    return rng.choice((b"+message.type=FIFO", b"-message.type", b"+a=1, -b ,+c=", b""))


TARGETS = (
    Target(
        "topic-attributes",
        _changes,
        lambda data: parse_changes(data.decode("utf-8", "replace")),
        (parse_changes,),
        (IllegalMessage,),
        text=True,
    ),
    Target(
        "advertised-ports",
        lambda _: b'{"host": "localhost", "broker": 49154, "send_only": null}',
        parse_ports,
        (parse_ports,),
        (IllegalMessage,),
        text=True,
    ),
    Target(
        "sync-damage",
        lambda _: b"48 148\n1000 1100\n",
        in_file(DAMAGE, lambda path: read_damage(path.parent)),
        (read_damage,),
        (JournalDamaged,),
        text=True,
    ),
    Target(
        "sync-journal",
        lambda _: _JOURNAL,
        in_file("journal", _read_journal),
        (read_lines,),
        (JournalDamaged,),
        text=True,
    ),
    Target(
        "node-config",
        _toml(_NODE),
        _config,
        (load_config, parse_config, read_toml),
        (ConfigError,),
        text=True,
    ),
    Target("broker-settings", _toml(_SETTINGS), _settings, (parse_settings,), (ConfigError,), text=True),
    Target(
        "namesrv-config",
        _toml(_NAMESRV),
        in_file("namesrv.toml", lambda path: namesrv_config.load_config(path, {"log": {"level": "info"}})),
        (namesrv_config.load_config,),
        (ConfigError,),
        text=True,
    ),
    Target(
        "accounts-json",
        lambda _: json.dumps(_ACCOUNTS).encode(),
        in_file("accounts.json", accounts.read_accounts),
        (accounts.read_accounts, accounts.parse_accounts),
        (ConfigError,),
        text=True,
    ),
    Target(
        "accounts-toml",
        _accounts_toml,
        in_file("accounts.toml", accounts.read_accounts),
        (accounts.read_accounts,),
        (ConfigError,),
        text=True,
    ),
    Target(
        "secret",
        lambda _: f"{_SECRET}\n{_SECRET[::-1]}\n".encode(),
        in_file("secret", load_secret),
        (load_secret,),
        (ConfigError,),
        text=True,
    ),
    Target("cluster-plan", _plan, _load_plan, (load_plan,), (ConfigError,), text=True),
    Target(
        "scenario",
        _scenario,
        in_file("scenario.toml", load_scenario),
        (load_scenario,),
        (ConfigError,),
        text=True,
    ),
    Target(
        "sql92",
        lambda rng: rng.choice(_SQL).encode(),
        text(_compile),
        (compile_sql,),
        (SqlError,),
        text=True,
    ),
    Target(
        "filter-expression",
        made(definition_pb2.FilterExpression, _FILTERS),
        from_wire(definition_pb2.FilterExpression, _filter),
        (filter_of,),
        (Rejected,),
    ),
    Target("signature", _signature, _account_of, (guard.account_of,), (Rejected,), text=True),
    Target(
        "servers",
        lambda _: b"10.0.0.1:1, [::1]:2, a:65535",
        text(_servers),
        (parse_servers,),
        (click.BadParameter,),
        text=True,
    ),
    Target(
        "moment",
        lambda rng: rng.choice((b"1700000000000", b"2026-01-01T00:00:00+01:00", b"10m")),
        text(parse_moment),
        (parse_moment,),
        (click.BadParameter,),
        text=True,
    ),
    Target("host-header", lambda _: b"www.example.com:80", text(_allow), (), text=True),
    Target("status-json", _status, _status_of, (node_status_from_json,), (ValueError,), text=True),
    Target("edn", _history("*.edn"), _forms, (edn.forms,), (edn.EdnError,), text=True),
    Target(
        "jepsen-edn",
        _history("*.edn"),
        _converted(".edn", jepsen.convert),
        (jepsen.convert,),
        (ReaderError,),
        text=True,
    ),
    Target(
        "jepsen-json",
        _history("*.json*"),
        _converted(".json", jepsen.convert),
        (jepsen.convert,),
        (ReaderError,),
        text=True,
    ),
    Target(
        "porcupine",
        _history("*.log"),
        _converted(".log", porcupine.convert),
        (porcupine.convert,),
        (ReaderError,),
        text=True,
    ),
)

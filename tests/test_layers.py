"""Imports run downwards only. Read from the syntax tree, not by importing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: What the pure core may use besides itself: nothing that waits, draws lots, tells the time or does I/O.
CORE_OUTSIDE = {
    "bisect",
    "struct",
    "dataclasses",
    "enum",
    "typing",
    "collections",
    "collections.abc",
    "__future__",
}

#: The generated protocol modules; everything outside the gRPC layers sees our own types.
GENERATED = "dledger.v1"
BROKER_GENERATED = "broker_adapter.v1"
CLIENT_GENERATED = "broker_adapter.proxy.v2"
#: The gRPC layers of the broker: modules whose names begin so.
BROKER_RPC = ("broker_adapter.rpc.", "broker_adapter.namesrv.rpc_", "broker_adapter.proxy.forwarding.")
CLIENT_RPC = ("broker_adapter.proxy.",)
#: Who may import generated modules of the broker.
RPC_OF = {BROKER_GENERATED: BROKER_RPC, CLIENT_GENERATED: CLIENT_RPC}

_BASE = {"dledger.errors", "dledger.logs", "dledger.metrics", "dledger.core"}
_STATUS_TYPES = "dledger.status.model"
#: unit -> units of this repository it may import. The unit of a module is its longest prefix in this table.
ALLOWED: dict[str, set[str]] = {
    "dledger.errors": set(),
    "dledger.logs": set(),
    "dledger.metrics": set(),
    "dledger.core": {"dledger.errors"},
    _STATUS_TYPES: set(),
    GENERATED: set(),
    "dledger.store": {*_BASE},
    "dledger.rpc": {*_BASE, _STATUS_TYPES, GENERATED},
    "dledger.status": {*_BASE, _STATUS_TYPES},
    "dledger.client": {*_BASE, _STATUS_TYPES, "dledger.rpc"},
    "dledger.replica": {*_BASE, "dledger.store"},
    "dledger.node": {
        *_BASE,
        _STATUS_TYPES,
        "dledger.store",
        "dledger.replica",
        "dledger.rpc",
        "dledger.status",
    },
    "dledger.testing": {
        *_BASE,
        _STATUS_TYPES,
        "dledger.store",
        "dledger.replica",
        "dledger.rpc",
        "dledger.node",
    },
    "dledger.cli": {
        *_BASE,
        _STATUS_TYPES,
        "dledger.status",
        "dledger.store",
        "dledger.replica",
        "dledger.node",
        "dledger.client",
    },
    # The package itself: its public face.
    "dledger": {
        *_BASE,
        _STATUS_TYPES,
        "dledger.client",
        "dledger.replica",
        "dledger.node",
        "dledger.rpc",
        "dledger.status",
        "dledger.store",
        "dledger.cli",
    },
    BROKER_GENERATED: set(),
    CLIENT_GENERATED: set(),
    # What anybody may use: `dledger` itself, and of it only the names that it exports.
    "broker_adapter": {"dledger", BROKER_GENERATED, CLIENT_GENERATED},
    # Its simulator is an extension of the log's.
    "broker_adapter.testing": {
        "dledger",
        "dledger.testing",
        "dledger.replica",
        "dledger.node",
        "broker_adapter",
    },
    # The commands of the broker are added to those of the log.
    "broker_adapter.cli": {"dledger", "dledger.cli", "broker_adapter"},
    "chaos.trace.schema": set(),
    # Judges the product by what it left behind, and knows nothing else of it.
    "chaos.checker": {"chaos.trace.schema"},
    "chaos": {
        "chaos.trace.schema",
        "chaos.checker",
        "dledger",
        *_BASE,
        _STATUS_TYPES,
        "dledger.client",
        "dledger.replica",
        "dledger.node",
        "dledger.store",
        "dledger.cli",
        "broker_adapter",
    },
}


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of every import in `source`, wherever it stands.

    `from a import b` may import the module a.b or a name of a: both are given, as `a` and `a.b`.
    """
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                kept = parents[: len(parents) - (node.level - 1)]
                base = ".".join([*kept, base] if base else kept)
            yield node.lineno, base
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def unit_of(module: str) -> str | None:
    """The row of ALLOWED that `module` belongs to; None for modules of others."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if (name := ".".join(parts[:length])) in ALLOWED:
            return name
    return None


def known_target(name: str, modules: set[str]) -> str | None:
    """The unit an imported name lies in. `a.b` counts when it is a module; `a` only counts for what it is."""
    if name in modules or name in ALLOWED:
        return unit_of(name)
    return None


def violations(source: str, module: str, modules: set[str], *, is_package: bool = False) -> list[str]:
    unit = unit_of(module)
    assert unit is not None, f"{module} has no place in the table of layers"
    found = []
    for line, name in imports_of(source, module, is_package=is_package):
        where = f"{module}:{line}"
        target = known_target(name, modules)
        if target is None:
            if unit == "broker_adapter" and _is_private_to_dledger(name):
                found.append(f"{where}: dledger does not export {name}")
            if unit == "dledger.core" and _is_foreign_to_core(name, modules):
                found.append(f"{where}: the core imports {name}")
        elif target in RPC_OF and not module.startswith(RPC_OF[target]):
            found.append(f"{where}: {module} is no part of a gRPC layer, and imports {name}")
        elif target != unit and target not in ALLOWED[unit]:
            # `from dledger import core` names the package on the way; only the module counts then.
            if target == "dledger" and name == "dledger":
                continue
            found.append(f"{where}: {unit} may not import {name}")
    return found


def _is_foreign_to_core(name: str, modules: set[str]) -> bool:
    parent = name.rpartition(".")[0]
    if name in CORE_OUTSIDE or parent in CORE_OUTSIDE:
        return False
    # A name out of one of our own modules: the module itself was judged.
    return parent not in modules


def exported_names() -> set[str]:
    """`__all__` of `dledger`."""
    for node in ast.parse((ROOT / "dledger" / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError("dledger has no __all__")


EXPORTED = exported_names()


def _is_private_to_dledger(name: str) -> bool:
    package, _, rest = name.partition(".")
    return package == "dledger" and rest not in EXPORTED


def own_modules() -> dict[str, Path]:
    found = {}
    for top in ("dledger", "broker_adapter", "chaos"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def test_imports_run_downwards_only() -> None:
    modules = own_modules()
    assert {"dledger.core.values", "dledger.errors"} <= set(modules)
    found = [
        violation
        for module, path in modules.items()
        if unit_of(module) not in (GENERATED, *RPC_OF)
        for violation in violations(
            path.read_text(), module, set(modules), is_package=path.name == "__init__.py"
        )
    ]
    assert not found, "\n".join(found)


def test_the_table_has_no_way_up() -> None:
    """The table itself is a hierarchy: following it never leads back."""

    def reachable(unit: str, seen: frozenset[str]) -> set[str]:
        assert unit not in seen, f"{unit} reaches itself"
        below = ALLOWED[unit]
        return below.union(*(reachable(b, seen | {unit}) for b in below))

    for unit in ALLOWED:
        below = reachable(unit, frozenset())
        if unit.startswith("dledger"):
            assert not below & {"broker_adapter", "chaos"}


def test_core_outside_is_the_standard_library() -> None:
    assert {name.partition(".")[0] for name in CORE_OUTSIDE} <= set(sys.stdlib_module_names)


MODULES = {
    "dledger",
    "dledger.core",
    "dledger.core.values",
    "dledger.errors",
    "dledger.v1",
    "dledger.v1.log_pb2",
    "dledger.rpc.transport.channels",
    "dledger.node.server",
    "broker_adapter",
    "broker_adapter.errors",
    "broker_adapter.v1",
    "broker_adapter.v1.namesrv_pb2",
    "broker_adapter.proxy.v2",
    "broker_adapter.proxy.v2.service_pb2",
    "chaos.faults.faults",
}


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dledger.core.raft", "import asyncio"),
        ("dledger.core.raft", "import os.path"),
        ("dledger.core.raft", "from time import monotonic"),
        ("dledger.core.raft", "def f():\n    import random"),
        ("dledger.core.raft", "import grpc.aio"),
        ("dledger.core.raft", "from dledger.rpc import channels"),
        ("dledger.core.raft", "from ..rpc import channels"),
        ("dledger.core.raft", "import dledger.node.server"),
        ("dledger.store.log", "from dledger.rpc.transport.channels import open_channel"),
        ("chaos.checker.judge", "import dledger.core.values"),
        ("chaos.checker.judge", "from chaos import faults"),
        ("dledger.client.client", "from dledger.node.server import run_node"),
        ("dledger.client.client", "from dledger.v1 import log_pb2"),
        ("dledger.node.server", "import dledger.v1.log_pb2 as pb"),
        ("dledger.node.server", "import broker_adapter"),
        ("dledger.node.server", "from chaos.faults.faults import kill"),
        ("broker_adapter.store", "from chaos import faults"),
        ("broker_adapter.store", "from dledger.v1 import log_pb2"),
        ("broker_adapter.store", "from dledger.errors import Refused"),
        ("broker_adapter.store", "from dledger.client import Client"),
        ("broker_adapter.store", "from dledger import errors"),
        ("broker_adapter.store", "from dledger import import_module"),
        ("broker_adapter.store", "from broker_adapter.v1 import namesrv_pb2"),
        ("broker_adapter.namesrv.tables", "import broker_adapter.v1.namesrv_pb2"),
        ("broker_adapter.store", "from dledger import *"),
        ("broker_adapter.server.broker", "from broker_adapter.proxy.v2 import service_pb2"),
    ],
)
def test_planted_violations_are_found(module: str, source: str) -> None:
    assert violations(source, module, MODULES)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("dledger.core.raft", "from __future__ import annotations"),
        ("dledger.core.raft", "from collections.abc import Sequence\nfrom collections import deque"),
        ("dledger.core.raft", "from dledger.core.values import Role\nfrom dledger.errors import Code"),
        ("dledger.core.raft", "from .values import Role"),
        ("dledger.core.raft", "from dledger.core import values"),
        ("dledger.rpc.log", "from dledger.v1 import log_pb2\nimport asyncio"),
        ("dledger.node.server", "from dledger.rpc.transport.channels import open_channel"),
        ("broker_adapter.store", "from dledger import Refused, StateMachine\nimport asyncio\nimport dledger"),
        ("broker_adapter.store", "from broker_adapter.errors import Status\nfrom struct import Struct"),
        ("broker_adapter.rpc.wire", "from broker_adapter.v1 import namesrv_pb2"),
        ("broker_adapter.proxy.front", "from broker_adapter.proxy.v2 import service_pb2"),
        ("broker_adapter.namesrv.rpc_service", "import broker_adapter.v1.namesrv_pb2 as pb"),
        ("chaos.faults.faults", "import broker_adapter\nfrom dledger.node.server import run_node"),
    ],
)
def test_rightful_imports_are_not(module: str, source: str) -> None:
    assert not violations(source, module, MODULES)

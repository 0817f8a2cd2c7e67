"""Imports run downwards only. Read from the syntax tree, not by importing."""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

#: What the pure core may use besides itself: nothing that waits, draws lots, tells the time or does I/O.
CORE_OUTSIDE = {
    "abc",
    "bisect",
    "struct",
    "dataclasses",
    "enum",
    "json",
    "typing",
    "collections",
    "collections.abc",
    "__future__",
}

#: The generated protocol modules; everything outside the gRPC layers sees our own types.
GENERATED = "dledger.v1"
BROKER_GENERATED = "broker_adapter.v1"
CLIENT_GENERATED = "broker_adapter.v2"
#: The gRPC layers of the broker: modules whose names begin so.
BROKER_RPC = ("broker_adapter.endpoints.forwarding.",)
CLIENT_RPC = ("broker_adapter.endpoints.",)
#: Hostile clients speak the protocols as good ones would not.
HOSTILE = "chaos.hostile"
#: Who may import generated modules of the broker.
RPC_OF = {
    BROKER_GENERATED: (*BROKER_RPC, f"{HOSTILE}."),
    CLIENT_GENERATED: (*CLIENT_RPC, f"{HOSTILE}."),
}

#: What everything may use, and what whoever serves or calls may use besides.
_GROUND = {"dledger.errors", "dledger.metrics", "dledger.infra", "dledger.infra.files", "dledger.infra.loops"}
_NETWORK = {"dledger.infra.transport", "dledger.infra.http"}
_STATUS_TYPES = "dledger.status.model"
_BASE = {*_GROUND, "dledger.core", _STATUS_TYPES}
_STORE = {"dledger.store", "dledger.store.format"}
_RPC = {"dledger.rpc", "dledger.infra.transport"}
_NODE = {"dledger.node.setup", "dledger.node.disk", "dledger.node.machine"}
#: Modules of the log, beside `dledger` itself, that programs use which are built like a node.
FOR_PROGRAMS = {
    "dledger.core.lone_clock",
    "dledger.core.member_clocks",
    "dledger.core.term_allowance",
    "dledger.core.values",
    "dledger.node.program_ports",
    "dledger.node.role_events",
    "dledger.node.setup.config",
    "dledger.node.setup.member_book",
    "dledger.node.setup.secret_file",
    "dledger.node.setup.trace",
    "dledger.rpc.cluster_secret",
    "dledger.rpc.log_client",
    "dledger.status.http",
    "dledger.store.offline.inspect",
}
#: What every package of the broker may use.
_BROKER_BASE = {
    "dledger",
    *_GROUND,
    *_NETWORK,
    "broker_adapter.errors",
    "broker_adapter.api",
    "broker_adapter.wire",
}
#: What all endpoints of the broker share.
_ENDPOINTS = {*_BROKER_BASE, CLIENT_GENERATED, "broker_adapter.endpoints"}
_TRACE = {"chaos.trace", "chaos.trace.schema"}
_CHECKS = {
    "chaos.trace.schema",
    "chaos.checker.needs",
    "chaos.checker.checks.registry",
    "chaos.checker.checks",
}
#: What the harness may use of the product, beside the commands that start it.
_PRODUCT = {
    *_BASE,
    "dledger",
    *_GROUND,
    "dledger.client",
    "dledger.node",
    "dledger.node.setup",
    "broker_adapter.errors",
}
#: unit -> units of this repository it may import. The unit of a module is its longest prefix in this table.
#: One row for each package, and for the few modules that others may use without the package around them.
ALLOWED: dict[str, set[str]] = {
    "dledger.errors": set(),
    "dledger.metrics": set(),
    "dledger.infra": {"dledger.errors"},
    "dledger.infra.files": {"dledger.errors", "dledger.infra"},
    "dledger.infra.loops": {"dledger.errors", "dledger.infra"},
    "dledger.infra.transport": {*_GROUND},
    "dledger.infra.http": {*_GROUND, "dledger.infra.transport"},
    _STATUS_TYPES: set(),
    GENERATED: set(),
    "dledger.core": {"dledger.errors"},
    "dledger.store.format": {*_BASE},
    "dledger.store": {*_BASE, "dledger.store.format"},
    "dledger.store.offline": {*_BASE, *_STORE},
    "dledger.replica": {*_BASE, *_STORE},
    "dledger.rpc": {*_BASE, GENERATED, "dledger.infra.transport"},
    "dledger.status": {*_BASE, *_NETWORK},
    "dledger.client": {*_BASE, *_RPC},
    "dledger.node.setup": {*_BASE, *_STORE, *_RPC, "dledger.replica"},
    "dledger.node.disk": {*_BASE, *_STORE, "dledger.replica"},
    "dledger.node.machine": {*_BASE, *_STORE, "dledger.replica", "dledger.node.setup"},
    "dledger.node.members": {
        *_BASE,
        *_STORE,
        *_RPC,
        "dledger.node.setup",
        "dledger.node.disk",
    },
    "dledger.node": {
        *_BASE,
        *_STORE,
        *_RPC,
        *_NODE,
        *_NETWORK,
        "dledger.store.offline",
        "dledger.replica",
        "dledger.status",
        "dledger.node.members",
    },
    "dledger.testing.virtual": {*_BASE, *_STORE, "dledger.replica"},
    "dledger.testing.checks": {*_BASE, *_STORE, "dledger.replica", "dledger.testing.virtual"},
    "dledger.testing": {
        *_BASE,
        *_STORE,
        *_RPC,
        *_NODE,
        "dledger.replica",
        "dledger.node",
        "dledger.node.members",
        "dledger.testing.virtual",
        "dledger.testing.checks",
    },
    "dledger.cli": {
        *_BASE,
        *_STORE,
        *_NODE,
        "dledger.store.offline",
        "dledger.status",
        "dledger.node",
        "dledger.client",
    },
    "dledger": {
        *_BASE,
        *_NODE,
        "dledger.replica",
        "dledger.node",
        "dledger.client",
        "dledger.infra.transport",
    },
    "dledger.__main__": {"dledger.cli"},
    "dledger.cli.local": {
        *_BASE,
        "dledger",
        "dledger.store",
        "dledger.store.format",
        "dledger.status",
        "dledger.node.setup",
        "dledger.client",
        "dledger.cli",
    },
    "broker_adapter.cli.dev_command": {
        "dledger.errors",
        "dledger.cli.local",
        "dledger.node",
        "broker_adapter.cli.dev_nodes",
        "broker_adapter.server",
        "broker_adapter.cli.dev_signals",
        "dledger.infra",
    },
    "broker_adapter.cli.backup_commands": {"dledger.cli", "broker_adapter.server"},
    "broker_adapter.cli.dev_signals": set(),
    "broker_adapter.cli.dev_nodes": {
        "dledger.core",
        "dledger.cli.local",
        "broker_adapter.cli",
        "broker_adapter.server",
    },
    "broker_adapter.testing": {"dledger", "dledger.cli.local", "broker_adapter.client"},
    BROKER_GENERATED: set(),
    CLIENT_GENERATED: set(),
    "broker_adapter.errors": {"dledger", *_GROUND},
    "broker_adapter.api": {"dledger", *_GROUND, *_NETWORK, "broker_adapter.errors"},
    "broker_adapter": set(),
    "broker_adapter.wire": {"dledger", *_GROUND, *_NETWORK, "broker_adapter.errors"},
    "broker_adapter.remoting": {
        "dledger",
        *_GROUND,
        *_NETWORK,
        "broker_adapter.errors",
    },
    "broker_adapter.client.core": {
        "broker_adapter.errors",
        "broker_adapter.api",
        "broker_adapter.wire",
        "broker_adapter.remoting",
    },
    "broker_adapter.client": {
        "dledger",
        *_GROUND,
        "broker_adapter.errors",
        "broker_adapter.api",
        "broker_adapter.wire",
        "broker_adapter.remoting",
        "broker_adapter.client.core",
    },
    "broker_adapter.log.classic": {*_BROKER_BASE},
    "broker_adapter.log.classic.ha": {*_BROKER_BASE, "broker_adapter.log.classic"},
    "broker_adapter.log.classic.node": {
        *_BROKER_BASE,
        "broker_adapter.log.classic",
        "broker_adapter.config",
        "broker_adapter.log.classic.ha",
        "broker_adapter.log",
    },
    "broker_adapter.migration": {
        *_BROKER_BASE,
        "broker_adapter.log.classic",
        "broker_adapter.log.classic.ha",
        "broker_adapter.remoting",
        "broker_adapter.client",
        "broker_adapter.client.core",
    },
    "broker_adapter.config": {*_BROKER_BASE},
    "broker_adapter.metadata": {*_BROKER_BASE},
    "broker_adapter.log": {*_BROKER_BASE},
    "broker_adapter.store": {*_BROKER_BASE, "broker_adapter.log"},
    "broker_adapter.role": {*_BROKER_BASE, "broker_adapter.put"},
    "broker_adapter.namesrv": {
        *_BROKER_BASE,
        "broker_adapter.remoting",
        "broker_adapter.client.core",
    },
    # The replicated state, below those that change it by commands.
    "broker_adapter.delivery_state": {*_BROKER_BASE, "broker_adapter.metadata"},
    "broker_adapter.put": {*_BROKER_BASE, "broker_adapter.log", "broker_adapter.delivery_state"},
    "broker_adapter.scheduled": {
        *_BROKER_BASE,
        "broker_adapter.config",
        "broker_adapter.put",
        "broker_adapter.store",
        "broker_adapter.delivery_state",
    },
    "broker_adapter.delivery": {
        *_BROKER_BASE,
        "broker_adapter.config",
        "broker_adapter.metadata",
        "broker_adapter.put",
        "broker_adapter.scheduled",
        "broker_adapter.store",
        "broker_adapter.delivery_state",
    },
    "broker_adapter.endpoints": {*_BROKER_BASE, CLIENT_GENERATED, "broker_adapter.metadata"},
    "broker_adapter.endpoints.filters": {*_ENDPOINTS, "broker_adapter.delivery"},
    "broker_adapter.endpoints.v5.messages": {*_ENDPOINTS, "broker_adapter.delivery"},
    "broker_adapter.endpoints.lists": {*_ENDPOINTS, "broker_adapter.endpoints.v5.messages"},
    "broker_adapter.endpoints.access": {*_ENDPOINTS, "broker_adapter.endpoints.v5.messages"},
    "broker_adapter.endpoints.v5.calls": {
        *_ENDPOINTS,
        "broker_adapter.config",
        "broker_adapter.put",
        "broker_adapter.delivery",
        "broker_adapter.scheduled",
        "broker_adapter.endpoints.filters",
        "broker_adapter.endpoints.lists",
        "broker_adapter.endpoints.v5.messages",
    },
    "broker_adapter.endpoints.v5": {
        *_ENDPOINTS,
        "broker_adapter.config",
        "broker_adapter.metadata",
        "broker_adapter.put",
        "broker_adapter.delivery",
        "broker_adapter.scheduled",
        "broker_adapter.endpoints.access",
        "broker_adapter.endpoints.lists",
        "broker_adapter.endpoints.v5.calls",
        "broker_adapter.endpoints.v5.messages",
    },
    "broker_adapter.endpoints.forwarding": {
        *_ENDPOINTS,
        BROKER_GENERATED,
        "broker_adapter.config",
        "broker_adapter.endpoints.lists",
        "broker_adapter.endpoints.v5",
        "broker_adapter.endpoints.v5.calls",
        "broker_adapter.endpoints.v5.messages",
    },
    "broker_adapter.endpoints.v4": {
        *_BROKER_BASE,
        "broker_adapter.config",
        "broker_adapter.remoting",
        "broker_adapter.put",
        "broker_adapter.store",
        "broker_adapter.delivery",
        "broker_adapter.delivery_state",
        "broker_adapter.scheduled",
        "broker_adapter.endpoints",
        "broker_adapter.endpoints.access",
        "broker_adapter.endpoints.filters",
        "broker_adapter.endpoints.lists",
        "broker_adapter.endpoints.v5.calls",
        "broker_adapter.endpoints.v5.messages",
    },
    "broker_adapter.server": {
        *_BROKER_BASE,
        "broker_adapter.log.classic",
        "broker_adapter.log.classic.node",
        "broker_adapter.log.classic.ha",
        "broker_adapter.log",
        "broker_adapter.migration",
        "broker_adapter.client",
        "broker_adapter.client.core",
        "broker_adapter.remoting",
        "broker_adapter.endpoints.v4",
        "broker_adapter.config",
        "broker_adapter.metadata",
        "broker_adapter.put",
        "broker_adapter.store",
        "broker_adapter.role",
        "broker_adapter.delivery",
        "broker_adapter.namesrv",
        "broker_adapter.delivery_state",
        "broker_adapter.endpoints",
        "broker_adapter.endpoints.v5",
        "broker_adapter.endpoints.access",
        "broker_adapter.endpoints.v5.calls",
        "broker_adapter.endpoints.forwarding",
        "broker_adapter.scheduled",
        "dledger.store.offline",
    },
    # The commands of the broker are added to those of the log.
    "broker_adapter.cli.connect": {
        *_BROKER_BASE,
        "dledger.cli",
        "broker_adapter.namesrv",
        "broker_adapter.client",
    },
    "broker_adapter.cli.messages": {
        *_BROKER_BASE,
        "dledger.cli",
        "broker_adapter.cli.connect",
        "broker_adapter.namesrv",
        "broker_adapter.client",
    },
    "broker_adapter.cli": {
        "broker_adapter.cli.backup_commands",
        "broker_adapter.cli.connect",
        "broker_adapter.cli.messages",
        *_BROKER_BASE,
        "dledger.cli",
        "dledger.cli.local",
        "broker_adapter.namesrv",
        "broker_adapter.client",
        "broker_adapter.log.classic",
        "broker_adapter.migration",
    },
    # The checker judges the product by what it left behind, and knows nothing else of it.
    "chaos.trace.schema": set(),
    # What the harness knows of hostile clients, which have processes of their own.
    f"{HOSTILE}.kinds": {"chaos.trace.schema"},
    f"{HOSTILE}.orders": set(),
    HOSTILE: {
        f"{HOSTILE}.kinds",
        f"{HOSTILE}.orders",
        "dledger",
        *_GROUND,
        *_NETWORK,
        GENERATED,
        BROKER_GENERATED,
        CLIENT_GENERATED,
        "broker_adapter.errors",
        "broker_adapter.remoting",
    },
    "chaos.checker.needs": set(),
    "chaos.checker.checks.registry": {"chaos.checker.needs"},
    "chaos.checker.agreement": set(),
    "chaos.checker.configurations": set(),
    "chaos.checker.recoveries": set(),
    "chaos.checker.shapes": {"chaos.trace.schema"},
    "chaos.checker.whole_operations": {"chaos.checker.agreement", "chaos.checker.checks.registry"},
    "chaos.checker.completeness": {
        "chaos.checker.whole_operations",
        "chaos.trace.schema",
        "chaos.checker.agreement",
        "chaos.checker.shapes",
        "chaos.checker.checks.registry",
    },
    "chaos.checker.checks": {
        "chaos.trace.schema",
        "chaos.checker.needs",
        "chaos.checker.checks.registry",
        "chaos.checker.agreement",
        "chaos.checker.configurations",
        "chaos.checker.recoveries",
        "chaos.checker.completeness",
    },
    "chaos.checker.histories.linearize": set(),
    "chaos.checker.readers": {"chaos.trace.schema", "chaos.checker.histories.linearize"},
    "chaos.checker.histories": {*_CHECKS, "chaos.checker.engine", "chaos.checker.histories.linearize"},
    "chaos.checker.engine": set(),
    "chaos.checker": {
        *_CHECKS,
        "chaos.checker.configurations",
        "chaos.checker.recoveries",
        "chaos.checker.shapes",
        "chaos.checker.engine",
        "chaos.checker.histories",
        "chaos.checker.readers",
    },
    "chaos.checker.engines": {"chaos.trace.schema", "chaos.checker.engine", "chaos.checker"},
    "chaos.checker.command": {"chaos.checker.engine", "chaos.checker"},
    "chaos.checker.reporting": {
        *_CHECKS,
        "chaos.checker",
        "chaos.checker.engine",
        "chaos.checker.command",
        "chaos.checker.readers",
    },
    "chaos.checker.main": {
        *_CHECKS,
        "chaos.checker",
        "chaos.checker.engine",
        "chaos.checker.engines",
        "chaos.checker.command",
        "chaos.checker.readers",
        "chaos.checker.reporting",
    },
    "chaos.trace": {"chaos.trace.schema", "dledger.errors", "broker_adapter.errors"},
    "chaos.quick": {*_TRACE},
    "chaos.network": set(),
    "chaos.injection": {*_PRODUCT},
    # Sees what the product asks of the system, and shares nothing with it.
    "chaos.syncs": {*_TRACE},
    "chaos.cluster": {
        *_PRODUCT,
        *_TRACE,
        "dledger.cli.local",
        "broker_adapter.config",
        "broker_adapter.server",
        "chaos.network",
        "chaos.injection",
        "chaos.syncs",
    },
    "chaos.workloads": {
        *_PRODUCT,
        *_TRACE,
        "dledger.infra.transport",
        "broker_adapter.wire",
        "broker_adapter.namesrv",
        "broker_adapter.client",
    },
    "chaos.workloads.released": {
        *_PRODUCT,
        *_TRACE,
        "broker_adapter.api",
        "broker_adapter.wire",
        "broker_adapter.client",
        "chaos.workloads",
    },
    "chaos.plans": {*_PRODUCT, "dledger.cli.local", "chaos.workloads", f"{HOSTILE}.kinds"},
    "chaos.faults": {
        *_PRODUCT,
        *_TRACE,
        "broker_adapter.client",
        "dledger.cli.local",
        "dledger.store.offline",
        "chaos.network",
        "chaos.injection",
        "chaos.cluster",
        "chaos.plans",
        f"{HOSTILE}.kinds",
        f"{HOSTILE}.orders",
    },
    "chaos": {
        *_PRODUCT,
        *_TRACE,
        f"{HOSTILE}.orders",
        "broker_adapter.log.classic",
        "broker_adapter.wire",
        "broker_adapter.metadata",
        "broker_adapter.delivery_state",
        "broker_adapter.store",
        "chaos.quick",
        "chaos.network",
        "chaos.syncs",
        "chaos.cluster",
        "chaos.workloads",
        "chaos.workloads.released",
        "chaos.plans",
        "chaos.faults",
    },
    "chaos.cli": {
        *_PRODUCT,
        *_TRACE,
        "dledger.cli",
        "dledger.cli.local",
        "broker_adapter.cli",
        "chaos",
        "chaos.quick",
        "chaos.cluster",
        "chaos.faults",
        "chaos.plans",
        "chaos.workloads",
        "chaos.workloads.released",
        "chaos.checker",
        "chaos.checker.engines",
        "chaos.checker.checks",
        "chaos.checker.main",
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
            if unit == "dledger.core" and _is_foreign_to_core(name, modules):
                found.append(f"{where}: the core imports {name}")
        elif target in RPC_OF and not module.startswith(RPC_OF[target]):
            found.append(f"{where}: {module} is no part of a gRPC layer, and imports {name}")
        elif "dledger" in ALLOWED[unit] and _module_of(name, modules) in FOR_PROGRAMS:
            continue
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


def _module_of(name: str, modules: set[str]) -> str:
    return name if name in modules else name.rpartition(".")[0]


def own_modules() -> dict[str, Path]:
    found = {}
    for top in ("dledger", "broker_adapter", "chaos"):
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@pytest.mark.slow
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

    order = list(TopologicalSorter(ALLOWED).static_order())  # CycleError names the way back
    below: dict[str, set[str]] = {}
    for unit in order:
        below[unit] = ALLOWED[unit].union(*(below[b] for b in ALLOWED[unit]))
    for unit in ALLOWED:
        if unit.startswith("dledger"):
            assert not [b for b in below[unit] if b.startswith(("broker_adapter", "chaos"))]


def module_imports(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """What each module imports, wherever the import stands: within functions and `if TYPE_CHECKING`, too.
    `sources`: by name, the text, and whether it is a package. `from a import b` is the module a.b if there is
    one, else a."""
    graph: dict[str, set[str]] = {}
    for module, (source, is_package) in sources.items():
        names = {name for _, name in imports_of(source, module, is_package=is_package)}
        found = {name for name in names if name in sources and not _is_on_the_way(name, names, sources)}
        graph[module] = found - {module}
    return graph


def _is_on_the_way(name: str, names: set[str], modules: Collection[str]) -> bool:
    """`a`, where all that is imported from it are modules."""
    inner = [one for one in names if one.rpartition(".")[0] == name]
    return bool(inner) and all(one in modules for one in inner)


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    sources = {
        module: (path.read_text(), path.name == "__init__.py") for module, path in own_modules().items()
    }
    assert len(sources) > 500
    TopologicalSorter(module_imports(sources)).prepare()  # CycleError names the circle


@pytest.mark.parametrize(
    "circle",
    [
        {"a": "import b", "b": "import a"},
        {"a": "def f():\n    import b", "b": "import c", "c": "from a import x"},
        {"p": "", "p.a": "from p import b", "p.b": "if TYPE_CHECKING:\n    from p.a import A"},
        {"p": "from p.a import A", "p.a": "from p import B"},
    ],
)
def test_circles_are_found(circle: dict[str, str]) -> None:
    with pytest.raises(CycleError):
        TopologicalSorter(
            module_imports({name: (text, name == "p") for name, text in circle.items()})
        ).prepare()


def test_every_package_has_a_row() -> None:
    packages = {module for module, path in own_modules().items() if path.name == "__init__.py"}
    assert packages - set(ALLOWED) == set()
    assert set(ALLOWED) - set(own_modules()) == set()


def test_core_outside_is_the_standard_library() -> None:
    assert {name.partition(".")[0] for name in CORE_OUTSIDE} <= set(sys.stdlib_module_names)


MODULES = {
    "dledger",
    "dledger.core",
    "dledger.core.values",
    "dledger.errors",
    "dledger.v1",
    "dledger.v1.log_pb2",
    "dledger.infra.transport.channels",
    "dledger.node.server",
    "broker_adapter",
    "broker_adapter.errors",
    "broker_adapter.v1",
    "broker_adapter.v1.forward_pb2",
    "broker_adapter.v2",
    "broker_adapter.v2.service_pb2",
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
        ("dledger.store.log", "from dledger.infra.transport.channels import open_channel"),
        ("chaos.checker.judge", "import dledger.core.values"),
        ("chaos.checker.judge", "from chaos import faults"),
        ("dledger.client.client", "from dledger.node.server import run_node"),
        ("dledger.client.client", "from dledger.v1 import log_pb2"),
        ("dledger.node.server", "import dledger.v1.log_pb2 as pb"),
        ("dledger.node.server", "import broker_adapter"),
        ("dledger.node.server", "from chaos.faults.faults import kill"),
        ("broker_adapter.store", "from chaos import faults"),
        ("broker_adapter.store", "from dledger.v1 import log_pb2"),
        ("broker_adapter.store", "from dledger.client import Client"),
        ("broker_adapter.store", "from broker_adapter.v1 import forward_pb2"),
        ("broker_adapter.namesrv.tables", "import broker_adapter.v1.forward_pb2"),
        ("broker_adapter.server.broker", "from broker_adapter.v2 import service_pb2"),
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
        ("dledger.node.server", "from dledger.infra.transport.channels import open_channel"),
        ("broker_adapter.store", "from dledger import Refused, StateMachine\nimport asyncio\nimport dledger"),
        ("broker_adapter.store", "from broker_adapter.errors import Status\nfrom struct import Struct"),
        ("broker_adapter.endpoints.forwarding.wire", "from broker_adapter.v1 import forward_pb2"),
        ("broker_adapter.endpoints.v5.front", "from broker_adapter.v2 import service_pb2"),
        ("broker_adapter.endpoints.forwarding.service", "import broker_adapter.v1.forward_pb2 as pb"),
        ("chaos.faults.faults", "import broker_adapter.errors\nfrom dledger.node.server import run_node"),
    ],
)
def test_rightful_imports_are_not(module: str, source: str) -> None:
    assert not violations(source, module, MODULES)

"""Plans of local clusters: ports, files, configs."""

from __future__ import annotations

import json
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dledger.cli.local.cluster_plan import (
    HOST,
    free_ports,
    load_plan,
    plan_cluster,
    port_in_use,
    ports_in_use,
    save_plan,
    to_toml,
)
from dledger.errors import ConfigError


def test_ports_follow_the_base_port() -> None:
    plan = plan_cluster("c", "g", 3, 20911)
    assert [n.node_id for n in plan.nodes] == ["n1", "n2", "n3"]
    assert plan.addresses == ["127.0.0.1:20911", "127.0.0.1:20912", "127.0.0.1:20913"]
    assert [n.http_address for n in plan.nodes] == ["127.0.0.1:21011", "127.0.0.1:21012", "127.0.0.1:21013"]


def test_free_ports_are_distinct_and_free() -> None:
    ports = free_ports(18)
    assert len(set(ports)) == 18
    assert not any(port_in_use(HOST, port) for port in ports)


def test_no_port_is_drawn_twice_before_all_were() -> None:
    assert not set(free_ports(20)) & set(free_ports(20))


def test_a_taken_port_is_seen() -> None:
    with socket.socket() as server:
        server.bind((HOST, 0))
        server.listen()
        address = f"{HOST}:{server.getsockname()[1]}"
        assert ports_in_use([address]) == [address]
    assert ports_in_use([address]) == []


@pytest.mark.parametrize(("nodes", "port"), [(0, 20911), (10, 20911), (3, 80), (3, 65500), (3, -1)])
def test_impossible_plans(nodes: int, port: int) -> None:
    with pytest.raises(ConfigError):
        plan_cluster("c", "g", nodes, port)


def test_saved_plans_come_back(tmp_path: Path) -> None:
    plan = plan_cluster("c", "g", 5, 20000)
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.json"]


def test_unknown_nodes_are_named_with_the_known() -> None:
    with pytest.raises(ConfigError, match="no node 'n4' in this cluster; its nodes are n1, n2, n3"):
        plan_cluster("c", "g", 3, 20911).node("n4")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cluster up --dir"),
        ("{", "not valid JSON"),
        (100_000 * "[", "not valid JSON"),
        ("{}", "missing or invalid field"),
        (json.dumps({"version": 99}), "version 99"),
        (json.dumps({"version": 1, "nodes": [{}]}), "missing or invalid field 'node_id'"),
        ("[]", "missing or invalid field"),
    ],
)
def test_bad_plan_files_are_explained(tmp_path: Path, content: str | None, says: str) -> None:
    if content is not None:
        (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ConfigError, match=says):
        load_plan(tmp_path)


# Surrogates are no text that a file could hold.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = texts | st.integers(-(2**63), 2**63 - 1) | st.booleans()
keys = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)


@example({"path": "a\x7fb"})
@settings(deadline=None)  # other work on the machine is not a fault
@given(
    st.recursive(
        st.dictionaries(keys, scalars | st.lists(texts, max_size=3), max_size=4),
        lambda tables: st.dictionaries(keys, scalars | tables, max_size=4),
        max_leaves=6,
    )
)
def test_toml_says_what_was_meant(values: dict[str, Any]) -> None:
    assert tomllib.loads(to_toml(values)) == values

"""Configuration errors name the key, say what is wrong, and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dledger.errors import Code, ConfigError
from dledger.infra.transport.channels import MAX_PAYLOAD_BYTES
from dledger.node.setup.config import DEFAULT_BODY_BYTES, load_config, parse_config

GOOD: dict[str, Any] = {
    "directory": "/data/n1",
    "node_id": "n1",
    "cluster_id": "c",
    "members": {"n1": "127.0.0.1:1001", "n2": "host-2:1002", "n3": "[::1]:1003"},
}


def test_defaults() -> None:
    config = parse_config(GOOD)
    assert config.address == config.listen_address == "127.0.0.1:1001"
    assert config.group == "default" and config.http_listen == ""
    assert config.timing.core().election_min_ms == 1000
    assert config.limits.service(1 << 30).max_batch_bytes == MAX_PAYLOAD_BYTES > DEFAULT_BODY_BYTES > 4 << 20


def test_smaller_limits_of_older_configurations_are_taken() -> None:
    """When a batch had to fit a push, and the default of both was 1 MiB."""
    limits = parse_config({**GOOD, "limits": {"max_push_bytes": 1 << 20, "max_body_bytes": 1 << 20}}).limits
    assert limits.batch_bytes(1 << 30) == MAX_PAYLOAD_BYTES
    assert (
        parse_config({**GOOD, "limits": {"max_batch_bytes": 1 << 20}}).limits.batch_bytes(1 << 30) == 1 << 20
    )


def test_other_members_may_be_reached_elsewhere_than_clients_reach_them() -> None:
    config = parse_config({**GOOD, "peer_addresses": {"n2": "10.0.0.2:7"}})
    assert config.peer_address("n2") == "10.0.0.2:7"
    assert config.peer_address("n3") == "[::1]:1003"


def test_a_peer_address_beyond_this_machine_needs_tls() -> None:
    members = {"n1": "127.0.0.1:1001", "n2": "127.0.0.1:1002"}
    config = parse_config({**GOOD, "members": members, "peer_addresses": {"n2": "10.0.0.2:7"}})
    with pytest.raises(ConfigError, match=r"peer_addresses\.n2") as caught:
        config.refuse_plaintext()
    assert caught.value.code is Code.PLAINTEXT_REFUSED


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"node_idd": "n1"}, ["unknown key node_idd", "did you mean node_id?", "preferred_leaders"]),
        ({"max_batch_bytes": 1}, ["unknown key max_batch_bytes", "did you mean limits.max_batch_bytes?"]),
        ({"limits": {"node_id": "n1"}}, ["unknown key limits.node_id", "did you mean node_id?"]),
        ({"limits": {"max_batch_byte": 1}}, ["limits.max_batch_byte", "did you mean max_batch_bytes?"]),
        ({"timing": {"colour": 1}}, ["timing.colour", "valid keys are heartbeat_ms"]),
        ({"node_id": "n9"}, ["node_id 'n9'", "n1, n2, n3"]),
        ({"preferred_leaders": ["n9"]}, ["preferred_leaders", "'n9'"]),
        ({"http_members": {"n9": "h:1"}}, ["http_members", "'n9'"]),
        ({"peer_addresses": {"n9": "h:1"}}, ["peer_addresses", "'n9'"]),
        ({"listen": "nowhere"}, ["listen", "'nowhere'"]),
        ({"members": {"n1": "a:1", "n2": "a:1"}}, ["same address"]),
        ({"members": {}}, ["members"]),
        ({"timing": {"heartbeat_ms": "fast"}}, ["timing.heartbeat_ms", "'fast'"]),
        ({"timing": {"heartbeat_ms": 0}}, ["timing.heartbeat_ms", "greater than 0"]),
        ({"timing": {"heartbeat_ms": 900}}, ["timing", "two heartbeat_ms"]),
        ({"timing": {"election_min_ms": 3000}}, ["timing", "election_max_ms must be greater"]),
        ({"limits": {"max_batch_bytes": 1 << 30}}, ["limits.max_batch_bytes"]),
        ({"log": {"level": "loud"}}, ["log.level", "'debug'"]),
    ],
)
def test_errors_name_the_key_and_what_is_valid(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({**GOOD, **change}, where="node.toml")
    assert caught.value.code is Code.CONFIG_INVALID
    assert str(caught.value).startswith("630 CONFIG_INVALID: node.toml: ")
    for word in words:
        assert word in str(caught.value)


def test_all_errors_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({"node_id": 5, "colour": "red"})
    for word in ("directory is missing", "cluster_id is missing", "node_id", "unknown key colour"):
        assert word in str(caught.value)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(path)
    for text in ("node_id = ", "node_id = " + 5000 * "1", "node_id = " + 5000 * "["):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is not valid TOML"):
            load_config(path)
    path.write_text('directory = "data"\nnode_id = "a"\ncluster_id = "c"\n[members]\na = "localhost:1"\n')
    assert load_config(path).directory == tmp_path / "data"

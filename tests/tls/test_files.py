"""What is wrong with TLS files is said when they are loaded; plain text stays on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from dledger.cli.local.certificates import Authority
from dledger.cli.server_commands import node_config
from dledger.client import AsyncClient, TlsFiles
from dledger.errors import Code, ConfigError, InvalidRequest
from dledger.infra.transport.peer_names import PeerNames
from dledger.infra.transport.tls import Use, load
from dledger.node.setup.config import is_loopback, load_config, parse_config
from tests.node.local import make_server
from tests.process.cluster import toml_of

from .world import TlsWorld


def test_good_files(world: TlsWorld) -> None:
    for use in ("both", "server", "client"):
        assert load(world.files("n1"), use).not_after
    assert load(TlsFiles(world.ca), "client").not_after is None
    # A client's own CA is a matter of the servers.
    assert load(world.files("app", authority=Authority("other")), "client").not_after


BAD: list[tuple[str, Callable[[TlsWorld], TlsFiles], Use, str]] = [
    ("no such file", lambda w: TlsFiles(w.ca, w.folder / "none", w.folder / "none"), "both", "cannot read"),
    ("expired", lambda w: w.files("n1", seconds=-1), "both", "certificate has expired"),
    ("an expired client", lambda w: w.files("n1", seconds=-1), "client", "certificate has expired"),
    ("another CA", lambda w: w.files("n1", authority=Authority("x")), "both", "refused with the CA"),
    (
        "another CA, server",
        lambda w: w.files("n1", authority=Authority("x")),
        "server",
        "refused with the CA",
    ),
    ("no CA", lambda w: TlsFiles(empty(w)), "client", "contains no PEM certificates"),
    (
        "swapped",
        lambda w: TlsFiles(w.ca, w.files("n1").key, w.files("n1").certificate),
        "both",
        "not a matching pair of certificate and key",
    ),
    ("encrypted key", lambda w: encrypted(w), "both", "encrypted"),
]


def empty(world: TlsWorld) -> Path:
    path: Path = world.folder / "empty.pem"
    path.write_text("no certificate here\n")
    return path


def encrypted(world: TlsWorld) -> TlsFiles:
    files = world.files("n1")
    path = Path(str(files.key))
    key = load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    return files


@pytest.mark.parametrize(("make", "use", "words"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_files_are_named(
    world: TlsWorld, make: Callable[[TlsWorld], TlsFiles], use: Use, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(make(world), use)
    assert caught.value.code is Code.CONFIG_INVALID


def test_half_a_pair(world: TlsWorld) -> None:
    with pytest.raises(ConfigError, match="certificate and key must be given together"):
        TlsFiles(world.ca, certificate="app.pem")


async def test_tls_and_credentials_exclude_each_other(world: TlsWorld) -> None:
    with pytest.raises(ConfigError, match="not both"):
        AsyncClient("127.0.0.1:1", tls=TlsFiles(world.ca), credentials=grpc.ssl_channel_credentials())


async def test_a_node_does_not_start_with_bad_files(world: TlsWorld) -> None:
    server = world.server("n1", world.files("n1", seconds=-1))
    with pytest.raises(ConfigError, match="certificate has expired"):
        await server.start()
    server = world.server("n1")  # nothing was left behind: the directory is free
    await server.start()
    await server.stop()


BASE: dict[str, Any] = {
    "directory": "/d",
    "node_id": "n1",
    "cluster_id": "c",
    "members": {"n1": "127.0.0.1:1"},
}
TLS = {"certificate": "n1.pem", "key": "n1.key", "ca": "ca.pem"}
THREE = {"members": {f"n{i}": f"10.0.0.{i}:1" for i in (1, 2, 3)}}
NEAR = {"members": {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}}
BEYOND: list[tuple[dict[str, Any], str]] = [
    ({"listen": "0.0.0.0:1"}, r"listen is 0\.0\.0\.0:1"),
    ({"listen": ":1"}, "listen is :1"),
    ({"listen": "[::]:1"}, "listen is"),
    ({"members": {"n1": "n1.example:1"}}, "listen is n1.example:1"),
    ({"members": {"n1": "127.0.0.1:1", "n2": "10.0.0.2:1"}}, r"members\.n2 is 10\.0\.0\.2:1"),
    ({"http_listen": "0.0.0.0:2"}, "http_listen is"),
    ({"listen": "0.0.0.0:1", "tls": TLS, "http_listen": "0.0.0.0:2", "http_tls": False}, "http_tls = true"),
]
WITHIN: list[dict[str, Any]] = [
    {},
    {"listen": "localhost:1", "http_listen": "[::1]:2"},
    {"listen": "0.0.0.0:1", "http_listen": "0.0.0.0:2", "tls": TLS},
    {"listen": "0.0.0.0:1", "http_listen": "0.0.0.0:2", "allow_plaintext": True},
    {"listen": "0.0.0.0:1", "http_listen": "127.0.0.1:2", "tls": TLS, "http_tls": False},
    {**THREE, "tls": TLS},
    {**THREE, "allow_plaintext": True, "cluster_secret_file": "secret"},
    {**THREE, "tls": {**TLS, "client_auth": "none"}, "cluster_secret_file": "secret"},
    {"members": {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2"}, "tls": {**TLS, "client_auth": "none"}},
]
STRANGERS: list[dict[str, Any]] = [
    {**THREE, "allow_plaintext": True},
    {**THREE, "tls": {**TLS, "client_auth": "none"}},
    {**NEAR, "listen": "0.0.0.0:1", "allow_plaintext": True},
    {**NEAR, "peer_addresses": {"n2": "10.1.0.2:1"}, "allow_plaintext": True},
]


@pytest.mark.parametrize(("change", "words"), BEYOND)
def test_plain_text_beyond_this_machine_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        parse_config({**BASE, **change}).refuse_plaintext()
    assert caught.value.code is Code.PLAINTEXT_REFUSED
    assert "637" in str(caught.value) and "allow_plaintext = true" in str(caught.value)


@pytest.mark.parametrize("change", WITHIN)
def test_what_may_listen(change: dict[str, Any]) -> None:
    parse_config({**BASE, **change}).refuse_plaintext()


@pytest.mark.parametrize("change", STRANGERS)
def test_without_mutual_tls_members_need_a_secret_beyond_this_machine(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="cluster_secret_file") as caught:
        parse_config({**BASE, **change}).refuse_plaintext()
    assert caught.value.code is Code.PLAINTEXT_REFUSED
    assert "dledger init --new-secret" in str(caught.value)


async def test_such_a_node_does_not_start(tmp_path: Path) -> None:
    server = make_server(tmp_path, "n1", {"n1": "127.0.0.1:1"}, {"listen": "0.0.0.0:0"})
    with pytest.raises(ConfigError, match="637 PLAINTEXT_REFUSED"):
        await server.start()


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1")))
    assert not any(map(is_loopback, ("10.0.0.1:1", ":1", "[::]:1", "localhost.example:1", "128.0.0.1:1")))


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "n1.toml"
    path.write_text(toml_of({**BASE, "tls": {**TLS, "key": "/keys/n1.key"}}))
    section = load_config(path).tls
    assert section is not None
    assert (section.ca, section.key) == (tmp_path / "ca.pem", Path("/keys/n1.key"))


def test_single_keys_can_be_overridden(tmp_path: Path) -> None:
    path = tmp_path / "n1.toml"
    path.write_text(toml_of({**BASE, "tls": TLS}))
    section = node_config(path, {"tls": {"client_auth": "none"}, "http_tls": False}).tls
    assert section is not None
    assert (section.ca, section.client_auth) == (tmp_path / "ca.pem", "none")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tls": {"ca": "x"}}, "tls.certificate is missing"),
        ({"tls": {**TLS, "client_aut": "none"}}, "did you mean client_auth"),
        ({"tls": {**TLS, "client_auth": "maybe"}}, "tls.client_auth"),
        ({"tls": {**TLS, "peer_names": {"n9": "x"}}}, "tls.peer_names names 'n9'"),
    ],
)
def test_wrong_sections(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_config({**BASE, **change})


SAN, CN = "x509_subject_alternative_name", "x509_common_name"


@pytest.mark.parametrize(
    ("members", "given", "context", "good"),
    [
        ({"n1": "a:1", "n2": "b:1"}, {}, {SAN: [b"a"]}, True),
        ({"n1": "a:1", "n2": "b:1"}, {}, {SAN: [b"A", b"x"]}, True),
        ({"n1": "a:1", "n2": "b:1"}, {}, {CN: [b"n1"]}, True),
        ({"n1": "a:1", "n2": "b:1"}, {}, {SAN: [b"b"], CN: [b"n2"]}, False),
        ({"n1": "a:1", "n2": "b:1"}, {}, {}, False),
        ({"n1": "a:1", "n2": "a:2"}, {}, {SAN: [b"a"]}, False),
        ({"n1": "a:1", "n2": "a:2"}, {}, {SAN: [b"n1"]}, True),
        ({"n1": "a:1", "N1": "b:1"}, {}, {SAN: [b"N1"]}, False),
        ({"n1": "[0:0::1]:1", "n2": "b:1"}, {}, {SAN: [b"::1"]}, True),
        ({"n1": "a:1", "n2": "b:1"}, {"n1": "one"}, {SAN: [b"a", b"n1"]}, False),
        ({"n1": "a:1", "n2": "b:1"}, {"n1": "one"}, {CN: [b"one"]}, True),
    ],
)
def test_names_of_members(
    members: dict[str, str], given: dict[str, str], context: dict[str, list[bytes]], good: bool
) -> None:
    names = PeerNames(members, given)
    if good:
        names.check("n1", context)
        return
    with pytest.raises(InvalidRequest) as caught:
        names.check("n1", context)
    assert caught.value.code is Code.CERTIFICATE_REFUSED

"""Configuration: what is wrong is named, and plain text stays on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.namesrv.config import load_config
from dledger import Code, ConfigError


def written(folder: Path, text: str) -> Path:
    path = folder / "namesrv.toml"
    path.write_text(text)
    return path


def test_paths_of_the_file_are_relative_to_it_and_options_override_it(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        directory = "data"
        listen = "127.0.0.1:9000"
        [expiry]
        default_ms = 60000
        scan_ms = 1000
        [tls]
        certificate = "a.pem"
        key = "/abs/a.key"
        ca = "ca.pem"
        """,
    )
    config = load_config(path, {"listen": "127.0.0.1:9001", "expiry": {"scan_ms": 7}})
    assert config.directory == tmp_path / "data"
    assert config.tls is not None
    assert (config.tls.certificate, config.tls.key) == (tmp_path / "a.pem", Path("/abs/a.key"))
    assert (config.listen, config.expiry.default_ms, config.expiry.scan_ms) == ("127.0.0.1:9001", 60_000, 7)
    assert config.table_limits().default_expire_ms == 60_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listen = '127.0.0.1:1'", "directory is missing"),
        ("directory = 'd'\nlisten = 'nowhere'", "listen"),
        ("directory = 'd'\nlimts = {}", "did you mean limits"),
        ("directory = 'd'\n[limits]\nmax_topic = 3", "did you mean max_topics"),
        ("directory = 'd'\n[limits]\nmax_topics = 0", "limits.max_topics"),
        ("directory = 'd'\n[expiry]\ndefault_ms = 1", "between min_ms and max_ms"),
        ("directory = 'd'\n[tls]\nkey = 'k'", "tls.certificate is missing"),
        ("directory = 3", "directory"),
        ("directory = ", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(written(tmp_path, text), {})
    assert "namesrv.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"listen": "0.0.0.0:1"}, "listen"),
        ({"http_listen": "10.0.0.1:1"}, "http_listen"),
        (
            {
                "listen": "10.0.0.1:1",
                "http_listen": "10.0.0.1:2",
                "tls": {"certificate": "a", "key": "b", "ca": "c", "http": False},
            },
            "http_listen",
        ),
    ],
)
def test_plain_text_beyond_this_machine_needs_to_be_said(settings: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^637 PLAINTEXT_REFUSED: {key} is") as caught:
        load_config(None, {"directory": "d", **settings}).refuse_plaintext()
    assert caught.value.code is Code.PLAINTEXT_REFUSED
    load_config(None, {"directory": "d", "allow_plaintext": True, **settings}).refuse_plaintext()


def test_with_tls_nothing_is_plain() -> None:
    tls = {"certificate": "a", "key": "b", "ca": "c"}
    settings = {"directory": "d", "listen": "0.0.0.0:1", "http_listen": "0.0.0.0:2", "tls": tls}
    load_config(None, settings).refuse_plaintext()

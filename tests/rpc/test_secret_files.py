"""Keys and accounts that every user may write are refused, those that every user may read warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.endpoints.access.accounts import read_accounts
from dledger.cli.local.certificates import Authority
from dledger.errors import ConfigError
from dledger.infra.transport.tls import TlsFiles, load

ACCOUNTS = '[[accounts]]\naccess_key = "a"\nsecret = "hidden"\n'


@pytest.fixture(params=["key", "accounts"])
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    authority = Authority()
    authority.save(tmp_path)
    authority.issue(tmp_path, "n1", hosts=("localhost",))
    accounts = tmp_path / "accounts.toml"
    accounts.write_text(ACCOUNTS)
    accounts.chmod(0o600)
    return tmp_path / "n1.key" if request.param == "key" else accounts


def read(secret: Path) -> None:
    if secret.suffix == ".key":
        load(TlsFiles(secret.parent / "ca.pem", secret.parent / "n1.pem", secret), "both")
    else:
        read_accounts(secret)


@pytest.mark.parametrize("mode", [0o602, 0o666, 0o622])
def test_a_secret_that_everybody_may_write_is_refused(secret: Path, mode: int) -> None:
    secret.chmod(mode)
    with pytest.raises(ConfigError, match=f"is writable by every user.*{secret.name}"):
        read(secret)


def test_a_secret_that_everybody_may_read_is_warned_of(
    secret: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret.chmod(0o644)
    read(secret)
    assert f"{secret} is readable by every user" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o640])
def test_a_secret_of_its_owner_and_group_is_taken_in_silence(
    secret: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    secret.chmod(mode)
    read(secret)
    assert not caplog.text

"""The file of a cluster's secret."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from dledger.errors import ConfigError
from dledger.infra.files import platform
from dledger.infra.files.secret_files import check_secret_file
from dledger.rpc.cluster_secret import ClusterSecret

_NEW_BYTES = 32
_LEAST_LENGTH = 32
_MOST_LENGTH = 1024
#: A node accepts two secrets during a change.
_MOST_SECRETS = 2


def load_secret(path: Path) -> ClusterSecret:
    """Load the secrets, one per line. Raises ConfigError, which describes the problem without revealing the
    content."""
    try:
        check_secret_file(path)
        lines = [line.strip() for line in path.read_bytes().splitlines()]
    except OSError as error:
        raise ConfigError(
            f"cannot read cluster_secret_file {path} ({error.strerror}): create it on one node with "
            "`dledger init --new-secret`, and copy it to the others"
        ) from None
    accepted = [line for line in lines if line]
    if not 1 <= len(accepted) <= _MOST_SECRETS:
        raise ConfigError(
            f"cluster_secret_file {path} has {len(accepted)} lines: expected one line, or two while the "
            "secret is being changed"
        )
    if not all(_LEAST_LENGTH <= len(line) <= _MOST_LENGTH for line in accepted):
        raise ConfigError(
            f"cluster_secret_file {path}: a secret must have {_LEAST_LENGTH} to {_MOST_LENGTH} characters"
        )
    return ClusterSecret(accepted)


def make_secret(path: Path) -> None:
    """Create a file with a secret that only its owner can read. Raises ConfigError if the file exists."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigError(
            f"{path} already exists: create a secret once and copy it to the other nodes"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot create {path}: {error.strerror}") from None
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(_NEW_BYTES) + "\n")
        file.flush()
        platform.sync_all(file.fileno())

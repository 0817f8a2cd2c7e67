"""Modes of files with secrets: keys of certificates, accounts.

A file that every user may write is refused: whoever writes it decides who may do what. A file that every
user may read is only warned of: secrets are usually mounted into containers so (0644), and there are no other
users there. The group may read: a file of root for the group of the service is common.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from dledger.errors import Code, ConfigError

_log = logging.getLogger(__name__)


def check_secret_file(path: Path) -> None:
    """ConfigError if every user may write it; logs a warning if every user may read it. OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} may be written by every user of this machine (mode {mode:04o}): chmod o-rwx {path}",
            code=Code.CONFIG_INVALID,
        )
    if mode & stat.S_IROTH:
        _log.warning("%s may be read by every user of this machine (mode %04o): chmod o-rwx it", path, mode)

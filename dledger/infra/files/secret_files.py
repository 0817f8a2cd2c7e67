"""Permission checks for secret files: private keys and accounts.

A file that every user may write is rejected, because any user could replace the key or the accounts. A file
that every user may read only causes a warning, because secrets are usually mounted with mode 0644 into
containers, which have no other users. The group may read the file: often root owns it, and the service reads
it through its group.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

from dledger.errors import Code, ConfigError

_log = logging.getLogger(__name__)


def check_secret_file(path: Path) -> None:
    """Raise ConfigError if every user may write the file. Logs a warning if every user may read it. Raises
    OSError."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise ConfigError(
            f"{path} is writable by every user of this machine (mode {mode:04o}): chmod o-rwx {path}",
            code=Code.CONFIG_INVALID,
        )
    if mode & stat.S_IROTH:
        _log.warning("%s is readable by every user of this machine (mode %04o): chmod o-rwx it", path, mode)

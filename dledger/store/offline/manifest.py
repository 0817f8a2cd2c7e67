"""Manifests of backups: JSON with a CRC, written last, so that a directory without one is not a backup."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zlib_ng.zlib_ng import crc32

from dledger.errors import Code, StorageError
from dledger.infra.files.disk import Disk, make_directories, read_file, replace_file

MANIFEST = "manifest"
_VERSION = 1
#: Kind of manifests of 0.2, which do not name it.
_FIRST_KIND = "log"
#: By kind of backup: the command that restores it.
_RESTORED_BY = {"log": "dledger restore", "classic": "dledger broker restore"}


def prepare_target(disk: Disk, target: Path, names: Iterable[str]) -> None:
    """Create the directory of a backup, or remove the files `names` of an interrupted backup.

    Raises StorageError ALREADY_INITIALIZED if it contains a backup, and OSError.
    """
    if not disk.exists(target):
        make_directories(disk, target)
    if disk.exists(target / MANIFEST):
        raise StorageError(f"{target} already contains a backup", code=Code.ALREADY_INITIALIZED)
    for name in (*names, f"{MANIFEST}.tmp"):  # from an interrupted backup; or a link to another file
        if name in disk.listdir(target):
            disk.unlink(target / name)


def save_manifest(disk: Disk, target: Path, kind: str, fields: Mapping[str, Any]) -> None:
    """Complete a backup, whose files are durable. Raises OSError."""
    stored: dict[str, Any] = {**fields, "version": _VERSION}
    if kind != _FIRST_KIND:
        stored["kind"] = kind
    stored["crc"] = _crc(stored)
    replace_file(disk, target / MANIFEST, (json.dumps(stored, indent=2) + "\n").encode())
    disk.sync_directory(target.parent)


def load_manifest(disk: Disk, backup: Path, kind: str) -> dict[str, Any]:
    """Return the fields of a manifest.

    Raises StorageError: BACKUP_INCOMPLETE if there is none, STATE_DAMAGED if it is invalid, FOREIGN_DIRECTORY
    if the backup is of another kind.
    """
    path = backup / MANIFEST
    try:
        fields: dict[str, Any] = json.loads(read_file(disk, path))
        crc = fields.pop("crc")
        if crc != _crc(fields) or fields.pop("version") != _VERSION:
            raise ValueError("the crc does not match, or the version is unknown")
        found = fields.pop("kind", _FIRST_KIND)
    except (FileNotFoundError, NotADirectoryError):
        text = f"{backup} does not contain a complete backup"
        raise StorageError(text, code=Code.BACKUP_INCOMPLETE) from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise damaged_manifest(backup, error) from error
    if found != kind:
        text = f"{backup} is a backup of another kind: restore it with `{_RESTORED_BY.get(found, found)}`"
        raise StorageError(text, code=Code.FOREIGN_DIRECTORY)
    return fields


def damaged_manifest(backup: Path, error: Exception) -> StorageError:
    return StorageError(f"{backup / MANIFEST} is damaged: {error}", code=Code.STATE_DAMAGED)


def _crc(fields: Mapping[str, Any]) -> int:
    return crc32(json.dumps(fields, sort_keys=True).encode())

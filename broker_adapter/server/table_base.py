"""The base file: `tables_base.json`, next to RocketMQ's tables in `config`.

    {"version": 1, "position": 4711, "number": 3, "written": {"tables": {"topics.json": ""},
     "incarnations": [], "was_clean": false}, "before": null, "merges": [], "replaces_written": false}

The file records the tables that this project last wrote, and later merges of other tables. At startup, the
broker compares the tables with the file to find the changes that another broker made (`table_merge`). For a
rebuild from the log, it uses the written tables as an image of the state.

The tables are replaced after the base file. Each table is prepared in a file with the number of the write
(`topics.json.3`), which is then renamed. If a prepared file still exists, its table was not replaced, even if
another broker has written the table since. In that case `before` has the content to compare with.

`merges` contains the tables of merges that the log may lack, oldest first. Each is durable before its merge
changes the state. The command `SetMergedTables` records that the log has all commands of the last merge.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from broker_adapter.errors import StoredDataDamaged
from broker_adapter.server.table_merge import OFFSETS, TABLE_NAMES, parse_tables
from broker_adapter.store.consume_queues import Incarnation
from dledger.infra.files.disk import Disk, read_file, replace_file
from dledger.infra.logs import get_logger

_log = get_logger("tables")
FILE_NAME = "tables_base.json"
#: Digest of the tables found at a start after a clean stop.
_LEFT_NAME = "tables_left.json"
#: Digests of the tables as written by release 0.1.0.
_DIGESTS_NAME = "tables_written.json"
_VERSION = 1
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class SeenTables(NamedTuple):
    """Contents of the tables at one time, by name.

    `incarnations`: incarnations of the queues known at that time. `was_clean`: the broker that wrote the
    tables stopped cleanly.
    """

    contents: Mapping[str, bytes]
    incarnations: Sequence[Incarnation] = ()
    was_clean: bool = False


NO_TABLES = SeenTables({})


class TableBase(NamedTuple):
    """Contents of the base file.

    `written` includes the effects of all log records before `position` (-1: unknown), and perhaps of some
    later ones. `number`: number of the write, which increases. `before`: previous tables, until all tables
    are replaced. `replaces_written`: the log contains the first of `merges`, so later tables are compared
    with that merge.
    """

    position: int
    written: SeenTables
    number: int = 0
    before: SeenTables | None = None
    merges: Sequence[SeenTables] = ()
    replaces_written: bool = False

    @property
    def is_image(self) -> bool:
        """True if this project has written the tables; False if it has only recorded a merge so far."""
        return bool(self.written.contents)

    @property
    def merge_id(self) -> str:
        """Id of the last of `merges`. The log contains it once it has all commands of that merge."""
        return blake2b(_encode(self), digest_size=16).hexdigest()

    def settled(self, merged_id: str) -> TableBase:
        """Return the base without completed merges.

        `merged_id`: id of the last merge that the log contains.
        """
        if not self.merges or merged_id != self.merge_id:
            return self
        return self._replace(merges=self.merges[-1:], replaces_written=True)

    def history(self, disk: Disk, directory: Path) -> list[SeenTables]:
        """Return the tables of the state, followed by the tables of merges that the state may include."""
        return [*([] if self.replaces_written else [self.in_place(disk, directory)]), *self.merges]

    def in_place(self, disk: Disk, directory: Path) -> SeenTables:
        """Return the tables that this project last moved into place."""
        before, written = self.before, self.written
        if before is None:
            return written
        kept = {name for name in TABLE_NAMES if disk.exists(prepared_path(directory, name, self.number))}
        sources = {name: before if name in kept else written for name in TABLE_NAMES}
        contents = {name: seen.contents[name] for name, seen in sources.items() if name in seen.contents}
        return SeenTables(contents, sources[OFFSETS].incarnations)


def prepared_path(directory: Path, name: str, number: int) -> Path:
    return directory / f"{name}.{number}"


def read_base(disk: Disk, directory: Path) -> TableBase | None:
    """Read the base. Return None if it was never written or is unreadable."""
    try:
        value = json.loads(read_file(disk, directory / FILE_NAME))
        if value["version"] != _VERSION:
            raise ValueError(f"unexpected version {value['version']!r}")
        written, before = _seen(value["written"]), value["before"]
        parse_tables(written.contents)
        return TableBase(
            int(value["position"]),
            written,
            int(value["number"]),
            None if before is None else _readable(_seen(before)),
            [_readable(_seen(one)) for one in value["merges"]],
            bool(value["replaces_written"]),
        )
    except FileNotFoundError:
        return _base_of_digests(disk, directory)
    except (*_UNREADABLE, StoredDataDamaged) as error:
        _log.warning("the base of the tables is unreadable", file=FILE_NAME, reason=repr(error))
        return None


def write_base(disk: Disk, directory: Path, base: TableBase) -> None:
    """Write the base durably."""
    replace_file(disk, directory / FILE_NAME, _encode(base))


def note_clean_stop(disk: Disk, root: Path) -> None:
    """Record the tables if the broker that wrote them stopped cleanly.

    Call this before this broker creates `abort` in the store directory `root`. Suppose that the broker is
    killed before it has merged the tables. Its own `abort` file would then hide the fact that the other
    broker stopped cleanly.
    """
    directory = root / "config"
    if disk.exists(root / "abort") or not disk.exists(directory) or are_left_cleanly(disk, directory):
        return
    try:
        replace_file(disk, directory / _LEFT_NAME, _left_digest(disk, directory))
    except OSError as error:
        _log.warning("a clean stop was not recorded", file=_LEFT_NAME, reason=str(error))


def are_left_cleanly(disk: Disk, directory: Path) -> bool:
    """Return True if the tables have not changed since the last clean stop."""
    try:
        return read_file(disk, directory / _LEFT_NAME) == _left_digest(disk, directory)
    except FileNotFoundError:
        return False


def tables_on_disk(disk: Disk, directory: Path) -> dict[str, bytes]:
    tables = {}
    for name in TABLE_NAMES:
        with suppress(FileNotFoundError):
            tables[name] = read_file(disk, directory / name)
    return tables


def _base_of_digests(disk: Disk, directory: Path) -> TableBase | None:
    """Return the tables themselves as the base if release 0.1.0 was the last to write them."""
    try:
        value = json.loads(read_file(disk, directory / _DIGESTS_NAME))
        known = {name: [one] if isinstance(one, str) else list(one) for name, one in value.items()}
    except (FileNotFoundError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    found = tables_on_disk(disk, directory)
    digests = {name: blake2b(content, digest_size=16).hexdigest() for name, content in found.items()}
    is_ours = all(digest in known.get(name, ()) for name, digest in digests.items())
    return TableBase(-1, SeenTables(found)) if is_ours else None


def _left_digest(disk: Disk, directory: Path) -> bytes:
    found = tables_on_disk(disk, directory)
    digests = {name: blake2b(content, digest_size=16).hexdigest() for name, content in found.items()}
    return json.dumps(digests, sort_keys=True).encode()


def _encode(base: TableBase) -> bytes:
    value = {
        "version": _VERSION,
        "position": base.position,
        "number": base.number,
        "written": _to_json(base.written),
        "before": None if base.before is None else _to_json(base.before),
        "merges": [_to_json(one) for one in base.merges],
        "replaces_written": base.replaces_written,
    }
    return json.dumps(value).encode()


def _to_json(seen: SeenTables) -> dict[str, Any]:
    return {
        "tables": {name: content.decode() for name, content in sorted(seen.contents.items())},
        "incarnations": list(seen.incarnations),
        "was_clean": seen.was_clean,
    }


def _seen(value: Mapping[str, Any]) -> SeenTables:
    tables = value["tables"]
    return SeenTables(
        {name: tables[name].encode() for name in TABLE_NAMES if name in tables},
        [Incarnation(str(topic), int(queue), int(at)) for topic, queue, at in value["incarnations"]],
        bool(value["was_clean"]),
    )


def _readable(seen: SeenTables) -> SeenTables:
    """Return the valid tables. If a table is missing, its entries do not count as deleted."""
    valid = {}
    for name, content in seen.contents.items():
        with suppress(StoredDataDamaged):
            parse_tables({name: content})
            valid[name] = content
    return seen._replace(contents=valid)

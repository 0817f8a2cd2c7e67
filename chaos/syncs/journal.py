"""The journal that `chaos.syncs.recorder` writes: one file per process of a node, one line per call.

    life <mono> <pid> <boot_id>               recording starts in this process
    has <inode> <size> <name>                 an existing file; the list ends with `listed <mono>`
    made <mono> <inode> <name>                a new file
    write <mono> <inode> <offset> <length> <what>
                                              before the call. what: `-`, or the entries that start there
                                              (`index:term:offset:size,size...;...`), or `=` and the bytes
                                              in hex
    wrote <line> <bytes>                      the call of that line wrote only this number of bytes
    sync <started> <ended> <inode> <before> <in flight>
                                              a sync returned. before: number of lines at its start; in
                                              flight: lines of writes that had not returned then, or `-`
    unsynced <mono> <inode>                   a sync failed
    folder <started> <ended> <name> <before>  a sync of a directory returned; `.` is the node's directory
    cut <mono> <inode> <size>                 before the file is truncated, or before a classic log overwrites
                                              its end with zeros
    name <mono> <inode> <old> <new>           after a rename; `-`: a name that is not watched
    gone <mono> <name>                        before a name is removed
    odd <mono> <inode>                        from now on, writes to the file may not be recorded

The harness adds a journal after a node has lost power, with the ranges whose written content is lost:

    undone <mono> <inode> <offset> <length>

In a separate file, the harness lists the durable entries whose bytes it has damaged: `<start> <end>`,
positions in the log.

Lines are numbered from 1. Names are relative to the node's directory, quoted as in URLs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

#: File next to the journals of a node.
DAMAGE = "damage.txt"

_FIELDS = {
    "life": 3,
    "has": 3,
    "listed": 1,
    "made": 3,
    "write": 5,
    "wrote": 2,
    "sync": 5,
    "unsynced": 2,
    "folder": 4,
    "cut": 3,
    "name": 4,
    "gone": 2,
    "odd": 2,
    "undone": 4,
}


class JournalDamaged(ValueError):
    """Raised if a line of a journal is malformed."""


class Line(NamedTuple):
    """A line of a journal. `number`: from 1."""

    number: int
    what: str
    fields: list[str]

    def number_at(self, field: int) -> int:
        return int(self.fields[field])

    def name_at(self, field: int) -> str:
        return unquote(self.fields[field])


class Span(NamedTuple):
    """Bytes of one entry in its file."""

    begin: int
    end: int
    entry: int
    term: int


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the lines of one process. Raises JournalDamaged.

    SIGKILL may leave an incomplete last line, but then its call had not started.
    """
    content = path.read_bytes().rstrip(b"\0")
    whole, _, _ = content.rpartition(b"\n")
    try:
        texts = whole.decode().split("\n") if whole else []
    except UnicodeDecodeError as error:
        raise JournalDamaged(f"{path}: the text at byte {error.start} is not UTF-8") from None
    for number, text in enumerate(texts, 1):
        what, *fields = text.split(" ")
        if len(fields) != _FIELDS.get(what, -1):
            raise JournalDamaged(f"{path}: invalid line {number}: {text!r}")
        yield Line(number, what, fields)


def spans_of(what: str) -> list[Span]:
    """Return the entries that a `write` names."""
    spans: list[Span] = []
    if what in ("", "-") or what.startswith("="):
        return spans
    for run in what.split(";"):
        index, term, offset, sizes = run.split(":")
        begin = int(offset)
        for number, size in enumerate(map(int, sizes.split(","))):
            spans.append(Span(begin, begin + size, int(index) + number, int(term)))
            begin += size
    return spans


def next_journal(folder: Path) -> Path:
    """Return the path for the journal of a node's next process."""
    return folder / f"{len(list(folder.glob('*.log'))):04d}.log"


def note_damage(folder: Path, begin: int, end: int) -> None:
    """Record that the harness is about to damage a durable entry, with its start and end in the log. Does
    nothing if there is no recorder."""
    if folder.is_dir():
        with (folder / DAMAGE).open("a") as file:
            file.write(f"{begin} {end}\n")


def read_damage(folder: Path) -> list[tuple[int, int]]:
    """Return the ranges that `note_damage` recorded. Raises JournalDamaged."""
    path = folder / DAMAGE
    try:
        pairs = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        return [(begin, end) for begin, end in pairs]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise JournalDamaged(f"{path}: {error}") from None


def note_undone(folder: Path, ranges: Iterable[tuple[int, int, int]]) -> None:
    """Record the ranges that a loss of power undid, as inode, start and length. Does nothing if there is no
    recorder."""
    if folder.is_dir():
        mono = time.monotonic_ns()
        lines = [f"undone {mono} {inode} {begin} {length}\n" for inode, begin, length in ranges]
        next_journal(folder).write_text("".join(lines))

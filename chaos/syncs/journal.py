"""The journal that `chaos.syncs.recorder` writes: one file for each life of a node, a line for each call.

    life <mono> <pid> <boot_id>               the process began to watch
    has <inode> <size> <name>                 a file that was there; then `listed <mono>`
    made <mono> <inode> <name>                a new file
    write <mono> <inode> <offset> <length> <what>
                                              before the call. what: `-`, or the entries that begin there
                                              (`index:term:offset:size,size...;...`), or `=` and the bytes
                                              in hex
    wrote <line> <bytes>                      so many bytes only were written by the call of that line
    sync <began> <ended> <inode> <before> <in flight>
                                              a sync has returned. before: the number of lines when it
                                              began; in flight: lines of writes that had not returned then,
                                              or `-`
    unsynced <mono> <inode>                   a sync has failed
    folder <began> <ended> <name> <before>    a sync of a directory has returned; `.` is the node's directory
    cut <mono> <inode> <size>                 before the file is truncated
    name <mono> <inode> <old> <new>           after a rename; `-`: a name that is not watched
    gone <mono> <name>                        before a name is removed
    odd <mono> <inode>                        from now on the file may be written to unseen

The harness itself writes one more after a node has lost power, with what is no longer as it was written:

    undone <mono> <inode> <begin> <length>

and, in a file of its own, of which entries it has damaged bytes that were durable: `<begin> <end>`, positions
in the log.

Lines are numbered from 1. Names are relative to the node's directory, quoted as in URLs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

#: Beside the journals of a node.
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
    """A line that no recorder writes."""


class Line(NamedTuple):
    """`number`: of the line, from 1."""

    number: int
    what: str
    fields: list[str]

    def number_at(self, at: int) -> int:
        return int(self.fields[at])

    def name_at(self, at: int) -> str:
        return unquote(self.fields[at])


class Span(NamedTuple):
    """The bytes of one entry in its file."""

    begin: int
    end: int
    entry: int
    term: int


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of one life. The last one may be torn by SIGKILL: its call had not begun. JournalDamaged."""
    content = path.read_bytes().rstrip(b"\0")
    whole, _, _ = content.rpartition(b"\n")
    try:
        texts = whole.decode().split("\n") if whole else []
    except UnicodeDecodeError as error:
        raise JournalDamaged(f"{path}, byte {error.start}: not UTF-8") from None
    for number, text in enumerate(texts, 1):
        what, *fields = text.split(" ")
        if len(fields) != _FIELDS.get(what, -1):
            raise JournalDamaged(f"{path}, line {number}: {text!r}")
        yield Line(number, what, fields)


def spans_of(what: str) -> list[Span]:
    """The entries that a `write` names."""
    found: list[Span] = []
    if what in ("", "-") or what.startswith("="):
        return found
    for run in what.split(";"):
        index, term, at, sizes = run.split(":")
        begin = int(at)
        for number, size in enumerate(map(int, sizes.split(","))):
            found.append(Span(begin, begin + size, int(index) + number, int(term)))
            begin += size
    return found


def next_journal(folder: Path) -> Path:
    """The journal of the next life in the folder of a node."""
    return folder / f"{len(list(folder.glob('*.log'))):04d}.log"


def note_damage(folder: Path, begin: int, end: int) -> None:
    """Write down that the harness is about to damage an entry that is durable: where it begins and ends in
    the log. Nothing if nobody watches."""
    if folder.is_dir():
        with (folder / DAMAGE).open("a") as file:
            file.write(f"{begin} {end}\n")


def read_damage(folder: Path) -> list[tuple[int, int]]:
    """What `note_damage` wrote. JournalDamaged."""
    path = folder / DAMAGE
    try:
        pairs = [tuple(map(int, line.split())) for line in path.read_text().splitlines()]
        return [(begin, end) for begin, end in pairs]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise JournalDamaged(f"{path}: {error}") from None


def note_undone(folder: Path, ranges: Iterable[tuple[int, int, int]]) -> None:
    """Write down what a loss of power took: inode, begin and length. Nothing if nobody watches."""
    if folder.is_dir():
        mono = time.monotonic_ns()
        lines = [f"undone {mono} {inode} {begin} {length}\n" for inode, begin, length in ranges]
        next_journal(folder).write_text("".join(lines))

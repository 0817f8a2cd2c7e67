"""Replays a node's journals in a model of files and directories, which shows which data is durable at each
time.

A byte is durable once a sync of its file returned that started after the last write of the byte returned. A
name is durable once a sync of its directory returned that started after the name was given. Processes may die
in between: their writes are in the page cache, and a later sync of the file covers them, except for those
that a loss of power undoes (`undone`). An entry is durable if all its bytes and the name of its file are
durable; during a rename, this must hold for the old and the new file. Uncertain entries are not durable.

Bit flips do not affect the result: an entry that the harness has damaged remains durable, and so does its
copy in another file.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.syncs.journal import JournalDamaged, Line, Span, spans_of
from chaos.syncs.recorder import DATA, TERM_FILE


class Intervals:
    """A set of disjoint, ascending intervals that do not touch each other."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self._begins, self._ends, strict=True))

    def add(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]

    def remove(self, begin: int, end: int) -> None:
        if begin >= end:
            return
        first = bisect_right(self._ends, begin)
        last = bisect_left(self._begins, end)
        if first >= last:
            return
        rest = [(self._begins[first], begin), (end, self._ends[last - 1])]
        kept = [(a, b) for a, b in rest if a < b]
        self._begins[first:last] = [a for a, _ in kept]
        self._ends[first:last] = [b for _, b in kept]

    def cover(self, begin: int, end: int) -> bool:
        """Return True if the set contains the complete range."""
        at = bisect_right(self._begins, begin) - 1
        return at >= 0 and end <= self._ends[at]


_EVERYTHING = 1 << 62


class RecordingStarted(NamedTuple):
    """Recording started in a process of the node."""

    mono: int
    life: int


class LogSynced(NamedTuple):
    """From `mono` on, all entries of the node's log up to `entry` are durable; -1: none."""

    mono: int
    entry: int


class VoteSynced(NamedTuple):
    """From `mono` on, this term and vote ("": none) are durable."""

    mono: int
    term: int
    vote: str


class FilesRemoved(NamedTuple):
    """At `mono`, files at the start of the log had been removed, so the log starts after `entry`. `kept`:
    number of bytes of the log from that point to the last written byte."""

    mono: int
    entry: int
    kept: int


Fact = RecordingStarted | LogSynced | VoteSynced | FilesRemoved


@dataclass(slots=True)
class _UnsyncedWrite:
    begin: int
    end: int
    line: int  # of the write; 0 in an earlier life


@dataclass(slots=True)
class _FileState:
    clean: Intervals = field(default_factory=Intervals)
    dirty: list[_UnsyncedWrite] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  # by position
    content: bytearray = field(default_factory=bytearray)  # only of files outside the log
    is_odd: bool = False

    def write(self, line: int, begin: int, end: int, spans: list[Span]) -> None:
        self.clean.remove(begin, end)
        self.dirty.append(_UnsyncedWrite(begin, end, line))
        low, high = (min(begin, spans[0].begin), max(end, spans[-1].end)) if spans else (begin, end)
        first = self.first_span_after(low)
        last = bisect_left(self.spans, high, first, key=lambda span: span.begin)
        # Overwritten entries are gone, except one that an earlier write started and this write continues.
        goes_on_until = spans[0].begin if spans else _EVERYTHING
        kept = [span for span in self.spans[first:last] if span.begin < begin and span.end <= goes_on_until]
        self.spans[first:last] = [*kept, *spans]

    def wrote(self, line: int, count: int) -> None:
        """Shorten the write of that line, which wrote only `count` bytes."""
        for write in self.dirty:
            if write.line == line:
                write.end = write.begin + count

    def cut(self, size: int) -> None:
        self.clean.remove(size, _EVERYTHING)
        for write in self.dirty:
            write.end = min(write.end, size)
        self.dirty = [write for write in self.dirty if write.begin < write.end]
        del self.spans[self.first_span_after(size) :]
        del self.content[size:]

    def undo(self, begin: int, end: int) -> None:
        """Forget a range whose content a loss of power made unknown."""
        self.clean.remove(begin, end)
        rest = [(part.begin, min(part.end, begin), part.line) for part in self.dirty]
        rest += [(max(part.begin, end), part.end, part.line) for part in self.dirty]
        self.dirty = [_UnsyncedWrite(*part) for part in rest if part[0] < part[1]]
        self.spans = [part for part in self.spans if part.end <= begin or part.begin >= end]

    def sync(self, before: int, in_flight: frozenset[int]) -> None:
        in_progress = [write for write in self.dirty if write.line > before or write.line in in_flight]
        for write in self.dirty:
            self.clean.add(write.begin, write.end)
        # The sync may have missed writes that were in progress.
        for write in in_progress:
            self.clean.remove(write.begin, write.end)
        self.dirty = in_progress

    def first_span_after(self, offset: int) -> int:
        """Return the index of the first span that ends after the offset."""
        return bisect_left(self.spans, offset + 1, key=lambda span: span.end)

    def has(self, begin: int, end: int) -> bool:
        return not self.is_odd and self.clean.cover(begin, end)


@dataclass(frozen=True, slots=True)
class _NameChange:
    """A file got a name or lost it (None), and no sync of the directory covers the change yet."""

    line: int
    name: str
    inode: int | None


class JournalReplay:
    """State of one node across all its processes."""

    def __init__(self, damaged: Sequence[tuple[int, int]] = ()) -> None:
        """Create an empty model. `damaged`: entries whose bytes the harness has damaged, as (start, end) in
        the log."""
        self._damaged = damaged
        self._files: dict[int, _FileState] = {}
        self._names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self._pending: list[_NameChange] = []
        self._listing: dict[str, tuple[int, int]] | None = None
        self._life = -1
        self._is_first_list = True
        #: End of the durable prefix of the log: file name, offset in the file, index.
        self._end: tuple[str, int, int] | None = None
        self._reported_index = -1
        self._reported_vote: tuple[int, str] | None = None
        self._begins_at = 0  # position of the first file that has had entries

    def life(self, lines: Iterable[Line]) -> Iterator[Fact]:
        """Yield the facts that follow from the journal of the next process, unsorted. Raises
        JournalDamaged."""
        self._life += 1
        self._begin_life()
        for line in lines:
            try:
                mono = self._apply_line(line)
            except (ValueError, KeyError, IndexError) as error:
                raise JournalDamaged(
                    f"line {line.number}: cannot apply {line.what} {line.fields}: {error!r}"
                ) from error
            if line.what == "life":
                yield RecordingStarted(mono, self._life)
            yield from self._new_facts(mono)

    def _begin_life(self) -> None:
        for file in self._files.values():
            for item in file.dirty:
                item.line = 0
        self._pending = [_NameChange(0, item.name, item.inode) for item in self._pending]

    def _new_facts(self, mono: int) -> Iterator[Fact]:
        self._advance()
        index = self._end[2] if self._end is not None else -1
        if index != self._reported_index:
            self._reported_index = index
            yield LogSynced(mono, index)
        vote = self._vote()
        if vote is not None and vote != self._reported_vote:
            self._reported_vote = vote
            yield VoteSynced(mono, *vote)
        removed = self._removed()
        if removed is not None:
            yield FilesRemoved(mono, *removed)

    def _removed(self) -> tuple[int, int] | None:
        """If the log starts later than before, return the last removed entry and the remaining bytes.
        Otherwise, or while the first file has no entry, return None: a log that is being rewritten may
        continue at its old start."""
        log = self._log()
        if not log or _position(log[0]) <= self._begins_at:
            return None
        first = self._file(self._names[log[0]]).spans
        if not first:
            return None
        self._begins_at = _position(log[0])
        ends = [
            _position(name) + spans[-1].end for name in log if (spans := self._file(self._names[name]).spans)
        ]
        return first[0].entry - 1, ends[-1] - self._begins_at

    # -- lines

    def _apply_line(self, line: Line) -> int:
        """Process a line and return the time at which it took effect."""
        match line.what:
            case "life":
                self._listing = {}
                return line.number_at(0)
            case "has":
                assert self._listing is not None
                self._listing[line.name_at(2)] = (line.number_at(0), line.number_at(1))
                return 0
            case "listed":
                self._listed()
            case "made":
                self._files[line.number_at(1)] = _FileState()
                self._name(line.number, line.name_at(2), line.number_at(1))
            case "write":
                self._write(line)
            case "wrote":
                for file in self._files.values():
                    file.wrote(line.number_at(0), line.number_at(1))
                return 0
            case "sync":
                flying = line.fields[4]
                in_flight = frozenset(map(int, flying.split(","))) if flying != "-" else frozenset[int]()
                self._file(line.number_at(2)).sync(line.number_at(3), in_flight)
                return line.number_at(1)
            case "unsynced":
                # After a failed sync, the page cache may consider pages clean that never reached the disk.
                self._file(line.number_at(1)).dirty.clear()
            case "folder":
                self._sync_folder(line.name_at(2), line.number_at(3))
                return line.number_at(1)
            case "cut":
                self._rewind(line.number_at(1), line.number_at(2))
                self._file(line.number_at(1)).cut(line.number_at(2))
            case "name":
                self._rename(line)
            case "gone":
                self._unlink(line.number, line.name_at(1))
            case "undone":
                inode, begin, length = (line.number_at(at) for at in (1, 2, 3))
                self._rewind(inode, begin)
                self._file(inode).undo(begin, begin + length)
            case "odd":
                self._rewind(line.number_at(1), 0)
                self._file(line.number_at(1)).is_odd = True
        return line.number_at(0)

    def _file(self, inode: int) -> _FileState:
        return self._files.setdefault(inode, _FileState())

    def _write(self, line: Line) -> None:
        inode, offset, length, what = line.number_at(1), line.number_at(2), line.number_at(3), line.fields[4]
        self._rewind(inode, offset)
        file = self._file(inode)
        spans = self._with_damaged(inode, offset, offset + length, spans_of(what))
        file.write(line.number, offset, offset + length, spans)
        if what.startswith("="):
            file.content[offset : offset + length] = bytes.fromhex(what[1:])

    def _with_damaged(self, inode: int, begin: int, end: int, spans: list[Span]) -> list[Span]:
        """Return the entries that a write names, and the damaged entries that it copies."""
        if not self._damaged:
            return spans
        name = next((name for name, its in self._names.items() if its == inode), "")
        original = name.partition(".")[0]
        start = _position(original)
        old = self._names.get(original, inode)
        if start < 0 or old == inode:
            return spans
        for low, high in ((low - start, high - start) for low, high in self._damaged):
            if not begin <= low < end:
                continue
            file = self._file(old)
            at = file.first_span_after(low)
            if at < len(file.spans) and (file.spans[at].begin, file.spans[at].end) == (low, high):
                undamaged = [span for span in spans if span.end <= low or span.begin >= high]
                spans = sorted([*undamaged, file.spans[at]])
        return spans

    def _listed(self) -> None:
        """Compare the files at the start of a process with the model, because the harness may have moved
        some."""
        listing, self._listing = self._listing or {}, None
        for name in [name for name in self._names if name not in listing]:
            self._unlink(0, name)
            self._durable_names.pop(name, None)
            self._pending = [change for change in self._pending if change.name != name]
        for name, (inode, size) in listing.items():
            file = self._file(inode)
            if self._names.get(name) != inode:
                self._name(0, name, inode)
            if self._is_first_list or self._durable_names.get(name) == inode:
                self._durable_names[name] = inode
                self._pending = [change for change in self._pending if change.name != name]
            self._rewind(inode, size)
            file.cut(size)
        self._is_first_list = False

    def _name(self, line: int, name: str, inode: int) -> None:
        if name in self._names:
            self._rewind(self._names[name], 0)
        self._names[name] = inode
        self._pending.append(_NameChange(line, name, inode))

    def _rename(self, line: Line) -> None:
        inode, old, new = line.number_at(1), line.name_at(2), line.name_at(3)
        self._files.setdefault(inode, _FileState())
        if new != "-":
            self._name(line.number, new, inode)
        if old != "-" and old in self._names:
            self._unlink(line.number, old)

    def _unlink(self, line: int, name: str) -> None:
        if name not in self._names:
            return
        if self._end is not None and _position(name) <= _position(self._end[0]):
            below = [other for other in self._log() if _position(other) < _position(name)]
            above = [other for other in self._log() if _position(other) > _position(name)]
            if below:
                self._rewind(self._names[name], 0)
            elif not above or name == self._end[0]:
                self._end = None
        del self._names[name]
        self._pending.append(_NameChange(line, name, None))

    def _sync_folder(self, folder: str, before: int) -> None:
        kept = []
        for change in self._pending:
            if change.line > before or (change.name.rpartition("/")[0] or ".") != folder:
                kept.append(change)
            elif change.inode is None:
                self._durable_names.pop(change.name, None)
            else:
                self._durable_names[change.name] = change.inode
        self._pending = kept

    # -- the log

    def _log(self) -> list[str]:
        return sorted((name for name in self._names if _position(name) >= 0), key=_position)

    def _rewind(self, inode: int, offset: int) -> None:
        """Move the durable end back, because the content of the file has changed at and after this offset."""
        if self._end is None:
            return
        name = next(
            (other for other, its in self._names.items() if its == inode and _position(other) >= 0), None
        )
        if name is None or (_position(name), offset) >= (_position(self._end[0]), self._end[1]):
            return
        for other in reversed([other for other in self._log() if _position(other) <= _position(name)]):
            spans = self._file(self._names[other]).spans
            at = self._file(self._names[other]).first_span_after(offset) if other == name else len(spans)
            if at:
                self._end = (other, spans[at - 1].end, spans[at - 1].entry)
                return
        self._end = None

    def _advance(self) -> None:
        while (following := self._following()) is not None:
            name, span = following
            if not self._is_durable(name, span):
                return
            self._end = (name, span.end, span.entry)

    def _following(self) -> tuple[str, Span] | None:
        """Return the entry after `_end`, and its file."""
        if self._end is not None:
            name, offset, index = self._end
            file = self._file(self._names[name])
            at = file.first_span_after(offset)
            if at < len(file.spans):
                return (name, file.spans[at]) if file.spans[at].entry == index + 1 else None
        for other in self._log():
            if self._end is not None and _position(other) <= _position(self._end[0]):
                continue
            spans = self._file(self._names[other]).spans
            if spans:
                fits = self._end is None or spans[0].entry == self._end[2] + 1
                return (other, spans[0]) if fits else None
        return None

    def _is_durable(self, name: str, span: Span) -> bool:
        inode = self._names[name]
        if not self._file(inode).has(span.begin, span.end):
            return False
        durable = self._durable_names.get(name)
        if durable == inode:
            return True
        if durable is None or any(change.name == name and change.inode is None for change in self._pending):
            return False
        old = self._file(durable)
        at = old.first_span_after(span.begin)
        return at < len(old.spans) and old.spans[at] == span and old.has(span.begin, span.end)

    # -- term and vote

    def _vote(self) -> tuple[int, str] | None:
        """Return the durable term and vote, or None while they are uncertain."""
        inode = self._names.get(TERM_FILE)
        if inode is None or self._durable_names.get(TERM_FILE) != inode:
            return None
        file = self._file(inode)
        if not file.content or not file.has(0, len(file.content)):
            return None
        pairs = (line.partition("=")[::2] for line in file.content.decode(errors="replace").splitlines())
        values = dict(pairs)
        term = values.get("currTerm", "")
        return (int(term), values.get("voteLeader", "")) if term.isdecimal() else None


def _position(name: str) -> int:
    """Return the position of a data file in the log; -1 for other files, such as a temporary replacement."""
    folder, _, last = name.rpartition("/")
    return int(last) if folder == DATA and len(last) == 20 and last.isdecimal() else -1

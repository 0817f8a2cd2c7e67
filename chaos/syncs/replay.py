"""What of a node's files was durable, and when: a model of files and directories that follows its journals.

A byte is durable once a sync of its file has returned that began after the last write of it had returned; a
name, once a sync of its directory has returned that began after the name was given. Processes may die in
between: what they wrote is in the page cache, and a later sync of the file covers it, but for what a loss of
power takes (`undone`). An entry is durable if all its bytes are and its file's name is; while a name changes,
in the old file as well as in the new one. Whatever is in doubt is not durable.

Rot is no matter of syncs: an entry that the harness has damaged is as durable as it was before, and so is a
copy of its file that takes the damaged bytes along, whatever they say.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.syncs.intervals import Intervals
from chaos.syncs.journal import JournalDamaged, Line, Span, spans_of
from chaos.syncs.recorder import DATA, TERM_FILE

_EVERYTHING = 1 << 62


class Watched(NamedTuple):
    """A life of the node began, and what it does to its files is seen from then on."""

    mono: int
    life: int


class Synced(NamedTuple):
    """From `mono` on all entries of the node's log up to `entry` are durable; -1: none is."""

    mono: int
    entry: int


class VoteSynced(NamedTuple):
    """From `mono` on this term and vote ("": none) are durable."""

    mono: int
    term: int
    vote: str


class Removed(NamedTuple):
    """At `mono` the files of the log below some place were gone: the log begins behind `entry` now. `kept`:
    bytes of the log from there up to the end of what the node had written by then."""

    mono: int
    entry: int
    kept: int


Fact = Watched | Synced | VoteSynced | Removed


@dataclass(slots=True)
class _Dirty:
    begin: int
    end: int
    line: int  # of the write; 0: of an earlier life


@dataclass(slots=True)
class _File:
    clean: Intervals = field(default_factory=Intervals)
    dirty: list[_Dirty] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)  # by position
    content: bytearray = field(default_factory=bytearray)  # of a file that is none of the log's
    is_odd: bool = False

    def write(self, line: int, begin: int, end: int, spans: list[Span]) -> None:
        self.clean.remove(begin, end)
        self.dirty.append(_Dirty(begin, end, line))
        low, high = (min(begin, spans[0].begin), max(end, spans[-1].end)) if spans else (begin, end)
        first = self.first_span_after(low)
        last = bisect_left(self.spans, high, first, key=lambda span: span.begin)
        # What stood there is gone, but an entry that an earlier write began and this one goes on with.
        goes_on_until = spans[0].begin if spans else _EVERYTHING
        kept = [one for one in self.spans[first:last] if one.begin < begin and one.end <= goes_on_until]
        self.spans[first:last] = [*kept, *spans]

    def wrote(self, line: int, count: int) -> None:
        """The write of that line was cut short."""
        for one in self.dirty:
            if one.line == line:
                one.end = one.begin + count

    def cut(self, size: int) -> None:
        self.clean.remove(size, _EVERYTHING)
        for one in self.dirty:
            one.end = min(one.end, size)
        self.dirty = [one for one in self.dirty if one.begin < one.end]
        del self.spans[self.first_span_after(size) :]
        del self.content[size:]

    def undo(self, begin: int, end: int) -> None:
        """A loss of power has put there what nobody knows."""
        self.clean.remove(begin, end)
        rest = [(one.begin, min(one.end, begin), one.line) for one in self.dirty]
        rest += [(max(one.begin, end), one.end, one.line) for one in self.dirty]
        self.dirty = [_Dirty(*one) for one in rest if one[0] < one[1]]
        self.spans = [one for one in self.spans if one.end <= begin or one.begin >= end]

    def sync(self, before: int, in_flight: frozenset[int]) -> None:
        open_ = [one for one in self.dirty if one.line > before or one.line in in_flight]
        for one in self.dirty:
            self.clean.add(one.begin, one.end)
        # What is written while a sync goes on may have been missed by it.
        for one in open_:
            self.clean.remove(one.begin, one.end)
        self.dirty = open_

    def first_span_after(self, offset: int) -> int:
        """The place of the first span that ends behind it."""
        return bisect_left(self.spans, offset + 1, key=lambda span: span.end)

    def has(self, begin: int, end: int) -> bool:
        return not self.is_odd and self.clean.cover(begin, end)


@dataclass(frozen=True, slots=True)
class _Naming:
    """A name was given to a file, or taken away (None), and no sync of the directory covers it yet."""

    line: int
    name: str
    inode: int | None


class Replay:
    """One node, life after life."""

    def __init__(self, damaged: Sequence[tuple[int, int]] = ()) -> None:
        """`damaged`: entries of which the harness has damaged bytes, begin and end in the log."""
        self._damaged = damaged
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._durable_names: dict[str, int] = {}
        self._pending: list[_Naming] = []
        self._listing: dict[str, tuple[int, int]] | None = None
        self._life = -1
        self._is_first_list = True
        #: All entries up to here are durable: name of the file, end in it, index.
        self._end: tuple[str, int, int] | None = None
        self._told = -1
        self._told_vote: tuple[int, str] | None = None
        self._begins_at = 0  # the position of the lowest file that has had entries

    def life(self, lines: Iterable[Line]) -> Iterator[Fact]:
        """What follows from the journal of the next life, not in the order of its times. JournalDamaged."""
        self._life += 1
        self._begin_life()
        for line in lines:
            try:
                mono = self._take(line)
            except (ValueError, KeyError, IndexError) as error:
                raise JournalDamaged(f"line {line.number}, {line.what} {line.fields}: {error!r}") from error
            if line.what == "life":
                yield Watched(mono, self._life)
            yield from self._news(mono)

    def _begin_life(self) -> None:
        for file in self._files.values():
            for one in file.dirty:
                one.line = 0
        self._pending = [_Naming(0, one.name, one.inode) for one in self._pending]

    def _news(self, mono: int) -> Iterator[Fact]:
        self._advance()
        index = self._end[2] if self._end is not None else -1
        if index != self._told:
            self._told = index
            yield Synced(mono, index)
        vote = self._vote()
        if vote is not None and vote != self._told_vote:
            self._told_vote = vote
            yield VoteSynced(mono, *vote)
        removed = self._removed()
        if removed is not None:
            yield Removed(mono, *removed)

    def _removed(self) -> tuple[int, int] | None:
        """If the log begins later than before: the last entry that is gone, and the bytes that stay. Not
        while the first file has no entry: what is being begun anew may go on where it was."""
        log = self._log()
        if not log or _position(log[0]) <= self._begins_at:
            return None
        first = self._file(self._names[log[0]]).spans
        if not first:
            return None
        self._begins_at = _position(log[0])
        ends = [
            _position(one) + spans[-1].end for one in log if (spans := self._file(self._names[one]).spans)
        ]
        return first[0].entry - 1, ends[-1] - self._begins_at

    # -- lines

    def _take(self, line: Line) -> int:
        """When it took effect."""
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
                self._files[line.number_at(1)] = _File()
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
                # The page cache may call clean what never reached the disk.
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

    def _file(self, inode: int) -> _File:
        return self._files.setdefault(inode, _File())

    def _write(self, line: Line) -> None:
        inode, offset, length, what = line.number_at(1), line.number_at(2), line.number_at(3), line.fields[4]
        self._rewind(inode, offset)
        file = self._file(inode)
        spans = self._with_damaged(inode, offset, offset + length, spans_of(what))
        file.write(line.number, offset, offset + length, spans)
        if what.startswith("="):
            file.content[offset : offset + length] = bytes.fromhex(what[1:])

    def _with_damaged(self, inode: int, begin: int, end: int, spans: list[Span]) -> list[Span]:
        """The entries that a write names, and those which it copies with the damage done to them."""
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
                apart = [one for one in spans if one.end <= low or one.begin >= high]
                spans = sorted([*apart, file.spans[at]])
        return spans

    def _listed(self) -> None:
        """What the files are at the begin of a life: somebody may have moved them away."""
        found, self._listing = self._listing or {}, None
        for name in [name for name in self._names if name not in found]:
            self._unlink(0, name)
            self._durable_names.pop(name, None)
            self._pending = [one for one in self._pending if one.name != name]
        for name, (inode, size) in found.items():
            file = self._file(inode)
            if self._names.get(name) != inode:
                self._name(0, name, inode)
            if self._is_first_list or self._durable_names.get(name) == inode:
                self._durable_names[name] = inode
                self._pending = [one for one in self._pending if one.name != name]
            self._rewind(inode, size)
            file.cut(size)
        self._is_first_list = False

    def _name(self, line: int, name: str, inode: int) -> None:
        if name in self._names:
            self._rewind(self._names[name], 0)
        self._names[name] = inode
        self._pending.append(_Naming(line, name, inode))

    def _rename(self, line: Line) -> None:
        inode, old, new = line.number_at(1), line.name_at(2), line.name_at(3)
        self._files.setdefault(inode, _File())
        if new != "-":
            self._name(line.number, new, inode)
        if old != "-" and old in self._names:
            self._unlink(line.number, old)

    def _unlink(self, line: int, name: str) -> None:
        if name not in self._names:
            return
        if self._end is not None and _position(name) <= _position(self._end[0]):
            below = [one for one in self._log() if _position(one) < _position(name)]
            above = [one for one in self._log() if _position(one) > _position(name)]
            if below:
                self._rewind(self._names[name], 0)
            elif not above or name == self._end[0]:
                self._end = None
        del self._names[name]
        self._pending.append(_Naming(line, name, None))

    def _sync_folder(self, folder: str, before: int) -> None:
        kept = []
        for one in self._pending:
            if one.line > before or (one.name.rpartition("/")[0] or ".") != folder:
                kept.append(one)
            elif one.inode is None:
                self._durable_names.pop(one.name, None)
            else:
                self._durable_names[one.name] = one.inode
        self._pending = kept

    # -- the log

    def _log(self) -> list[str]:
        return sorted((name for name in self._names if _position(name) >= 0), key=_position)

    def _rewind(self, inode: int, offset: int) -> None:
        """From here on in the file nothing is as it was."""
        if self._end is None:
            return
        name = next((one for one, its in self._names.items() if its == inode and _position(one) >= 0), None)
        if name is None or (_position(name), offset) >= (_position(self._end[0]), self._end[1]):
            return
        for one in reversed([one for one in self._log() if _position(one) <= _position(name)]):
            spans = self._file(self._names[one]).spans
            at = self._file(self._names[one]).first_span_after(offset) if one == name else len(spans)
            if at:
                self._end = (one, spans[at - 1].end, spans[at - 1].entry)
                return
        self._end = None

    def _advance(self) -> None:
        while (following := self._following()) is not None:
            name, span = following
            if not self._is_durable(name, span):
                return
            self._end = (name, span.end, span.entry)

    def _following(self) -> tuple[str, Span] | None:
        """The entry after `_end`, and the file that has it."""
        if self._end is not None:
            name, offset, index = self._end
            file = self._file(self._names[name])
            at = file.first_span_after(offset)
            if at < len(file.spans):
                return (name, file.spans[at]) if file.spans[at].entry == index + 1 else None
        for one in self._log():
            if self._end is not None and _position(one) <= _position(self._end[0]):
                continue
            spans = self._file(self._names[one]).spans
            if spans:
                fits = self._end is None or spans[0].entry == self._end[2] + 1
                return (one, spans[0]) if fits else None
        return None

    def _is_durable(self, name: str, span: Span) -> bool:
        inode = self._names[name]
        if not self._file(inode).has(span.begin, span.end):
            return False
        durable = self._durable_names.get(name)
        if durable == inode:
            return True
        if durable is None or any(one.name == name and one.inode is None for one in self._pending):
            return False
        old = self._file(durable)
        at = old.first_span_after(span.begin)
        return at < len(old.spans) and old.spans[at] == span and old.has(span.begin, span.end)

    # -- term and vote

    def _vote(self) -> tuple[int, str] | None:
        """The durable term and vote; None while it is in doubt which these are."""
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
    """Of a data file in the log; -1: it is none (`.tmp` is what is to replace one)."""
    folder, _, last = name.rpartition("/")
    return int(last) if folder == DATA and len(last) == 20 and last.isdecimal() else -1

"""The lines of a run that the specification explains, one stream for each node and each other writer.

The lives of a node are one stream: one ends before the next begins. Within a stream the order is certain, and
between streams it is not.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orjson import JSONDecodeError, loads

from chaos.spec.facts import Event
from chaos.spec.steps import ACTIONS
from chaos.trace.schema import FIELDS, RAW_DIR, SUFFIX, VERSION, Ev, Kind

#: Operations that put entries into the log.
_APPENDS = ("append", "send", "send_batch")
_PYTHON = {Kind.INT: int, Kind.STR: str, Kind.BOOL: bool}


class Line(NamedTuple):
    """Where it stands (from 1), and what it says."""

    file: str
    number: int
    event: Event

    @property
    def mono(self) -> int:
        return int(self.event["mono"])

    def __str__(self) -> str:
        about = {k: v for k, v in self.event.items() if k not in _ENVELOPE}
        return f"{self.file}:{self.number}: {about}"


_ENVELOPE = frozenset({"v", "run", "src", "inc", "seq", "host", "mono", "wall", "digest", "ledger"})


@dataclass(slots=True)
class TraceOfLog:
    """`holes`: why nothing can be said of this trace, in words; empty if it is whole."""

    streams: list[list[Line]] = field(default_factory=list)
    nodes: tuple[str, ...] = ()
    members: int = 0
    syncs: bool = True
    holes: list[str] = field(default_factory=list)


def read_trace(run_dir: Path) -> TraceOfLog:
    """OSError if there is no `raw` directory, or a file cannot be read."""
    trace = TraceOfLog()
    files: dict[tuple[str, int], list[Line]] = {}
    for path in sorted((run_dir / RAW_DIR).iterdir()):
        if path.suffix != SUFFIX:
            continue
        lines = _lines(path, trace.holes)
        if lines:
            key = (str(lines[0].event["src"]), int(lines[0].event["inc"]))
            if key in files:
                trace.holes.append(f"{path.name} is another file of {key[0]}, incarnation {key[1]}")
            files[key] = lines
    _read_meta(trace, files)
    _make_streams(trace, files)
    return trace


def _lines(path: Path, holes: list[str]) -> list[Line]:
    found: list[Line] = []
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith(b"\n"):
                break  # torn by the death of its writer
            try:
                event = loads(text)
            except JSONDecodeError:
                event = None
            why = _unreadable(event, number - 1)
            if why:
                holes.append(f"{path.name}:{number}: {why}")
                break
            found.append(Line(path.name, number, event))
    return found


def _unreadable(event: Any, seq: int) -> str:
    """Why a line is none of a whole trace; "" if it is one, with fields of the types of the schema."""
    if not isinstance(event, dict):
        return "no JSON object"
    for name in ("src", "inc", "seq", "mono", "ev", "v"):
        if name not in event:
            return f"no {name}"
    for name, value in event.items():
        if name in FIELDS and type(value) is not _PYTHON[FIELDS[name]]:
            return f"{name} is no {FIELDS[name]}"
    if event["v"] != VERSION:
        return f"schema version {event['v']}, not {VERSION}"
    if event["seq"] != seq:
        return f"line {seq} is missing: here is {event['seq']}"
    return ""


def _read_meta(trace: TraceOfLog, files: dict[tuple[str, int], list[Line]]) -> None:
    pids = {
        lines[0].event["pid"]: len(lines)
        for (src, _), lines in files.items()
        if src.startswith("node:") and "pid" in lines[0].event
    }
    for lines in files.values():
        for line in lines:
            event = line.event
            if event["ev"] != Ev.META:
                continue
            match event.get("e"):
                case "run_begin":
                    trace.members = int(event["nodes"])
                    trace.syncs = event.get("flush_mode", "SYNC_FLUSH") == "SYNC_FLUSH"
                case "written" if pids.get(event["pid"], 0) < event["count"]:
                    have = pids.get(event["pid"], 0)
                    trace.holes.append(
                        f"a life of {event['node']} (process {event['pid']}) wrote {event['count']} lines, "
                        f"and there are {have}"
                    )


def _make_streams(trace: TraceOfLog, files: dict[tuple[str, int], list[Line]]) -> None:
    nodes: dict[str, list[list[Line]]] = defaultdict(list)
    for (src, _), lines in sorted(files.items()):
        kept = [line for line in lines if _concerns(line, trace.holes)]
        if src.startswith("node:"):
            nodes[src.removeprefix("node:")].append(kept)
        elif kept:
            trace.streams.append(kept)
    for name, lives in nodes.items():
        lives = sorted((life for life in lives if life), key=lambda life: life[0].mono)
        if not lives:
            continue
        first = lives[0][0].event
        if first.get("e") != "recover" or first.get("ended") != -1 or first.get("term") != 0:
            trace.holes.append(f"the trace of {name} does not begin with an empty log")
        for life in lives:
            if any(line.event["node"] != name for line in life):
                trace.holes.append(f"{life[0].file} tells of another node than {name}")
            if life[0].event["e"] != "recover":
                trace.holes.append(f"{life[0].file} does not begin with the start of {name}")
        trace.streams.append([line for life in lives for line in life])
    trace.nodes = tuple(sorted(nodes))
    trace.members = trace.members or len(nodes)
    if not nodes:
        trace.holes.append("no node has told anything")
    elif len(nodes) < trace.members:
        trace.holes.append(f"{len(nodes)} of {trace.members} nodes have told something")


def _concerns(line: Line, holes: list[str]) -> bool:
    """Is it about the log? What is about queues is not: a message may have several entries there."""
    event = line.event
    match event["ev"]:
        case Ev.RAFT | Ev.STORE:
            if (event["ev"], event.get("e")) not in ACTIONS:
                return False
        case Ev.OP:
            if event.get("f") not in _APPENDS or "topic" in event:
                return False
        case Ev.DLV | Ev.DUMP:
            if "topic" in event or "lidx" not in event:
                return False
        case Ev.ITEM:
            if "topic" in event:
                return False
        case _:
            return False
    missing = [name for name in _needed(event) if name not in event]
    if missing:
        holes.append(f"{line.file}:{line.number}: no {missing[0]}")
    return not missing


def _needed(event: Event) -> tuple[str, ...]:
    match event["ev"], event.get("e"):
        case "raft", "term_vote" | "candidate" | "follower" | "accept":
            return ("node", "term")
        case "raft", "leader":
            return ("node", "term", "ended")
        case "raft", "vote":
            return ("node", "term", "candidate")
        case "raft", "commit" | "ack":
            return ("node", "term", "lidx")
        case "raft", "apply":
            return ("node", "lidx", "last")
        case "store", "append":
            return ("node", "lidx", "last", "eterm")
        case "store", "recover":
            return ("node", "term", "ended", "committed")
        case "raft" | "store", _:
            return ("node", "lidx")
        case "op", _:
            return ("op", "type")
        case "item", _:
            return ("op", "mid")
        case "dump", _:
            return ("node", "eterm")
    return ("mid",)

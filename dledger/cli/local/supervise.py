"""The foreground of `dledger cluster up`: say what happens, stop the nodes at the end."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from types import FrameType

import click

from dledger.cli.local.local_cluster import LocalCluster, LocalNode

_LOOK_SECONDS = 0.25


def supervise(cluster: LocalCluster) -> None:
    """Print events until Ctrl-C, SIGTERM, or until no node is left; then stop the nodes."""
    ended = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    previous = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        # First the look, then the word: what happens after the word is told.
        before = [*cluster.status(), *cluster.companions()]
        _say("Ctrl-C stops the cluster")
        while not ended.wait(_LOOK_SECONDS):
            nodes = cluster.status()
            now = [*nodes, *cluster.companions()]
            for event in events_between(before, now):
                _say(event)
            if all(node.state == "down" for node in nodes):
                _say("no node is left")
                return
            before = now
        _say("stopping")
    finally:
        for node_id, by_itself in cluster.stop().items():
            _say(f"{node_id} " + ("stopped" if by_itself else "did not stop in time and was killed"))
        for number, handler in previous.items():
            signal.signal(number, handler)


def events_between(before: Sequence[LocalNode], now: Sequence[LocalNode]) -> list[str]:
    """What changed between two looks at the cluster, in words."""
    events = []
    for old, new in zip(before, now, strict=True):
        if new.state != old.state or new.pid != old.pid:
            events.append(_state_event(old, new))
        if new.role == "LEADER" and (old.role, old.term) != (new.role, new.term):
            events.append(f"{new.node_id} leads in term {new.term}")
        elif old.role == "LEADER" and new.state == "running" and new.role != "LEADER":
            events.append(f"{new.node_id} is {new.role} in term {new.term}, no longer leader")
        if new.health != old.health and new.state == old.state == "running":
            events.append(f"{new.node_id}: {new.health}")
    return events


def _state_event(old: LocalNode, new: LocalNode) -> str:
    if new.state == "down":
        lines = "".join(f"\n    {line}" for line in new.last_log_lines)
        return f"{new.node_id} (pid {new.pid}) is down: {new.why}{lines}"
    if new.state == "paused":
        return f"{new.node_id} (pid {new.pid}) is paused"
    if new.pid != old.pid:
        return f"{new.node_id} was started (pid {new.pid})"
    if new.state == "running":
        return f"{new.node_id} (pid {new.pid}) answers"
    return f"{new.node_id} (pid {new.pid}) does not answer"


def _say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')}  {text}", err=True)

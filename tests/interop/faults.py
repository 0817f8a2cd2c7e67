"""50 sends a second through a fault, consumed in order meanwhile, and what came of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from broker_adapter.client import Admin
from dledger.cli.local.local_cluster import LocalCluster

from . import genuine
from .ours import master

PAUSE_MS = 20
#: Sends before the fault.
_BEFORE = 300
_STOPPED_S = 20


class Result(NamedTuple):
    """`reordered`: messages that came first after a later one of their queue."""

    count: int
    failed: Sequence[str]
    lost: int
    reordered: int
    duplicates: int
    longest_ms: int
    consumed_s: float  # from the fault until all had been consumed

    def row(self, client: str, fault: str) -> str:
        return (
            f"| {client} | {fault} | {self.count} | {len(self.failed)} | {self.lost} | {self.reordered} | "
            f"{self.duplicates} | {self.longest_ms} | {self.consumed_s:.0f} |"
        )


def kill_master(cluster: LocalCluster) -> None:
    """SIGKILL. The node is started again when another one is master."""
    killed = master(cluster).node_id
    cluster.kill(killed)
    master(cluster, other_than=killed)
    cluster.start_node(killed)


def pause_master(cluster: LocalCluster) -> None:
    """SIGSTOP for 20 s: connections stay, and nothing is answered."""
    paused = master(cluster).node_id
    cluster.pause(paused)
    threading.Event().wait(_STOPPED_S)
    cluster.resume(paused)


def restart_all(cluster: LocalCluster) -> None:
    """One node after the other: stopped by SIGTERM, started again, and caught up before the next."""
    for node in cluster.plan.nodes:
        cluster.stop_node(node.node_id)
        cluster.start_node(node.node_id)
        cluster.wait_for_all(60)
        master(cluster)


FAULTS: dict[str, tuple[Callable[[LocalCluster], None], int]] = {
    "SIGKILL of the master": (kill_master, 1000),
    "SIGSTOP of the master for 20 s": (pause_master, 1800),
    "rolling restart": (restart_all, 1800),
}


#: (client, fault) -> sends that may fail: the first try, at a node that is paused, takes all of its 10 s,
#: and nothing that a server does ends it.
CLIENTS_OWN = {
    ("Java 4.9.8", "SIGSTOP of the master for 20 s"): 2,
    ("ali-ons 3.12.0", "SIGSTOP of the master for 20 s"): 2,
    # All of its three tries may be at queues of the dead node's name.
    ("Go 2.1.2", "SIGKILL of the master, default"): 30,
}


def suffered(
    cluster: LocalCluster,
    client: genuine.Client,
    servers: str,
    fault: str,
    topic: str,
    how: str = "patient",
) -> Result:
    """`fault`: one of FAULTS; `how`: as `Client.java` sends. The cluster is whole again afterwards."""
    happen, count = FAULTS[fault]
    asyncio.run(_create(servers, topic))  # ali-ons does not send to a topic that is not there
    with client.begin("orderly", servers, topic, topic, "*", str(count)) as consuming:
        consuming.wait_for("ready")
        with client.begin("send", servers, topic, str(count), str(PAUSE_MS), how) as sending:
            sending.wait_for(f"sent {_BEFORE} ")
            begin = time.monotonic()
            happening = threading.Thread(target=happen, args=(cluster,))
            happening.start()
            lines = sending.finish()
        happening.join()
        consumed = [line.split()[1:] for line in consuming.finish() if line.startswith("got ")]
        took_s = time.monotonic() - begin
    master(cluster)
    return _result(count, lines, consumed, took_s)


async def _create(servers: str, topic: str) -> None:
    async with Admin(servers) as admin:
        await admin.create_topic(topic, queues=4)


def _result(count: int, lines: Sequence[str], consumed: Sequence[Sequence[str]], took_s: float) -> Result:
    sent = {line.split()[1]: int(line.split()[4]) for line in lines if line.startswith("sent")}
    seen = Counter(one[0] for one in consumed)
    reordered, newest, known = 0, dict[str, int](), set[str]()
    for body, queue_id, *_ in consumed:
        # Nobody was told that a failed one is stored, or when.
        if body in sent and body not in known:
            reordered += int(body) < newest.get(queue_id, -1)
            newest[queue_id] = max(newest.get(queue_id, -1), int(body))
        known.add(body)
    return Result(
        count,
        [line for line in lines if line.startswith("failed")],
        len(set(sent) - set(seen)),
        reordered,
        len(consumed) - len(seen),
        max(sent.values(), default=0),
        took_s,
    )

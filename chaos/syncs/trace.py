"""The evidence of syncs as lines of a run's trace, and nodes that leave it behind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from chaos.syncs.journal import read_damage, read_lines
from chaos.syncs.recorder import JOURNALS, ROOT
from chaos.syncs.replay import Fact, Removed, Replay, Synced, VoteSynced
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import Clocks, TraceWriter

#: In the directory of a run: the journals of each node.
SYNCS_FOLDER = "syncs"
_SITE = "site"
_START = """from chaos.syncs.recorder import install_from_environment

install_from_environment()
"""


def journals_folder(run_directory: Path, node_id: str) -> Path:
    """Where the journals of a node are, one for each of its lives."""
    return run_directory / SYNCS_FOLDER / node_id


def syncs_source(node_id: str) -> str:
    """Who writes into the trace what was durable on a node."""
    return f"disk:{node_id}"


def recording_environment(run_directory: Path, node_id: str, store: Path, import_path: str) -> dict[str, str]:
    """What a node's process needs in its environment to be watched from its first moment on: Python runs
    `sitecustomize` before any module of the program. `import_path`: PYTHONPATH without it."""
    journals = journals_folder(run_directory.resolve(), node_id)
    site = journals.parent / _SITE
    site.mkdir(0o700, parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_START)
    path = os.pathsep.join([str(site), import_path])
    return {"PYTHONPATH": path, ROOT: str(store), JOURNALS: str(journals)}


def write_syncs(run_directory: Path, run: str, node_ids: Sequence[str]) -> None:
    """Write what was durable on the nodes, one writer for each of which there are journals. The nodes have
    ended. JournalDamaged."""
    for node_id in node_ids:
        journals = sorted(journals_folder(run_directory, node_id).glob("*.log"))
        if not journals:
            continue  # that this writer is missing is for the checker to find
        replay = Replay(read_damage(journals_folder(run_directory, node_id)))
        facts = [fact for journal in journals for fact in replay.life(read_lines(journal))]
        _write(run_directory, run, node_id, sorted(facts, key=lambda fact: fact.mono))


def _write(run_directory: Path, run: str, node_id: str, facts: Sequence[Fact]) -> None:
    now = [facts[0].mono if facts else 0]
    clocks = Clocks(mono_ns=lambda: now[0])
    with TraceWriter(run_directory, run, syncs_source(node_id), clocks=clocks) as writer:
        for fact in facts:
            now[0] = fact.mono
            match fact:
                case Synced(_, entry):
                    writer.write(Ev.DISK, {"e": "synced", "node": node_id, "ledger": LEDGER, "lidx": entry})
                case VoteSynced(_, term, vote):
                    about = {"vote": vote} if vote else {}
                    writer.write(Ev.DISK, {"e": "vote_synced", "node": node_id, "term": term, **about})
                case Removed(_, entry, kept):
                    gone = {"node": node_id, "ledger": LEDGER, "lidx": entry, "size": kept}
                    writer.write(Ev.DISK, {"e": "removed", **gone})
                case _:
                    writer.write(Ev.DISK, {"e": "watched", "node": node_id})

"""Converts journals to lines of a trace, and provides the environment of recorded nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from chaos.syncs.classic import ClassicReplay, LogStored
from chaos.syncs.journal import read_damage, read_lines
from chaos.syncs.recorder import JOURNALS, ROOT
from chaos.syncs.replay import Fact, FilesRemoved, JournalReplay, LogSynced, VoteSynced
from chaos.trace.schema import LEDGER, Ev
from chaos.trace.writer import Clocks, TraceWriter

#: Directory in the run directory with the journals of each node.
SYNCS_FOLDER = "syncs"
_SITE = "site"
_START = """from chaos.syncs.recorder import install_from_environment

install_from_environment()
"""


def journals_folder(run_directory: Path, node_id: str) -> Path:
    """Return the directory with the journals of a node, one per process."""
    return run_directory / SYNCS_FOLDER / node_id


def syncs_source(node_id: str) -> str:
    """Return the name of the writer of a node's syncs."""
    return f"disk:{node_id}"


def recording_environment(run_directory: Path, node_id: str, store: Path, import_path: str) -> dict[str, str]:
    """Return the environment variables that make a node's process record its syncs from startup.

    Python imports `sitecustomize` before any module of the program. `import_path`: the PYTHONPATH to extend,
    without the directory of `sitecustomize`.
    """
    journals = journals_folder(run_directory.resolve(), node_id)
    site = journals.parent / _SITE
    site.mkdir(0o700, parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_START)
    path = os.pathsep.join([str(site), import_path])
    return {"PYTHONPATH": path, ROOT: str(store), JOURNALS: str(journals)}


def write_syncs(run_directory: Path, run: str, node_ids: Sequence[str], *, is_classic: bool = False) -> None:
    """Write the syncs of all nodes with journals to the trace, one writer per node. For classic logs, write
    their ends instead.

    The nodes must have ended. Raises JournalDamaged.
    """
    for node_id in node_ids:
        journals = sorted(journals_folder(run_directory, node_id).glob("*.log"))
        if not journals:
            continue  # the checker reports the missing writer
        damaged = read_damage(journals_folder(run_directory, node_id))
        replay = ClassicReplay() if is_classic else JournalReplay(damaged)
        lives = (replay.life(read_lines(journal)) for journal in journals)
        facts: list[Fact | LogStored] = [fact for life in lives for fact in life]
        _write(run_directory, run, node_id, sorted(facts, key=lambda fact: fact.mono))


def _write(run_directory: Path, run: str, node_id: str, facts: Sequence[Fact | LogStored]) -> None:
    now = [facts[0].mono if facts else 0]
    clocks = Clocks(mono_ns=lambda: now[0])
    with TraceWriter(run_directory, run, syncs_source(node_id), clocks=clocks) as writer:
        for fact in facts:
            now[0] = fact.mono
            match fact:
                case LogSynced(_, entry):
                    writer.write(Ev.DISK, {"e": "synced", "node": node_id, "ledger": LEDGER, "lidx": entry})
                case LogStored(_, end):
                    writer.write(Ev.DISK, {"e": "stored", "node": node_id, "off": end})
                case VoteSynced(_, term, vote):
                    about = {"vote": vote} if vote else {}
                    writer.write(Ev.DISK, {"e": "vote_synced", "node": node_id, "term": term, **about})
                case FilesRemoved(_, entry, kept):
                    gone = {"node": node_id, "ledger": LEDGER, "lidx": entry, "size": kept}
                    writer.write(Ev.DISK, {"e": "removed", **gone})
                case _:
                    writer.write(Ev.DISK, {"e": "watched", "node": node_id})

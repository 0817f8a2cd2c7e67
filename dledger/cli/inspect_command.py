"""`dledger inspect`: the content of a node's directory. Never writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import click

from dledger.cli.client_options import MAX_INT64
from dledger.cli.exits import Exit
from dledger.cli.output import human_bytes, print_json, print_table
from dledger.core.values import member_key
from dledger.store.offline.inspect import (
    DirectoryReport,
    EntryReport,
    FileReport,
    inspect_directory,
    list_entries,
)
from dledger.store.scan import LogEndState

_COLUMNS = ("index", "term", "pos", "size", "more", "kind", "body_crc", "chain_crc", "indexed")
_INTERNAL_MAGIC = 2


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--entries", is_flag=True, help="Also list the headers of the entries.")
@click.option(
    "--from-index",
    type=click.IntRange(0, MAX_INT64),
    default=0,
    show_default=True,
    help="First index to list.",
)
@click.option("--count", type=click.IntRange(1, MAX_INT64), help="Maximum number of entries.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print all fields as one JSON object.")
def inspect(directory: Path, entries: bool, from_index: int, count: int | None, as_json: bool) -> None:
    """Check a node's DIRECTORY offline: identity, term and vote, and every checksum of its log.

    Never writes, and needs no server. While a server runs on the directory, the end may look torn for a
    moment.

    \b
    Exit code:
        0  clean, or torn: the node died during a write at the end; the next start removes the incomplete
           write, which contains nothing acknowledged
        1  damaged: stored data is corrupt; the output names the location

    \b
    Examples:
      dledger inspect /var/lib/log
      dledger inspect /tmp/log/n1/store --entries --from-index 1000 --count 20
      dledger inspect /var/lib/log --json | jq .verdict
    """
    report = inspect_directory(directory)
    listed = islice(list_entries(directory, from_index), count)
    if as_json:
        shown = _json(report)
        if entries:
            shown["entries"] = [entry._asdict() for entry in listed]
        print_json(shown)
    else:
        _print_report(report)
        if entries:
            click.echo()
            _print_entries(listed)
    if report.verdict is LogEndState.DAMAGED:
        raise click.exceptions.Exit(Exit.FAILED)


def _print_report(report: DirectoryReport) -> None:
    identity, state, checkpoint = report.identity, report.hard_state, report.checkpoint
    facts: list[tuple[str, str]] = [("directory", str(report.directory))]
    if identity is not None:
        facts += [
            ("cluster", f"{identity.cluster_id}, group {identity.group}, node {identity.node_id}"),
            ("fixed", f"data files of {human_bytes(identity.data_file_size)}, {identity.flush_mode.value}"),
        ]
    if state is not None:
        vote = state.voted_for or "none"
        text = f"term {state.term}, voted for {vote}, incarnation {state.incarnation}"
        if identity is not None:
            text += f", directory number {state.directory_of(member_key(identity.node_id, state.uid))}"
        facts.append(("state", text))
    if checkpoint is not None:
        facts.append(("checkpoint", f"committed index {checkpoint.committed_index}"))
    facts += [
        ("files", f"{_files(report.data_files)} of data, {_files(report.index_files)} of index"),
        ("log", _log_line(report)),
        ("verdict", _verdict_line(report)),
    ]
    facts += [("problem", problem) for problem in report.problems]
    for name, text in facts:
        click.echo(f"{name:<10} {text}")


def _log_line(report: DirectoryReport) -> str:
    if report.entry_count == 0:
        return "empty"
    text = (
        f"index {report.begin_index} to {report.end_index} (term {report.end_term}), "
        f"{report.entry_count} entries in {report.batch_count} batches, up to byte {report.end_pos}"
    )
    if report.unindexed_count:
        text += f"; {report.unindexed_count} without an index record"
    return text


def _verdict_line(report: DirectoryReport) -> str:
    if report.verdict is LogEndState.CLEAN or not report.verdict_reason:
        return report.verdict.value
    return f"{report.verdict.value}: {report.verdict_reason}"


def _files(files: Sequence[FileReport]) -> str:
    return f"{len(files)} files, {human_bytes(sum(file.length for file in files))},"


def _print_entries(entries: Iterator[EntryReport]) -> None:
    print_table(
        _COLUMNS,
        [
            (
                e.index,
                e.term,
                e.pos,
                e.size,
                e.channel,
                "internal" if e.magic == _INTERNAL_MAGIC else "entry",
                "ok" if e.body_crc_ok else "WRONG",
                "ok" if e.chain_crc_ok else "WRONG",
                "yes" if e.indexed else "no",
            )
            for e in entries
        ],
    )


def _json(value: Any) -> Any:
    """Convert dataclasses, named tuples, enums and paths to plain values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {key: _json(item) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _json(item) for key, item in value._asdict().items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return value

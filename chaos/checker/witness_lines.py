"""Where the witnesses of converted histories stand in the files that they were made of."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.checker.engine import Engine, Row
from chaos.checker.paths import file_of
from chaos.checker.readers.lines import source_line

#: Of a witness: path and line of the user's file.
AT = "at"


def add_source_lines(engine: Engine, witnesses: Iterable[Row]) -> None:
    """Say of witnesses that name a line of a converted history which line of the user's file it was."""
    of_histories = "SELECT run FROM runs WHERE history IS NOT NULL"
    files = {
        (row["run"], row["src"], row["inc"]): file_of(str(row["file"])).resolve()
        for row in engine.rows(
            "SELECT c.run, c.src, c.inc, min(c.file) AS file FROM line_counts c "
            f"SEMI JOIN ({of_histories}) h ON h.run = c.run GROUP BY c.run, c.src, c.inc"
        )
    }
    for witness in witnesses:
        path = files.get((witness.get("run"), witness.get("src"), witness.get("inc")))
        seq = witness.get("seq")
        if path is None or not isinstance(seq, int):
            continue
        if at := source_line(path.parent.parent, path.name, seq + 1):
            witness[AT] = at

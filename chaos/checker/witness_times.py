"""Times of witnesses, from the lines or messages that they name."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.checker.engine import Engine, Row

#: Key of a witness: the time of the event, in ns, by the clock of its writer.
MONO = "mono"
#: Columns by which a witness identifies an event, and the table and column of its time.
_KEYS = (
    (("run", "src", "inc", "seq"), "events", "mono"),
    # The time from which the message must be present.
    (("run", "mid"), "sends", "coalesce(ret, inv)"),
)


def add_times(engine: Engine, witnesses: Iterable[Row]) -> None:
    """Add the time of its line to each witness. If a witness has no line, add the time at which its message
    was acknowledged or, if it was not acknowledged, sent."""
    untimed = [witness for witness in witnesses if witness.get(MONO) is None]
    for key, table, time in _KEYS:
        # By number, because a query must not contain text from a trace.
        number = key[-1]
        numbers = sorted({value for witness in untimed if isinstance(value := witness.get(number), int)})
        if not numbers:
            continue
        columns = ", ".join(key)
        times = {
            tuple(row[name] for name in key): row[MONO]
            for row in engine.rows(
                f"SELECT {columns}, min({time}) AS {MONO} FROM {table} "
                f"WHERE {number} IN ({', '.join(map(str, numbers))}) GROUP BY {columns}"
            )
        }
        for witness in untimed:
            if (mono := times.get(tuple(witness.get(name) for name in key))) is not None:
                witness[MONO] = mono
        untimed = [witness for witness in untimed if witness.get(MONO) is None]

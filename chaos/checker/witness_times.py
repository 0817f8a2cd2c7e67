"""When what witnesses tell of happened: by the lines of the trace, or the messages, that they name."""

from __future__ import annotations

from collections.abc import Iterable

from chaos.checker.engine import Engine, Row

#: Of a witness: the time of what it tells of; ns, by the clock of its writer.
MONO = "mono"
#: What a witness may name, and where the times of that are.
_KEYS = (
    (("run", "src", "inc", "seq"), "events", "mono"),
    # The moment from which a message is promised to be there.
    (("run", "mid"), "sends", "coalesce(ret, inv)"),
)


def add_times(engine: Engine, witnesses: Iterable[Row]) -> None:
    """Say of witnesses when their line was written, or, without one, when their message was acknowledged."""
    left = [one for one in witnesses if one.get(MONO) is None]
    for key, table, time in _KEYS:
        # By number: texts of a trace are no part of a query.
        number = key[-1]
        numbers = sorted({value for one in left if isinstance(value := one.get(number), int)})
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
        for one in left:
            if (mono := times.get(tuple(one.get(name) for name in key))) is not None:
                one[MONO] = mono
        left = [one for one in left if one.get(MONO) is None]

"""Availability: A5, A6. The times to recover, A1-A4, are figures and stand in `figures.py`."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.needs import EVIDENT, NODES, WHOLE, Need

#: After everything is healed, a send is acknowledged within so long; ns.
RECOVERY_NS = 60_000_000_000

_HEALED = """
SELECT r.run, sum(s.n_healed) AS n, min(s.ret_healed) - max(r.healed) AS waited FROM runs r
JOIN sent_logs s ON s.run = r.run WHERE r.healed IS NOT NULL GROUP BY r.run
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "A5",
        f"after all faults are healed, sends are acknowledged within {RECOVERY_NS // 1_000_000_000} s",
        "healed sends",
        "{n} sends began after everything was healed; {waited}",
        Part(
            _HEALED,
            f"n > 0 AND coalesce(waited, {RECOVERY_NS} + 1) > {RECOVERY_NS}",
            "n, coalesce('the first acknowledgement came ' || CAST(waited AS STRING) || ' ns later', "
            "'none was acknowledged') AS waited",
            few=True,
        ),
        needs=(*WHOLE, Need.CLOCKS),
        clear_needs=(*WHOLE, Need.FAULTS),
    ),
    hard(
        "A6",
        "no node wrote of a panic, an assertion or an unhandled exception",
        "lines",
        "{node}: {text}",
        Part("meta", "e = 'log_error'", "node, text, src, inc, seq", few=True),
        needs=EVIDENT,
        clear_needs=NODES,
    ),
)

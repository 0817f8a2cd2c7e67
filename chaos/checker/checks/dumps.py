"""Digests that the reader of the nodes' files computes over complete files: B7."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.needs import EVIDENT, Need

#: Digests of comparable ranges: committed entries with the same first and last index, and equal numbers of
#: ConsumeQueue units built from such a range.
_DIGESTS = """
SELECT run, ledger, max(n) AS n, min(node) AS node, max(node) AS node_other, min(digest) AS digest_min,
  max(digest) AS digest_max
FROM (
  SELECT d.run, d.ledger, d.node, d.n, d.digest, g.low, g.sure_high,
    CASE WHEN d.ledger = 'consumequeue' THEN d.n END AS units
  FROM (
    SELECT run, node, ledger, count AS n, digest FROM events WHERE ev = 'meta' AND e = 'dumped') d
  LEFT JOIN dump_ends g ON g.run = d.run AND g.node = d.node
    AND (g.ledger = d.ledger OR d.ledger = 'consumequeue')
) GROUP BY run, ledger, units, low, sure_high
"""

CHECKS: tuple[Check, ...] = (
    hard(
        "B7",
        "nodes with the same range of entries have identical contents",
        "dumped",
        "{ledger}: {node} and {node_other} have {n} each, with different contents",
        Part(_DIGESTS, "digest_min < digest_max", "ledger, n, node, node_other", few=True),
        needs=(*EVIDENT, Need.DUMPS, Need.SOUND_FILES),
    ),
)

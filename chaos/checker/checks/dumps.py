"""What the reader of the nodes' files says of all that it has read: B7."""

from __future__ import annotations

from chaos.checker.checks.registry import Check, Part, hard
from chaos.checker.needs import EVIDENT, Need

#: Digests of what is equally much: of the committed entries from the same one to the same one, and of as many
#: units of ConsumeQueues that were built of these.
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
        "the files of nodes that hold equally much hold the same",
        "dumped",
        "{ledger}: {node} and {node_other} have {n} each, and not the same",
        Part(_DIGESTS, "digest_min < digest_max", "ledger, n, node, node_other", few=True),
        needs=(*EVIDENT, Need.DUMPS, Need.SOUND_FILES),
    ),
)

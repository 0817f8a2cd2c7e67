"""Yardstick for the checker: nine simple checks as plain Spark SQL on the columns of a converted trace.

Spark runs with ordinary settings. `python -m benchmarks.plain_checks RUN_DIR` prints the number of violations
by
check.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from chaos.checker.engines.java import java_home
from chaos.trace.parquet import PARQUET_DIR

_SENDS = """
(SELECT op, max(mid) AS mid, max(topic) AS topic, max(q) AS q, max(qoff) AS qoff, max(term) AS term,
  min(CASE WHEN type = 'invoke' THEN mono END) AS inv, max(CASE WHEN type = 'ok' THEN mono END) AS ret,
  max(CASE WHEN type <> 'invoke' THEN type END) AS outcome
FROM events WHERE ev = 'op' AND f = 'send' GROUP BY op)
"""

CHECKS = {
    "lost": f"""SELECT count(*) FROM {_SENDS} s
      LEFT ANTI JOIN (SELECT mid FROM events WHERE ev = 'dlv') d ON d.mid = s.mid WHERE s.outcome = 'ok'""",
    "aborted": f"""SELECT count(*) FROM events d LEFT SEMI JOIN (SELECT mid FROM {_SENDS} s
      WHERE outcome = 'fail') s ON s.mid = d.mid WHERE d.ev = 'dlv'""",
    "divergent": """SELECT count(*) FROM (SELECT topic, q, qoff FROM events
      WHERE ev IN ('dlv', 'dump') AND qoff IS NOT NULL GROUP BY topic, q, qoff HAVING min(mid) < max(mid)
        OR min(digest) < max(digest))""",
    "duplicate": """SELECT count(*) FROM (SELECT mid FROM events WHERE ev = 'dlv' GROUP BY mid
      HAVING min(qoff) < max(qoff))""",
    "not monotone": """SELECT count(*) FROM (SELECT qoff, lag(qoff) OVER (PARTITION BY consumer, topic, q, op
      ORDER BY i) AS before FROM events WHERE ev = 'dlv') WHERE qoff <= before""",
    "against real time": f"""SELECT count(*) FROM (SELECT k, pos, max(CASE WHEN k = 1 THEN pos END) OVER (
        PARTITION BY topic, q ORDER BY t, k ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM (SELECT topic, q, qoff AS pos, k, CASE WHEN k = 0 THEN inv ELSE ret END AS t FROM {_SENDS}
        CROSS JOIN (SELECT explode(array(0, 1)) AS k) WHERE outcome = 'ok')) WHERE k = 0 AND before > pos""",
    "two leaders": """SELECT count(*) FROM (SELECT term FROM events WHERE e = 'leader' GROUP BY term
      HAVING min(node) < max(node))""",
    "state machines": """SELECT count(*) FROM (SELECT lidx FROM events WHERE e = 'commit' GROUP BY lidx
      HAVING min(chain) < max(chain) OR min(eterm) < max(eterm))""",
    "pairing": """SELECT count(*) FROM (SELECT op FROM events WHERE ev = 'op' GROUP BY op
      HAVING count(CASE WHEN type = 'invoke' THEN 1 END) <> 1
        OR count(CASE WHEN type <> 'invoke' THEN 1 END) > 1)""",
}


def main() -> None:
    from pyspark.sql import SparkSession

    with tempfile.TemporaryDirectory(prefix="plain-checks-") as folder:
        if home := java_home(Path(folder)):
            os.environ["JAVA_HOME"] = str(home)
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.memory", "2g")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "8")
            .config("spark.local.dir", folder)
            .config("spark.sql.warehouse.dir", f"{folder}/warehouse")
            .config("spark.log.level", "ERROR")
            .getOrCreate()
        )
        try:
            session.read.parquet(str(Path(sys.argv[1], PARQUET_DIR))).createOrReplaceTempView("events")
            found = {name: session.sql(sql).collect()[0][0] for name, sql in CHECKS.items()}
        finally:
            session.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()

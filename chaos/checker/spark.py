"""The checker of record: Spark. Sessions, reading traces, and `Engine` on it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from chaos.checker.engine import Answer, Cell, Row
from chaos.checker.intake import Intake
from chaos.checker.java import java_home
from chaos.trace.schema import FIELDS, Ev, Kind

#: `group` is a word of SQL.
RENAMED = {"group": "grp"}
CORRUPT = "corrupt"
UNKNOWN = "unknown"
#: Where a line stands: the path of its file.
FILE = "file"
#: Queries that run at the same time: while one is planned, another computes.
_AT_ONCE = 4
#: Up to so many bytes of raw lines, more time goes into preparing to be fast than could be won: queries are
#: then interpreted, planned once, and compiled by the quick compiler only.
SMALL_BYTES = 64 << 20
_BYTES_A_PARTITION = 64 << 20
_SMALL_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms768m -Xmn512m"
_LARGE_JVM = "-XX:+UseParallelGC"
_TYPES = {Kind.INT: LongType(), Kind.STR: StringType(), Kind.BOOL: BooleanType()}
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # One reader for many small files: a run has a file for each writer.
    "spark.sql.files.openCostInBytes": str(64 * 1024),
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "zstd",
    # Without it rows are sorted by kind before they are written by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.log.level": "ERROR",
}


def schema() -> StructType:
    """The explicit schema of raw lines, with a column for those that do not fit it."""
    fields = [StructField(name, _TYPES[kind]) for name, kind in FIELDS.items()]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def start(
    work_dir: Path, *, master: str | None = None, memory: str = "2g", small: bool = False
) -> SparkSession:
    """A session. `master`: where to run; None: what spark-submit says, else all cores of this machine.
    `small`: it is for few lines.

    Raises:
        NoJava: no Java that can run Spark.
    """
    home = java_home(work_dir)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Otherwise workers take the system's Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("dledger-check")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.config("spark.driver.memory", memory)
        builder = builder.config("spark.driver.extraJavaOptions", _SMALL_JVM if small else _LARGE_JVM)
        builder = builder.config("spark.sql.warehouse.dir", str(work_dir / "warehouse"))
        builder = builder.config("spark.local.dir", str(work_dir / "spark"))
        builder = builder.master(master or "local[*]")
    elif master is not None:
        builder = builder.master(master)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def is_small(intake: Intake) -> bool:
    """Converted traces are not: they were converted because they are not."""
    return not intake.parquet and sum(file.bytes for file in intake.raw) <= SMALL_BYTES


def tune(session: SparkSession, intake: Intake) -> None:
    """Set how queries are run, by how much there is to read."""
    cores = session.sparkContext.defaultParallelism
    small = is_small(intake)
    sized = sum(file.bytes for file in intake.raw) // _BYTES_A_PARTITION
    # Few rows are not worth a second task; the other cores have other queries.
    session.conf.set("spark.sql.shuffle.partitions", str(1 if small else max(4 * cores, sized)))
    session.conf.set("spark.sql.adaptive.enabled", str(not small).lower())
    session.conf.set("spark.sql.codegen.wholeStage", str(not small).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN" if small else "FALLBACK")


def read_events(session: SparkSession, intake: Intake) -> DataFrame:
    """All lines of all runs, one row each, `ev` being CORRUPT or UNKNOWN where that is so."""
    known = [ev.value for ev in Ev]
    frames = []
    if intake.raw:
        paths = [str(file.path) for file in intake.raw]
        reader = session.read.schema(schema()).option("columnNameOfCorruptRecord", CORRUPT)
        frames.append(reader.json(paths).withColumn(FILE, fn.input_file_name()))
    for path in intake.parquet:
        frame = session.read.parquet(str(path))
        for name, kind in FIELDS.items():
            column = fn.col(name) if name in frame.columns else fn.lit(None)
            frame = frame.withColumn(name, column.cast(_TYPES[kind]))
        frame = frame.withColumn(CORRUPT, fn.lit(None).cast(StringType()))
        frames.append(frame.select(*FIELDS, CORRUPT).withColumn(FILE, fn.input_file_name()))
    events = frames[0]
    for frame in frames[1:]:
        events = events.unionByName(frame)
    row_kind = (
        fn.when(fn.col(CORRUPT).isNotNull(), CORRUPT)
        .when(fn.col("ev").isin(known), fn.col("ev"))
        .otherwise(UNKNOWN)
    )
    digest = fn.when(fn.col("digest").isNotNull(), fn.xxhash64("digest"))
    return events.withColumn("ev", row_kind).withColumn("digest", digest).withColumnsRenamed(RENAMED)


class SparkEngine:
    """`Engine` on a session; facts are Parquet files below `work_dir`, which every worker must reach."""

    def __init__(self, session: SparkSession, work_dir: Path) -> None:
        self._session = session
        self._work_dir = work_dir

    def load(self, intake: Intake) -> None:
        """Read the traces into the table `events`: once, as columns, one directory for each kind of line."""
        tune(self._session, intake)
        path = str(self._work_dir / "events")
        events = read_events(self._session, intake)
        events.drop(CORRUPT).write.mode("overwrite").partitionBy("ev").parquet(path)
        if is_small(intake):
            self._session.conf.set("spark.sql.files.minPartitionNum", "1")
        self._session.read.parquet(path).createOrReplaceTempView("events")

    def view(self, name: str, sql: str) -> None:
        self._session.sql(sql).createOrReplaceTempView(name)

    def facts(self, queries: Mapping[str, str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(self._fact, queries, queries.values()))

    def _fact(self, name: str, sql: str) -> None:
        path = str(self._work_dir / name)
        frame = self._session.sql(sql)
        frame.write.mode("overwrite").parquet(path)
        self._session.read.schema(frame.schema).parquet(path).createOrReplaceTempView(name)

    def rows(self, sql: str) -> list[Row]:
        return [cast(dict[str, Cell], row.asDict()) for row in self._session.sql(sql).collect()]

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[Answer]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done in as_completed([pool.submit(self._answer, *query) for query in queries.items()]):
                yield done.result()

    def _answer(self, name: str, sql: str) -> Answer:
        started = time.monotonic()
        return Answer(name, self.rows(sql), time.monotonic() - started)

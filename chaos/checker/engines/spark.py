"""The checker of record: Spark. Sessions, reading traces, and `Engine` on it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from typing import cast

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from chaos.checker.children import child_processes
from chaos.checker.engine import Answer, Cell, Row
from chaos.checker.engines.class_archive import ClassArchive, class_archive
from chaos.checker.engines.java import java_home, version_text
from chaos.checker.intake import Intake
from chaos.checker.tables import FEW_ROWS, PICKED
from chaos.trace.schema import FIELDS, Ev, Kind

#: `group` is a word of SQL.
RENAMED = {"group": "grp"}
CORRUPT = "corrupt"
UNKNOWN = "unknown"
#: Where a line stands: the path of its file.
FILE = "file"
#: What Hadoop takes for patterns.
_PATTERN = re.compile(r"[{}\[\]*?\\]")
#: Queries that run at the same time: while one is planned, another computes.
_AT_ONCE = 4
#: Up to so many bytes of raw lines, more time goes into compiling queries than could be won: they are
#: interpreted.
INTERPRETED_BYTES = 64 << 20
#: Up to so many, a query is one task, which is planned once and moves no rows, because everything is in one
#: place; other queries use the other cores. And the JVM uses its quick compiler only.
ONE_TASK_BYTES = 256 << 20
#: From so many on, the JVM gets a larger heap.
LARGE_HEAP_BYTES = 8 << 30
#: Lines take so many times the bytes of the same columns in Parquet files.
_LINES_TO_COLUMNS = 20
_BYTES_A_PARTITION = 64 << 20
#: The space for 24,000 classes is there from the beginning, not after seven collections.
_JVM = "-XX:MetaspaceSize=256m"
#: With one compiler only, the space for what it makes is small: when it is full, nothing more is compiled.
_QUICK_JVM = (
    f"{_JVM} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -Xms768m -Xmn512m"
)
#: What is compiled with care is what runs ten times as often as usual, and less is inlined than usual: of
#: several hundred generated classes most run once, and their methods are long.
_LARGE_JVM = (
    f"{_JVM} -XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:FreqInlineSize=150 -XX:InlineSmallCode=1000"
)
#: Jars that most classes are in. There are 280, and each is looked into until a class is found.
_FIRST_JARS = (
    "spark-catalyst_",
    "spark-sql_",
    "spark-core_",
    "scala-library",
    "hadoop-client-api",
    "parquet-",
)
#: What makes plans of large tables better and every plan dearer.
_FOR_MANY_ROWS = (
    "spark.sql.constraintPropagation.enabled",
    "spark.sql.optimizer.dynamicPartitionPruning.enabled",
    "spark.sql.optimizer.runtime.bloomFilter.enabled",
    "spark.sql.exchange.reuse",
    "spark.sql.execution.reuseSubquery",
)
_TYPES = {Kind.INT: LongType(), Kind.STR: StringType(), Kind.BOOL: BooleanType()}
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # One reader for many small files: a run has a file for each writer.
    "spark.sql.files.openCostInBytes": str(64 * 1024),
    # Otherwise to find the files is a task for each of them.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "lz4_raw",
    # A task gets what fits into its share of memory, so that what is grouped and sorted need not spill;
    # otherwise there are no more tasks than cores.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Without it rows are sorted by kind before they are written by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # What goes wrong is raised, with its cause.
    "spark.log.level": "OFF",
    # Every sort and every hash table of every task takes a page first, and 32 MiB of zeros are not free.
    "spark.buffer.pageSize": "2m",
    # Nobody looks at plans, but they are written down for the interface that is not there.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.debug.maxToStringFields": "0",
    "spark.sql.lightweightPlanChangeValidation": "false",
}


def schema() -> StructType:
    """The explicit schema of raw lines, with a column for those that do not fit it."""
    fields = [StructField(name, _TYPES[kind]) for name, kind in FIELDS.items()]
    return StructType([*fields, StructField(CORRUPT, StringType())])


def start(
    work_dir: Path,
    *,
    master: str | None = None,
    memory: str = "2g",
    quick: bool = False,
    archived: bool = False,
) -> SparkSession:
    """A session. `master`: where to run; None: what spark-submit says, else all cores of this machine.
    `quick`: it is for no more than ONE_TASK_BYTES of lines. `archived`: classes come
    from the user's archive of them, or are put into one when the JVM ends.

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
        archive = _class_archive(home) if archived else None
        options = [_QUICK_JVM if quick else _LARGE_JVM, *([archive.options] if archive else [])]
        builder = builder.config("spark.driver.extraJavaOptions", " ".join(options))
        builder = builder.config("spark.driver.extraClassPath", _first_jars())
        builder = builder.config("spark.sql.warehouse.dir", str(work_dir / "warehouse"))
        builder = builder.config("spark.local.dir", str(work_dir / "spark"))
        builder = builder.master(master or "local[*]")
    elif master is not None:
        builder = builder.master(master)
    before = child_processes()
    try:
        session = builder.getOrCreate()
    except BaseException:
        # Its JVM is not in anybody's hands yet.
        for pid in child_processes() - before:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    session.sparkContext.setLogLevel("OFF")
    return session


def end(session: SparkSession, *, whole: bool) -> None:
    """Stop a session. `whole`: it did what it was for; else its JVM is ended at once, whatever it does, and
    what it has loaded makes no archive."""
    gateway = session.sparkContext._gateway
    process = gateway.proc if gateway is not None else None
    if not whole and process is not None:
        process.kill()
        process.wait()
        return
    # What it was for is done, or there is another error to tell of.
    with suppress(Exception):
        session.stop()


def lines_bytes(intake: Intake) -> int:
    """How much there is to read, in bytes of raw lines; of converted traces what they were, roughly."""
    return sum(file.bytes for file in intake.raw) + _LINES_TO_COLUMNS * intake.parquet_bytes


def is_quick(intake: Intake) -> bool:
    return lines_bytes(intake) <= ONE_TASK_BYTES


def heap_for(intake: Intake) -> str:
    """The heap that suffices: 100,000,000 events did not pass with the smaller one."""
    return "4g" if lines_bytes(intake) >= LARGE_HEAP_BYTES else "2g"


def tune(session: SparkSession, intake: Intake) -> None:
    """Set how queries are run, by how much there is to read."""
    compiled, one_task = lines_bytes(intake) > INTERPRETED_BYTES, is_quick(intake)
    parts = max(4 * session.sparkContext.defaultParallelism, lines_bytes(intake) // _BYTES_A_PARTITION)
    session.conf.set("spark.sql.shuffle.partitions", str(1 if one_task else parts))
    for name in ("spark.sql.adaptive.enabled", *_FOR_MANY_ROWS):
        session.conf.set(name, str(not one_task).lower())
    # To broadcast a table is a job of its own; what is written in the query itself still is.
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "100" if one_task else "10m")
    _compile(session, compiled)


def _compile(session: SparkSession, compiled: bool) -> None:
    session.conf.set("spark.sql.codegen.wholeStage", str(compiled).lower())
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK" if compiled else "NO_CODEGEN")


def _jars() -> list[Path]:
    return sorted(Path(pyspark.__file__).parent.joinpath("jars").glob("*.jar"))


def _first_jars() -> str:
    jars = _jars()
    return os.pathsep.join(str(jar) for first in _FIRST_JARS for jar in jars if jar.name.startswith(first))


def _class_archive(java_home: Path | None) -> ClassArchive | None:
    java = java_home / "bin" / "java" if java_home else shutil.which("java")
    return class_archive(version_text(Path(java)), _jars()) if java else None


class PlainNames:
    """Names without a meaning for files whose paths Spark would take for patterns: links in a directory.

    Spark's own option against that, `__globPaths__`, reads each of several files several times (4.3.0).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def of(self, path: Path) -> str:
        """What to call a file or directory. Absolute: what stands before the first colon of another path
        would be a file system's name."""
        path = path.absolute()
        if not _PATTERN.search(str(path)):
            return str(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        link = self._folder / f"{self._made}{path.suffix}"
        link.symlink_to(path)
        self._made += 1
        return str(link)


def read_lines(session: SparkSession, intake: Intake, names: PlainNames) -> DataFrame:
    """All raw lines of all runs, one row each, `ev` being CORRUPT or UNKNOWN where that is so."""
    paths = [names.of(file.path) for file in intake.raw]
    lines = session.read.schema(schema()).option("columnNameOfCorruptRecord", CORRUPT).json(paths)
    known = [ev.value for ev in Ev]
    row_kind = (
        fn.when(fn.col(CORRUPT).isNotNull(), CORRUPT)
        .when(fn.col("ev").isin(known), fn.col("ev"))
        .otherwise(UNKNOWN)
    )
    return as_events(lines).withColumn("ev", row_kind).drop(CORRUPT)


def read_columns(session: SparkSession, intake: Intake, names: PlainNames) -> DataFrame:
    """All rows of converted traces. A column that a file has not is NULL."""
    reader = session.read.schema(
        StructType([StructField(name, _TYPES[kind]) for name, kind in FIELDS.items()])
    )
    flat: list[str] = []
    #: Where folders are called `column=value`, Spark has to know where they begin.
    partitioned: dict[Path, list[Path]] = defaultdict(list)
    for file in intake.parquet:
        below = file.path.relative_to(file.folder)
        if any("=" in name for name in below.parts[:-1]):
            partitioned[file.folder].append(below)
        else:
            flat.append(names.of(file.path))
    frames = [reader.parquet(*flat)] if flat else []
    for folder, files in partitioned.items():
        base = names.of(folder)
        rows = reader.option("basePath", base).parquet(*(f"{base}/{below}" for below in files))
        frames.append(rows.select(*FIELDS))
    return as_events(reduce(DataFrame.unionByName, frames))


def as_events(rows: DataFrame) -> DataFrame:
    """Rows with the columns of the schema as those of the table `events`."""
    digest = fn.when(fn.col("digest").isNotNull(), fn.xxhash64("digest"))
    # What strings are the least and the greatest is found by sorting them; of numbers, by hashing.
    chain_key = fn.when(fn.col("chain").isNotNull(), fn.xxhash64("chain"))
    rows = rows.withColumn(FILE, fn.input_file_name()).withColumn("digest", digest)
    rows = rows.withColumn("chain_key", chain_key)
    return rows.withColumnsRenamed(RENAMED)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """For queries that run at once. If one fails, or the command is told to end, the others are not waited
    for: they end with the JVM."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class SparkEngine:
    """`Engine` on a session; facts are Parquet files below `work_dir`, which every worker must reach, and
    whose path holds nothing that Spark takes for a pattern."""

    def __init__(self, session: SparkSession, work_dir: Path) -> None:
        self._session = session
        self._work_dir = work_dir.absolute()
        self._one_task = False
        self._interpreted = False

    def load(self, intake: Intake) -> None:
        """Make the table `events`. Lines are read once and written as columns, one directory for each kind of
        line; what are columns already is read where it lies."""
        tune(self._session, intake)
        frames = []
        names = PlainNames(self._work_dir / "names")
        if intake.raw:
            path = str(self._work_dir / "events")
            lines = read_lines(self._session, intake, names)
            # The one query that has all rows with all columns: compiling it is worth it.
            _compile(self._session, True)
            lines.write.mode("overwrite").partitionBy("ev").parquet(path)
            _compile(self._session, lines_bytes(intake) > INTERPRETED_BYTES)
            frames.append(self._session.read.schema(lines.schema).parquet(path))
        if intake.parquet:
            frames.append(read_columns(self._session, intake, names))
        self._one_task = is_quick(intake)
        self._interpreted = lines_bytes(intake) <= INTERPRETED_BYTES
        self._table("events", reduce(DataFrame.unionByName, frames))

    def _table(self, name: str, frame: DataFrame) -> None:
        # What is known to lie in one place need not be brought together: no query has a second stage.
        self._name(name, frame.coalesce(1) if self._one_task else frame)

    def view(self, name: str, sql: str) -> None:
        self._name(name, self._session.sql(sql))

    def _name(self, name: str, frame: DataFrame) -> None:
        # Otherwise both sides of every join are sorted. Above one task, few rows are broadcast.
        hashed = self._one_task and (self._interpreted or name in FEW_ROWS)
        (frame.hint("shuffle_hash") if hashed else frame).createOrReplaceTempView(name)

    def facts(self, queries: Mapping[str, str]) -> None:
        with _pool() as pool:
            list(pool.map(self._fact, queries, queries.values()))

    def _fact(self, name: str, sql: str) -> None:
        if self._one_task and name in PICKED:
            # Nothing is moved anyway.
            self.view(name, sql)
            return
        path = str(self._work_dir / name)
        frame = self._session.sql(sql)
        frame.write.mode("overwrite").parquet(path)
        self._table(name, self._session.read.schema(frame.schema).parquet(path))

    def fold(self, name: str, sql: str, function: Callable[[str, list[str]], str]) -> None:
        frame = self._session.sql(
            f"SELECT run, log, kind, array_agg(item) AS items FROM ({sql}) GROUP BY run, log, kind"
        )
        # A group may take seconds: not all of them one after the other where the rows lie in one place.
        frame = frame.repartition(4 * self._session.sparkContext.defaultParallelism, "run", "log")
        folded = fn.udf(function, StringType(), useArrow=False)
        path = str(self._work_dir / name)
        found = frame.select("run", "log", folded("kind", "items").alias("found"))
        found.write.mode("overwrite").parquet(path)
        self._table(name, self._session.read.schema(found.schema).parquet(path))

    def rows(self, sql: str) -> list[Row]:
        return [cast(dict[str, Cell], row.asDict()) for row in self._session.sql(sql).collect()]

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[Answer]:
        with _pool() as pool:
            for done in as_completed([pool.submit(self._answer, *query) for query in queries.items()]):
                yield done.result()

    def _answer(self, name: str, sql: str) -> Answer:
        started = time.monotonic()
        return Answer(name, self.rows(sql), time.monotonic() - started)

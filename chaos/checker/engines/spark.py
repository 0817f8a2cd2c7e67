"""Spark, the reference engine of the checker: sessions, reading of traces, and `Engine`."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import cast

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from chaos.checker.children import child_processes
from chaos.checker.engine import Cell, QueryResult, Row
from chaos.checker.engines.java import java_home, version_text
from chaos.checker.intake import Intake
from chaos.checker.tables import FEW_ROWS, PICKED
from chaos.trace.schema import FIELDS, Ev, Kind

#: `group` is a keyword of SQL.
RENAMED = {"group": "grp"}
CORRUPT = "corrupt"
UNKNOWN = "unknown"
#: Column with the path of the file of a line.
FILE = "file"
#: Characters that Hadoop interprets as patterns.
_PATTERN = re.compile(r"[{}\[\]*?\\]")
#: Number of concurrent queries: while one is planned, another computes.
_AT_ONCE = 4
#: Size of raw lines up to which queries are interpreted, because compiling them would take longer than it
#: saves.
INTERPRETED_BYTES = 64 << 20
#: Size of raw lines up to which a query is a single task, which is planned once and shuffles no rows; other
#: queries use the other cores. The JVM then uses only its fast compiler.
ONE_TASK_BYTES = 256 << 20
#: Size of raw lines from which the JVM gets a larger heap.
LARGE_HEAP_BYTES = 8 << 30
#: Ratio of the size of lines to the size of the same columns in Parquet files.
_LINES_TO_COLUMNS = 20
_BYTES_A_PARTITION = 64 << 20
#: Reserves metaspace for 24,000 classes at the start, which avoids seven garbage collections.
_JVM = "-XX:MetaspaceSize=256m"
#: With one compiler the code cache is small by default, and a full one disables compilation.
_QUICK_JVM = (
    f"{_JVM} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -Xms768m -Xmn512m"
)
#: Raises the thresholds of the optimizing compiler tenfold and reduces inlining: of several hundred generated
#: classes most run once, and their methods are long.
_LARGE_JVM = (
    f"{_JVM} -XX:+UseParallelGC -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000 "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:FreqInlineSize=150 -XX:InlineSmallCode=1000"
)
#: Jars with most of the classes. The JVM searches the 280 jars in the order of the class path.
_FIRST_JARS = (
    "spark-catalyst_",
    "spark-sql_",
    "spark-core_",
    "scala-library",
    "hadoop-client-api",
    "parquet-",
)
#: Optimizations that pay off only for large tables, because they make all planning slower.
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
    # One reader for many small files: a run has a file per writer.
    "spark.sql.files.openCostInBytes": str(64 * 1024),
    # Avoids a Spark task per file to list the files.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.compression.codec": "lz4_raw",
    # Sizes partitions to the memory of a task, so that groupings and sorts do not spill. By default, Spark
    # creates only as many tasks as there are cores.
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16m",
    # Avoids sorting the rows by kind before they are written by kind.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Errors are raised with their cause, so do not log them.
    "spark.log.level": "OFF",
    # Every sort and hash table of every task allocates a page, and zeroing the default of 32 MiB is slow.
    "spark.buffer.pageSize": "2m",
    # Spark formats plans for its web interface, which is disabled.
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.debug.maxToStringFields": "0",
    "spark.sql.lightweightPlanChangeValidation": "false",
}


#: Logging of the JVM. With another level than warn, Spark prints a hint how to change it.
_NO_LOG = """\
appender.none.type = Null
appender.none.name = none
rootLogger.level = warn
rootLogger.appenderRef.none.ref = none
"""


def schema() -> StructType:
    """Return the schema of raw lines, with a column for lines that do not fit it."""
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
    """Start a session.

    `master`: Spark master URL; if it is None, the master of spark-submit is used, or else all cores of this
    machine. `quick`: configure the session for at most ONE_TASK_BYTES of lines. `archived`: load classes from
    the user's class archive, or write one when the JVM ends.

    Raises:
        JavaNotFound: there is no suitable Java for Spark.
    """
    home = java_home(work_dir)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    # Otherwise workers use the system's Python.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("dledger-check")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    if "SPARK_ENV_LOADED" not in os.environ:
        builder = builder.config("spark.driver.memory", memory)
        archive = _class_archive(home) if archived else None
        logging = work_dir / "log4j2.properties"
        logging.write_text(_NO_LOG)
        options = [_QUICK_JVM if quick else _LARGE_JVM, *([archive.options] if archive else [])]
        options.append(f"-Dlog4j2.configurationFile={logging.absolute().as_uri()}")
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
        # No other code would stop this JVM yet.
        for pid in child_processes() - before:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        raise
    session.sparkContext.setLogLevel("OFF")
    return session


def end(session: SparkSession, *, whole: bool) -> None:
    """Stop a session. If its work is not complete (`whole`), kill its JVM immediately, so that it writes no
    class archive."""
    gateway = session.sparkContext._gateway
    process = gateway.proc if gateway is not None else None
    if not whole and process is not None:
        process.kill()
        process.wait()
        return
    # The work is complete, or another error is being reported.
    with suppress(Exception):
        session.stop()


def lines_bytes(intake: Intake) -> int:
    """Return the size in bytes of the input as raw lines. For converted traces this is an estimate."""
    return sum(file.bytes for file in intake.raw) + _LINES_TO_COLUMNS * intake.parquet_bytes


def is_quick(intake: Intake) -> bool:
    return lines_bytes(intake) <= ONE_TASK_BYTES


def heap_for(intake: Intake) -> str:
    """Return a heap size that suffices for the input. The smaller size was insufficient for 100,000,000
    events."""
    return "4g" if lines_bytes(intake) >= LARGE_HEAP_BYTES else "2g"


def tune(session: SparkSession, intake: Intake) -> None:
    """Configure the session for the size of the input."""
    compiled, one_task = lines_bytes(intake) > INTERPRETED_BYTES, is_quick(intake)
    parts = max(4 * session.sparkContext.defaultParallelism, lines_bytes(intake) // _BYTES_A_PARTITION)
    session.conf.set("spark.sql.shuffle.partitions", str(1 if one_task else parts))
    for name in ("spark.sql.adaptive.enabled", *_FOR_MANY_ROWS):
        session.conf.set(name, str(not one_task).lower())
    # A broadcast join takes an additional job. Tables written in the query itself are still broadcast.
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
    """Provides plain names for files whose paths Spark would interpret as patterns. The names are symbolic
    links in a directory.

    Spark's own option for this, `__globPaths__`, reads some files several times if there are several (4.3.0).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    def of(self, path: Path) -> str:
        """Return a name for a file or directory. It is absolute, because Spark interprets the text before
        the first colon of a relative path as a file system."""
        path = path.absolute()
        if not _PATTERN.search(str(path)):
            return str(path)
        self._folder.mkdir(parents=True, exist_ok=True)
        link = self._folder / f"{self._made}{path.suffix}"
        link.symlink_to(path)
        self._made += 1
        return str(link)


def read_lines(session: SparkSession, intake: Intake, names: PlainNames) -> DataFrame:
    """Return all raw lines of all runs, one row each; `ev` is CORRUPT or UNKNOWN where applicable."""
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
    """Return all rows of converted traces. A column that a file lacks is NULL."""
    reader = session.read.schema(
        StructType([StructField(name, _TYPES[kind]) for name, kind in FIELDS.items()])
    )
    flat: list[str] = []
    #: Files in folders named `column=value`, for which Spark needs the base directory.
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
    """Convert rows with the columns of the schema to rows of the table `events`."""
    digest = fn.when(fn.col("digest").isNotNull(), fn.xxhash64("digest"))
    # Spark sorts to compute a minimum of strings, but hashes for a minimum of numbers.
    chain_key = fn.when(fn.col("chain").isNotNull(), fn.xxhash64("chain"))
    rows = rows.withColumn(FILE, fn.input_file_name()).withColumn("digest", digest)
    rows = rows.withColumn("chain_key", chain_key)
    return rows.withColumnsRenamed(RENAMED)


@contextmanager
def _pool() -> Iterator[ThreadPoolExecutor]:
    """Provide a pool for concurrent queries. If one fails or a signal arrives, the pool does not wait for the
    others, which end with the JVM."""
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


class SparkEngine:
    """Implements `Engine` on a Spark session. Tables are Parquet files below `work_dir`. All workers must
    share this directory, and its path must not contain characters that Spark interprets."""

    def __init__(self, session: SparkSession, work_dir: Path) -> None:
        self._session = session
        self._work_dir = work_dir.absolute()
        self._one_task = False
        self._interpreted = False

    def load(self, intake: Intake) -> None:
        """Create the table `events`. Lines are read once and written as Parquet, one directory per kind of
        line; Parquet files of the trace are read in place."""
        tune(self._session, intake)
        frames = []
        names = PlainNames(self._work_dir / "names")
        if intake.raw:
            path = str(self._work_dir / "events")
            lines = read_lines(self._session, intake, names)
            # The only query over all columns of all rows, so compiling it always pays off.
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
        # A single partition needs no shuffle, so no query has a second stage.
        self._name(name, frame.coalesce(1) if self._one_task else frame)

    def view(self, name: str, sql: str) -> None:
        self._name(name, self._session.sql(sql))

    def _name(self, name: str, frame: DataFrame) -> None:
        # Without the hint Spark sorts both sides of every join. With several tasks, small tables are
        # broadcast.
        hashed = self._one_task and (self._interpreted or name in FEW_ROWS)
        (frame.hint("shuffle_hash") if hashed else frame).createOrReplaceTempView(name)

    def facts(self, queries: Mapping[str, str]) -> None:
        with _pool() as pool:
            list(pool.map(self._fact, queries, queries.values()))

    def _fact(self, name: str, sql: str) -> None:
        if self._one_task and name in PICKED:
            # In a single task no rows are moved, so a view suffices.
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
        # A group may take seconds, so distribute the groups over the cores.
        frame = frame.repartition(4 * self._session.sparkContext.defaultParallelism, "run", "log")
        folded = fn.udf(function, StringType(), useArrow=False)
        path = str(self._work_dir / name)
        results = frame.select("run", "log", folded("kind", "items").alias("found"))
        results.write.mode("overwrite").parquet(path)
        self._table(name, self._session.read.schema(results.schema).parquet(path))

    def rows(self, sql: str) -> list[Row]:
        return [cast(dict[str, Cell], row.asDict()) for row in self._session.sql(sql).collect()]

    def all_rows(self, queries: Mapping[str, str]) -> Iterator[QueryResult]:
        with _pool() as pool:
            for done in as_completed([pool.submit(self._answer, *query) for query in queries.items()]):
                yield done.result()

    def _answer(self, name: str, sql: str) -> QueryResult:
        started = time.monotonic()
        return QueryResult(name, self.rows(sql), time.monotonic() - started)


# Archive of the classes that Spark uses. The JVM maps it into memory instead of finding 24,000 classes in 280
# jars, parsing and verifying them (application class data sharing, JEP 350).
#
# The JVM of the second run writes the archive after the command has ended, because the archive does not pay
# off for a single run. A later run installs it if it is complete, with its checksum in its name: the JVM
# ignores an archive that does not match, but crashes on one that is damaged.

#: Environment variable; `off` disables the use and creation of archives.
VARIABLE = "DLEDGER_CLASS_ARCHIVE"
OFF = "off"
_SUFFIX, _UNFINISHED, _RUN_ONCE = ".jsa", ".unfinished", ".once"
#: Age in seconds after which an unfinished archive belongs to a killed process.
_ABANDONED_S = 600
#: Number of archives to keep, about 190 MB each. One for an older Java or Spark is rarely needed again.
_KEPT = 2
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """A class archive. If `made` is False, the archive does not exist yet, and the JVM writes it when it
    ends."""

    path: Path
    made: bool

    @property
    def options(self) -> str:
        """Return the JVM options, which also suppress all messages about archives."""
        flag = "SharedArchiveFile" if self.made else "ArchiveClassesAtExit"
        return f'-Xshare:auto -Xlog:cds*=off "-XX:{flag}={self.path}"'


def class_archive(
    java_version: str, class_path: Iterable[Path], environment: Mapping[str, str] = os.environ
) -> ClassArchive | None:
    """Return the archive for this Java and these jars.

    None if archives are disabled, if this is the first run, if the directory is unusable, or if another
    process is writing the archive. `java_version`: the output of `java -version`.
    """
    if environment.get(VARIABLE) == OFF:
        return None
    try:
        folder = _cache_dir(environment)
        name = _name(java_version, class_path)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for unfinished in sorted(folder.glob(f"*{_UNFINISHED}")):
            _take_over(unfinished)
        for finished in sorted(folder.glob(f"{name}.*{_SUFFIX}")):
            if finished == _named(finished):
                return ClassArchive(finished, made=True)
            finished.unlink()
        if list(folder.glob(f"{name}.*{_UNFINISHED}")) or not os.access(folder, os.W_OK):
            return None
        first = folder / f"{name}{_RUN_ONCE}"
        if not first.exists():
            first.touch()
            return None
    except (OSError, RuntimeError):
        # Another process has just installed it, the disk fails, or the user has no home directory.
        return None
    return ClassArchive(folder / f"{name}.{os.getpid()}-{time.time_ns()}{_UNFINISHED}", made=False)


def _cache_dir(environment: Mapping[str, str]) -> Path:
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    # The XDG specification requires that relative paths are ignored.
    base = caches if caches.is_absolute() else Path.home() / ".cache"
    return base / "dledger" / "spark-classes"


def _name(java_version: str, class_path: Iterable[Path]) -> str:
    key = hashlib.sha256(java_version.encode())
    for jar in class_path:
        known = jar.stat()
        key.update(f"{jar}\0{known.st_size}\0{known.st_mtime_ns}\0".encode())
    return key.hexdigest()[:32]


def _take_over(unfinished: Path) -> None:
    """Install the archive that a JVM wrote, if it is complete: the JVM writes the header last."""
    with unfinished.open("rb") as file:
        is_complete = any(file.read(4))
    if is_complete:
        unfinished.replace(_named(unfinished))
        by_age = sorted(unfinished.parent.glob(f"*{_SUFFIX}"), key=lambda each: each.stat().st_mtime)
        for old in by_age[:-_KEPT]:
            old.unlink(missing_ok=True)
    elif time.time() - unfinished.stat().st_mtime > _ABANDONED_S:
        unfinished.unlink(missing_ok=True)


def _named(path: Path) -> Path:
    """Return the path for an archive with this content."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return path.with_name(f"{path.name.partition('.')[0]}.{checksum:08x}{_SUFFIX}")

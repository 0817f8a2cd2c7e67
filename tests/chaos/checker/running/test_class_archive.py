"""The archive of classes: who makes it and when it is used, and that a bad one does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from chaos.checker.engines.spark import OFF, VARIABLE, ClassArchive, class_archive

JAVA = "openjdk 17.0.15"
WHOLE, HALF = b"head and body", bytes(4) + b"body"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"classes")
    return path


def archive(cache: Path, jar: Path, java: str = JAVA) -> ClassArchive | None:
    """For a run that is not the first."""
    environment = {"XDG_CACHE_HOME": str(cache)}
    return class_archive(java, [jar], environment) or class_archive(java, [jar], environment)


def make(cache: Path, jar: Path, content: bytes = WHOLE, java: str = JAVA) -> Path:
    """As the JVM does it; where."""
    found = archive(cache, jar, java)
    assert found is not None and not found.made
    found.path.write_bytes(content)
    return found.path


def test_the_first_run_makes_none(tmp_path: Path, jar: Path) -> None:
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert class_archive(JAVA, [jar], environment) is None
    second = class_archive(JAVA, [jar], environment)
    assert second is not None and not second.made


def test_what_one_process_made_others_use(tmp_path: Path, jar: Path) -> None:
    left = make(tmp_path / "cache", jar)
    found = archive(tmp_path / "cache", jar)
    assert found is not None and found.made
    assert found.path.read_bytes() == WHOLE
    assert not left.exists()
    assert f'"-XX:SharedArchiveFile={found.path}"' in found.options
    assert archive(tmp_path / "cache", jar) == found


def test_two_processes_at_once_write_to_different_files_and_one_remains(tmp_path: Path, jar: Path) -> None:
    both = [archive(tmp_path / "cache", jar) for _ in range(2)]
    paths = {one.path for one in both if one is not None and not one.made}
    assert len(paths) == 2
    for path in paths:
        path.write_bytes(WHOLE)
    found = archive(tmp_path / "cache", jar)
    assert found is not None and found.made
    assert list((tmp_path / "cache").rglob("*.[ju]*")) == [found.path]


def test_what_is_being_written_is_neither_used_nor_made_twice(tmp_path: Path, jar: Path) -> None:
    left = make(tmp_path / "cache", jar, HALF)
    assert archive(tmp_path / "cache", jar) is None
    os.utime(left, (0, 0))
    # Its writer was killed long ago.
    found = archive(tmp_path / "cache", jar)
    assert found is not None and not found.made
    assert not left.exists()


def test_a_damaged_archive_is_thrown_away_and_made_anew(tmp_path: Path, jar: Path) -> None:
    make(tmp_path / "cache", jar)
    found = archive(tmp_path / "cache", jar)
    assert found is not None
    for bad in (WHOLE[:-1], b"", WHOLE[:5] + b"B" + WHOLE[6:]):
        found.path.write_bytes(bad)
        again = archive(tmp_path / "cache", jar)
        assert again is not None and not again.made
        assert not found.path.exists()


def test_another_java_or_another_jar_has_another_archive_and_two_are_kept(tmp_path: Path, jar: Path) -> None:
    paths = []
    for number, java in enumerate((JAVA, "openjdk 21", JAVA)):
        jar.write_bytes(b"classes" if number < 2 else b"classes of the next version")
        os.utime(make(tmp_path / "cache", jar, java=java), (number, number))
        found = archive(tmp_path / "cache", jar, java)
        assert found is not None and found.made
        paths.append(found.path)
    assert len(set(paths)) == 3
    assert [path.exists() for path in paths] == [False, True, True]


def test_switched_off_or_without_a_place_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, jar: Path
) -> None:
    off = {"XDG_CACHE_HOME": str(tmp_path / "cache"), VARIABLE: OFF}
    assert class_archive(JAVA, [jar], off) is None
    assert not (tmp_path / "cache").exists()
    assert archive(jar, jar) is None

    def homeless() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.setattr(Path, "home", homeless)
    assert class_archive(JAVA, [jar], {}) is None


_QUERY = """
import sys
import zlib
from pathlib import Path
from chaos.checker.engines.spark import end, start
session = start(Path(sys.argv[1]), master="local[1]", memory="1g", quick=True, archived=True)
(row,) = session.sql("SELECT 40 + 2").collect()
maps = Path("/proc", str(session.sparkContext._gateway.proc.pid), "maps").read_text()
print("sum", row[0], "mapped", "spark-classes" in maps)
end(session, whole=len(sys.argv) < 3)
"""


def run_spark(folder: Path, *arguments: str) -> str:
    """All that it says, once its JVM has ended too."""
    return subprocess.run(
        [sys.executable, "-c", _QUERY, str(folder), *arguments],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    ).stdout


@pytest.mark.xdist_group("spark")
@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(600)
def test_spark_makes_an_archive_uses_it_and_goes_on_without_a_bad_one(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert "sum 42 mapped False" in run_spark(tmp_path)
    assert not list(cache.rglob("*.[ju]*"))
    assert "sum 42 mapped False" in run_spark(tmp_path)
    (left,) = cache.rglob("*.unfinished")
    quiet = run_spark(tmp_path)
    assert "sum 42 mapped True" in quiet
    assert not left.exists()
    (made,) = cache.rglob("*.jsa")
    whole = made.read_bytes()
    made.write_bytes(whole[: len(whole) // 2])
    # It is thrown away, and a JVM that is killed, which was to make another, leaves none.
    assert "sum 42 mapped False" in run_spark(tmp_path, "not whole")
    assert not list(cache.rglob("*.[ju]*"))
    # One that some other JVM made.
    foreign = b"x" * 100_000
    made.with_name(f"{made.name.partition('.')[0]}.{zlib.crc32(foreign):08x}.jsa").write_bytes(foreign)
    said = run_spark(tmp_path)
    assert "sum 42 mapped" in said
    # Java says no more than it says anyway.
    assert len(said.splitlines()) == len(quiet.splitlines()), said

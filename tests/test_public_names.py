"""What both faces of `dledger` offer: all of it can be had, nothing is loaded before it is asked for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import broker_adapter.client
import dledger
import dledger.testing
from dledger.infra.logs import get_logger
from tests.node.local import running_nodes, until
from tests.node.test_bad_days import read_all

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("name", dledger.__all__)
def test_every_name_can_be_had(name: str) -> None:
    assert getattr(dledger, name) is not None


#: Methods of the asyncio classes that only they need.
ASYNC_ONLY = {"has_room", "room", "submit_to", "submit_parts"}
PAIRS = [
    (dledger.AsyncClient, dledger.Client),
    (dledger.Session, dledger.BlockingSession),
    (dledger.Appender, dledger.BlockingAppender),
    *(
        (getattr(broker_adapter.client, name), getattr(broker_adapter.client, f"Blocking{name}"))
        for name in ("Producer", "TransactionProducer", "PullConsumer", "PushConsumer", "Admin")
    ),
]


def public_members(cls: type) -> dict[str, object]:
    return {name: member for name, member in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("asyncio_class", "blocking"), PAIRS, ids=lambda cls: cls.__name__)
def test_a_blocking_class_has_all_methods_with_the_same_parameters(
    asyncio_class: type, blocking: type
) -> None:
    wanted, found = public_members(asyncio_class), public_members(blocking)
    missing = wanted.keys() - found.keys() - ASYNC_ONLY
    if asyncio_class in (dledger.AsyncClient, dledger.Appender):
        missing -= {"appender", "close"}  # a client is its own appender, and closes it
    assert not missing
    for name in wanted.keys() & found.keys():
        if callable(member := wanted[name]):
            other = found[name]
            assert callable(other)
            names = [list(inspect.signature(one).parameters) for one in (member, other)]
            assert names[0] == names[1], name
    if asyncio_class not in (dledger.Session, dledger.Appender):  # clients create these
        names = [list(inspect.signature(one).parameters) for one in (asyncio_class, blocking)]
        assert names[0] == names[1]


def public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    """Functions, constructors and methods, by their name."""
    for module in (dledger, broker_adapter.client):
        for name in module.__all__:
            item = getattr(module, name)
            if inspect.isclass(item):
                yield f"{name}.__init__", item.__init__
                members = public_members(item)
                yield from ((f"{name}.{key}", value) for key, value in members.items() if callable(value))
            elif callable(item):
                yield name, item


#: Words of parameters that limit how long a call waits.
WAITS = re.compile(r"timeout|(^|_)(wait|grace|deadline|within|patience|seconds)(_|$)")


def time_outs(function: Callable[..., object]) -> dict[str, str]:
    """Annotations of the parameters that limit how long a call waits, by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # exceptions and enums have constructors of C
        return {}
    return {one.name: str(one.annotation) for one in parameters if WAITS.search(one.name)}


def is_uniform(name: str, annotation: str) -> bool:
    return name.split("_")[-1] == "timeout" and annotation in {"float", "float | None"}


def test_each_time_out_is_a_float_in_seconds_and_is_called_so() -> None:
    """Three spellings (timeout, timeout_s, timeout_ms) let programs wait a thousand times too long."""
    found = {(of, *row) for of, function in public_callables() for row in time_outs(function).items()}
    assert len(found) > 70
    assert not [row for row in found if not is_uniform(*row[1:])]


@pytest.mark.parametrize("name", ["timeout_s", "timeout_ms", "wait_s", "grace_s", "deadline", "wait"])
def test_other_spellings_of_a_time_out_are_found(name: str) -> None:
    def call(**_: object) -> None: ...

    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation="float")
    call.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    assert time_outs(call) == {name: "float"} and not is_uniform(name, "float")
    assert not is_uniform("timeout", "int")


def test_a_node_is_made_and_run_with_exported_names_and_logs_nothing(tmp_path: Path) -> None:
    code = f"""
import asyncio, dledger
from tests.process.cluster import free_ports

class Nothing:
    def apply(self, entries): pass
    def save(self): return []
    def load(self, chunks): pass

async def main():
    address = f"127.0.0.1:{{free_ports(1)[0]}}"
    place = {{"directory": {str(tmp_path / "n1")!r}, "members": {{"n1": address}}}}
    config = dledger.parse_config({{**place, "node_id": "n1", "cluster_id": "c"}})
    dledger.init_directory(config, data_file_size=1 << 20)
    node = dledger.NodeServer(config, Nothing())
    await node.start()
    async with dledger.AsyncClient(address) as client:
        await client.append(b"x")
    await node.stop()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_public_face_stays_small() -> None:
    assert len(dledger.__all__) <= 48


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="Raft"):
        dledger.Raft  # type: ignore[attr-defined]  # noqa: B018


def test_importing_the_package_alone_loads_no_grpc() -> None:
    code = "import sys, dledger; sys.exit(bool({'grpc', 'dledger.node.server'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def imported_modules(source: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.partition(".")[0] == "dledger"}


def test_a_state_machine_needs_only_what_the_package_exports() -> None:
    assert imported_modules((ROOT / "examples" / "kv.py").read_text()) == {"dledger"}


def documented_examples() -> list[str]:
    text = (ROOT / "docs" / "state-machines.md").read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_example_in_the_documentation_works() -> None:
    source, _ = documented_examples()
    assert imported_modules(source) == {"dledger"}
    names: dict[str, object] = {}
    exec(compile(source, "state-machines.md", "exec"), names)
    make = names["WordCount"]
    assert callable(make)
    one, other = make(), make()
    entries = [dledger.AppliedEntry(3, 1, b"to be or not to be", 0), dledger.AppliedEntry(7, 2, b"be", 66)]
    one.apply(entries)
    other.load(iter(one.save()))
    assert one.counts == other.counts == {b"to": 2, b"be": 3, b"or": 1, b"not": 1}
    machine: dledger.StateMachine = one
    machine.load(())
    assert one.counts == {}


async def test_the_example_of_an_owner_in_the_documentation_works(tmp_path: Path) -> None:
    _, source = documented_examples()
    assert imported_modules(source) == {"dledger"}
    names: dict[str, Any] = {}
    exec(compile(source, "state-machines.md", "exec"), names)
    owners: list[Any] = []
    async with running_nodes(
        tmp_path, owned=True, prepare=lambda node: owners.append(names["Numbered"](node))
    ) as (node,):
        [owner] = owners
        await until(lambda: owner.master is not None)
        await owner.append([b"a", b"b"])
        await owner.append([b"c"])
        assert await read_all(node) == [b"00000000a", b"00000001b", b"00000002c"]


@pytest.mark.parametrize("module", [dledger, dledger.testing, broker_adapter.client])
def test_the_page_of_the_python_api_lists_the_public_names(module: ModuleType) -> None:
    page = (ROOT / "docs" / "python-api.md").read_text()
    section = page.split(f"\n## {module.__name__}\n")[1].split("\n## ")[0]
    first_cells = "".join(re.findall(r"^\| ([^|]*)\|", section, re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(module.__all__)


def test_a_line_for_logging_can_be_encoded(caplog: pytest.LogCaptureFixture) -> None:
    """The handlers of a program may write files of strict UTF-8."""
    get_logger("part").warning("not opened", path="\udcff")
    assert "udcff" in caplog.text.encode("utf-8").decode("utf-8")

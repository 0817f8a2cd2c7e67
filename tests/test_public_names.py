"""What both faces of `dledger` offer: all of it can be had, nothing is loaded before it is asked for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dledger
import dledger.platform
from tests.node.local import running_nodes, until
from tests.node.test_bad_days import read_all

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    ("face", "name"), [(face, name) for face in (dledger, dledger.platform) for name in face.__all__]
)
def test_every_name_can_be_had(face: ModuleType, name: str) -> None:
    assert getattr(face, name) is not None


def test_no_name_has_two_homes() -> None:
    assert set(dledger.__all__).isdisjoint(dledger.platform.__all__)


def test_the_public_face_stays_small() -> None:
    assert len(dledger.__all__) <= 40


@pytest.mark.parametrize("face", [dledger, dledger.platform])
def test_other_names_are_not_there(face: ModuleType) -> None:
    with pytest.raises(AttributeError, match="Raft"):
        face.Raft  # noqa: B018


def test_importing_the_packages_alone_loads_no_grpc() -> None:
    code = "import sys, dledger.platform; sys.exit(bool({'grpc', 'dledger.node.server'} & {*sys.modules}))"
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

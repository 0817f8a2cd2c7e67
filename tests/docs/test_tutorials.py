"""The tutorials and the README can be followed as they stand, in an empty directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients import installed
from tests.docs.pages import ROOT, blocks_of
from tests.docs.tutorial import matches, steps_of

PAGES = {
    path.stem: path for path in (ROOT / "README.md", *sorted((ROOT / "docs" / "tutorials").glob("*.md")))
}
#: A network and processes of its own: the page's ports are free, and nothing outlives the test.
_NAMESPACE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def test_there_is_a_tutorial_for_each_kind_of_reader() -> None:
    assert set(PAGES) == {"README", "broker", "failover", "log"}


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_file_of_the_page_is_used(name: str) -> None:
    text = PAGES[name].read_text()
    used = {block for step in steps_of(text) for block in (step.block, step.output)}
    assert [block.text for block in blocks_of(text) if block.text not in used] == []


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a", "a\n", True),
        ("a", "b\n", False),
        ("...\na", "a", True),
        ("...\na", "x\ny\na", True),
        ("...\na", "xa", False),
        ("a\n...", "a", True),
        ("a\n...", "a\nb\n", True),
        ("a\n...", "ab", False),
        ("...1 passed...", ". [100%]\n1 passed in 2 s\n", True),
        ("a.b", "axb", False),
    ],
)
def test_outputs_are_compared(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("tutorials")
@pytest.mark.parametrize("name", PAGES)
def test_the_page_can_be_followed(name: str, tmp_path: Path) -> None:
    if name == "broker":
        installed.require("python")
    command = [sys.executable, "-m", "tests.docs.tutorial", str(PAGES[name]), str(tmp_path)]
    if subprocess.run([*_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0:
        command = [*_NAMESPACE, *command, "--own-network"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr

"""docs/deploy.md names every file of examples/deploy."""

from __future__ import annotations

import re
import subprocess

from tests.docs.pages import ROOT


def test_every_file_is_named_on_the_page() -> None:
    page = (ROOT / "docs/deploy.md").read_text()
    linked = set(re.findall(r"\(\.\./(examples/deploy/[^)]+)\)", page))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "examples/deploy"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert linked == {name for name in listed.stdout.split() if (ROOT / name).exists()}

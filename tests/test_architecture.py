"""Links and anchors of every page lead somewhere, and the index of docs/ names every page."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import blocks_of, markdown_pages

ROOT = Path(__file__).resolve().parent.parent
PAGES = markdown_pages()
_LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")


def links(page: str) -> list[tuple[str, str]]:
    return [(m["text"], m["target"]) for m in _LINK.finditer((ROOT / page).read_text())]


def defined_in(path: Path) -> set[str]:
    """Names of the functions and classes of a module, methods as Class.method."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (n for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
            names.update(f"{node.name}.{n.name}" for n in inner)
    return names


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub makes of the headings of a page. Of equal headings the second one gets -1."""
    text = page.read_text()
    code = {block.line + i for block in blocks_of(text) for i in range(block.text.count("\n") + 1)}
    found: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#") and number not in code:
            found[re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower()).replace(" ", "-")] += 1
    repeated = (f"{words}-{i}" for words, count in found.items() for i in range(1, count))
    return frozenset((*found, *repeated))


def faults_of(page: str) -> list[str]:
    found = []
    for text, target in links(page):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = ((ROOT / page).parent / name).resolve() if name else ROOT / page
        if not path.exists():
            found.append(f"{page}: {target} does not exist")
        elif anchor and anchor not in anchors(path):
            found.append(f"{page}: {target}: no such heading")
        elif path.suffix == ".py" and text.strip("`") not in defined_in(path) and text.startswith("`"):
            found.append(f"{page}: {name} does not define {text}")
    return found


def test_every_method_in_the_diagrams_of_the_architecture_exists() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = {name for block in blocks_of(text) for name in re.findall(r"\b[A-Z]\w+\.\w+", block.text)}
    defined = set[str]()
    for package in ("broker_adapter", "dledger"):
        for path in (ROOT / package).rglob("*.py"):
            defined |= defined_in(path)
    assert named > {"Dispatch.answer", "Replica.flush"}
    assert named - defined == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    assert faults_of(page) == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_every_path_of_this_repository_that_a_page_names_exists(page: str) -> None:
    """The change log names what there was. Paths with a placeholder (TARGET, *) name a kind of files."""
    paths = re.findall(r"`((?:broker_adapter|dledger|chaos|tests)/[a-z_0-9/.]*)`", (ROOT / page).read_text())
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_page_is_in_the_index() -> None:
    indexed = {target for _, target in links("docs/README.md")}
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if page not in indexed | {"README.md"}]
    assert missing == []


def test_a_wrong_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("def f(): ...\n")
    (tmp_path / "p.md").write_text("# H e\n[`f`](a.py) [x](#h-e) [`g`](a.py) [x](b.py) [y](p.md#no)\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert len(faults_of("p.md")) == 3

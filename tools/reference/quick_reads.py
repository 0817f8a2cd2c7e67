"""Which fields of which lines the quick check looks at, read from its syntax tree.

A line gets into a function by a loop over `events_of(..., kinds)` or as an argument named `event`; what is
asked of it (`event["x"]`, `event.get("x")`, `"x" in event`) is read of these kinds.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from chaos.quick import check
from chaos.trace.schema import EVENTS, Ev
from tools.reference.lineage import Atom, Atoms

_EVENT = "event"


def quick_reads() -> Atoms:
    """What the modules of `chaos.quick` read. Kinds are told apart by `ev` only."""
    # Functions of one name are taken together.
    functions = [
        node
        for path in sorted(Path(check.__file__).parent.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    kinds: dict[str, set[Ev]] = defaultdict(set)
    while True:
        before = {name: set(found) for name, found in kinds.items()}
        for function in functions:
            kinds[function.name].update(_looped_over(function))
            for called in _handed_to(function):
                kinds[called] |= kinds[function.name]
        if before == dict(kinds):
            break
    found = {(ev, name) for node in functions for ev in kinds[node.name] for name in _asked_for(node)}
    return frozenset(
        Atom(ev, what, name)
        for (ev, what), event in EVENTS.items()
        for name in (*event.required, *event.optional)
        if (ev, name) in found
    )


def _looped_over(function: ast.FunctionDef) -> Iterator[Ev]:
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "events_of":
            for argument in node.args:
                if isinstance(argument, ast.Tuple):
                    for one in argument.elts:
                        assert isinstance(one, ast.Constant)
                        yield Ev(str(one.value))


def _handed_to(function: ast.FunctionDef) -> Iterator[str]:
    """The functions that it gives its line to."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and any(
            isinstance(one, ast.Name) and one.id == _EVENT for one in node.args
        ):
            yield node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _asked_for(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Subscript(value=ast.Name(id=of), slice=ast.Constant(value=str(name))):
                pass
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=of), attr="get"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                pass
            case ast.Compare(left=ast.Constant(value=str(name)), comparators=[ast.Name(id=of)]):
                pass
            case _:
                continue
        if of == _EVENT:
            yield name

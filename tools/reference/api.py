"""docs/reference/api.md: what `dledger` (both faces) and the client of the broker offer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from enum import Enum
from types import ModuleType
from typing import Any

import broker_adapter.client
import dledger
import dledger.platform
from tools.reference.markdown import GENERATED

_PAGE = """# Python API

This page is for programmers who look up a name. Examples are in the [README](../../README.md), in
[state machines](../state-machines.md) and in [the broker's Python client](../remoting-client.md).
Errors are in [guarantees](../guarantees.md#what-an-answer-means) and [troubleshooting](troubleshooting.md).
"""
#: Longer enumerations are cut; that of the error numbers is a page of its own.
_SHOWN_VALUES = 12


def page() -> str:
    lines = [GENERATED, "", *_PAGE.splitlines()]
    for module in (dledger, dledger.platform, broker_adapter.client):
        names = sorted(module.__all__, key=str.lower)
        lines += ["", f"## {module.__name__}", "", inspect.cleandoc(module.__doc__ or ""), ""]
        lines.append(", ".join(f"[{name}](#{anchor(module, name)})" for name in names))
        for name in names:
            lines += ["", f"### {module.__name__}.{name}", "", *about(getattr(module, name))]
    return "\n".join(lines) + "\n"


def anchor(module: ModuleType, name: str) -> str:
    return re.sub(r"[^\w\- ]", "", f"{module.__name__}.{name}".lower())


def about(value: Any) -> list[str]:
    """A class with its public methods, a function, a module or a constant."""
    if inspect.isclass(value):
        return _class(value)
    if inspect.isroutine(value):
        return [*_code(signature(value, value.__name__)), "", *_text(value)]
    if inspect.ismodule(value):
        return _text(value)
    if isinstance(value, dict):
        return [f"A table of {len(value)} entries."]
    if type(value).__module__ != "builtins":
        return [f"The `{type(value).__name__}` of this process.", "", *_text(type(value))]
    return _code(repr(value))


def _class(cls: type) -> list[str]:
    lines = [*_code(_head(cls)), "", *_text(cls)]
    if issubclass(cls, Enum):
        values = [f"`{member.name}`" for member in cls]
        shown = values if len(values) <= _SHOWN_VALUES else [*values[:_SHOWN_VALUES], "..."]
        return [*lines, "", f"Values: {', '.join(shown)}"]
    for name, member in public_members(cls):
        if isinstance(member, property):
            lines += ["", f"- **{name}**{_returned(member.fget)}", *_indented(_text(member))]
        else:
            lines += ["", f"- **{signature(member, name)}**", *_indented(_text(member))]
    return lines


def public_members(cls: type) -> Iterable[tuple[str, Any]]:
    """Methods and properties that the class, or a private base of it, defines, in their order."""
    seen = set()
    for base in cls.__mro__:
        if base is object or not base.__module__.startswith(("dledger", "broker_adapter")):
            continue
        for name, member in vars(base).items():
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if name.startswith("_") or name in seen or name in getattr(cls, "__dataclass_fields__", {}):
                continue
            if isinstance(plain, property) or inspect.isfunction(plain):
                seen.add(name)
                yield name, plain


def _head(cls: type) -> str:
    if issubclass(cls, BaseException | Enum) or getattr(cls, "_is_protocol", False):
        return f"class {cls.__name__}({', '.join(base.__name__ for base in cls.__bases__)})"
    return f"class {signature(cls, cls.__name__)}"


def signature(value: Any, name: str) -> str:
    """As it is written, without `self` and without addresses of objects."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"{name}(...)"
    parameters = [
        one if one.annotation is one.empty else one.replace(annotation=_AsWritten(one.annotation))
        for key, one in found.parameters.items()
        if key not in ("self", "cls")
    ]
    returned = found.return_annotation
    if returned is not found.empty:
        returned = found.empty if inspect.isclass(value) else _AsWritten(returned)
    text = str(found.replace(parameters=parameters, return_annotation=returned))
    prefix = "async " if inspect.iscoroutinefunction(value) else ""
    return prefix + name + re.sub(r" at 0x[0-9a-f]+", "", text)


class _AsWritten:
    """An annotation that is shown as the source has it, whatever the version of Python."""

    def __init__(self, annotation: Any) -> None:
        self._text = getattr(annotation, "__forward_arg__", annotation)

    def __repr__(self) -> str:
        return self._text if isinstance(self._text, str) else inspect.formatannotation(self._text)


def _returned(getter: Any) -> str:
    hint = getattr(getter, "__annotations__", {}).get("return", "")
    return f": {hint}" if hint else ""


def _text(value: Any) -> list[str]:
    return inspect.cleandoc(inspect.getdoc(value) or "").splitlines()


def _code(text: str) -> list[str]:
    return ["```python", text, "```"]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}".rstrip() for line in lines]

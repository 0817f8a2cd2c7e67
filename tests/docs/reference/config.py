"""docs/reference/config.md: every key of every configuration file, from the pydantic models.

The description of a key is the string below its declaration.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from enum import Enum, Flag
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from broker_adapter.config.settings import BrokerSettings
from broker_adapter.endpoints.access.accounts import Accounts
from broker_adapter.namesrv.config import NameServerConfig
from chaos.plans.scenario import Scenario
from dledger.node.setup.config import NodeConfig
from tests.docs.reference.markdown import GENERATED, paragraph, table

_HEAD = ("key", "type", "default", "meaning")
_PAGE = """# Configuration keys

This page is for operators who look up a key, its type and its default. The keys to review before the first
start are in [operations](../operations.md#configuration). All files are TOML. Programs reject unknown keys
and invalid values with 630, and the message names the valid keys. Keys of a node and of a NameServer can be
overridden on the command line: `--set timing.election_min_ms=2000`. The unit of keys that end in `_ms` is
milliseconds.
"""
#: Heading, description of the file, and its model.
_FILES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    ("Node", "`dledger server --config FILE`.", NodeConfig),
    ("Broker", "`[program.settings]` in the file of a node.", BrokerSettings),
    ("File of accounts", "The file configured as `rocketmq_v2.access_control` of a broker.", Accounts),
    ("NameServer", "`dledger-namesrv run --config FILE`.", NameServerConfig),
    ("Chaos scenario", "`dledger-chaos run FILE`. Times count from the end of the warm-up.", Scenario),
)


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The string below each field's declaration, by field."""
    [definition] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(definition, ast.ClassDef)
    found = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            found[field.target.id] = " ".join(text.value.value.split())
    return found


def section_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The model behind an annotation, if any, and whether there may be several."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    for argument in get_args(annotation):
        found, _ = section_of(argument)
        if found is not None:
            return found, get_origin(annotation) is tuple
    return None, False


def keys_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of each key, sections in their place."""
    texts = descriptions(model)
    for name, field in model.model_fields.items():
        inner, several = section_of(field.annotation)
        if inner is None:
            yield f"{prefix}{name}", type_of(field), default_of(name, field), texts.get(name, "")
        else:
            yield from keys_of(inner, f"{prefix}{name}{'[]' if several else ''}.")


def type_of(field: FieldInfo) -> str:
    return ", ".join([_name_of(field.annotation), *_bounds(field.metadata), *_inner_bounds(field.annotation)])


def _inner_bounds(annotation: Any) -> Iterator[str]:
    """Of `Annotated[int, Field(gt=0)] | None`."""
    if get_origin(annotation) in (Union, UnionType):
        for one in get_args(annotation):
            for inner in getattr(one, "__metadata__", ()):
                yield from _bounds(getattr(inner, "metadata", [inner]))


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    for bound in metadata:
        match bound:
            case Gt(gt=value):
                yield f"above {value:,}"
            case Ge(ge=value):
                yield f"from {value:,}"
            case Lt(lt=value):
                yield f"below {value:,}"
            case Le(le=value):
                yield f"up to {value:,}"


def _name_of(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _name_of(arguments[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" if value != "" else "empty" for value in arguments)
    if origin in (Union, UnionType):
        names = list(dict.fromkeys(_name_of(one) for one in arguments if one is not NoneType))
        return (", " if all(name.startswith("`") for name in names) else " or ").join(names)
    if origin is tuple:
        return f"list of {_name_of(arguments[0])}"
    if origin is dict:
        return f"table of {_name_of(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, Flag):
        return "right"
    plain_names = {"str": "text", "int": "integer", "float": "number", "bool": "boolean", "Path": "path"}
    plain = getattr(annotation, "__name__", str(annotation))
    if annotation is SecretStr:
        return "text"
    return plain_names.get(plain, "network" if "Network" in plain else "any value")


def default_of(name: str, field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, Flag | Enum):
        return f"`{value.name}`"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return _size(value) if "bytes" in name or "size" in name else f"{value:,}"
    if value in ("", (), {}):
        return "empty"
    return f"`{value}`" if isinstance(value, str) else f"{value:g}"


def _size(value: int) -> str:
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value % (1 << shift) == 0 and value >> shift:
            return f"{value:,} ({value >> shift:,} {unit})"
    return f"{value:,}"


def page() -> str:
    lines = [GENERATED, "", *_PAGE.splitlines()]
    for heading, what, model in _FILES:
        lines += ["", f"## {heading}", "", f"{what} {re.sub(r' +', ' ', paragraph(model.__doc__))}", ""]
        lines += table(_HEAD, ((f"`{key}`", *rest) for key, *rest in keys_of(model)))
    return "\n".join(lines) + "\n"

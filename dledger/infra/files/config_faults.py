"""TOML configuration, validated against a model, with readable errors.

Every error names the key, the fault, and the valid values.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from dledger.errors import Code, ConfigError
from dledger.infra.similar_names import did_you_mean

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file. Raises ConfigError, which names the file."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    # includes numbers that are too long and brackets that nest too deep
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None


def check_keys(model: type[BaseModel], content: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError for a key at the top of the file that the model does not have."""
    if faults := [_unknown_key([key], model) for key in content if key not in model.model_fields]:
        raise ConfigError(f"{where}: {'; '.join(faults)}", code=Code.CONFIG_INVALID)


def validate(model: type[M], content: Mapping[str, Any], where: str) -> M:
    """Validate a mapping against a model. Raises ConfigError, which names each invalid key and the valid
    values."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        faults = "; ".join(_faults(error, model))
        raise ConfigError(f"{where}: {faults}", code=Code.CONFIG_INVALID) from None


def _faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    for fault in error.errors():
        place = [str(part) for part in fault["loc"] if not str(part).startswith(("function-", "literal"))]
        key = ".".join(place)
        if fault["type"] == "extra_forbidden":
            yield _unknown_key(place, model)
        elif fault["type"] == "missing":
            yield f"{key} is missing"
        else:
            message = fault["msg"].removeprefix("Value error, ")
            message = message[0].lower() + message[1:]
            value = fault["input"]
            shown = "" if isinstance(value, Mapping | BaseModel) or not place else f" (it is {value!r})"
            yield f"{key}: {message}{shown}" if key else message


def _unknown_key(place: list[str], model: type[BaseModel]) -> str:
    section = model
    for part in place[:-1]:
        inner = _section_of(section.model_fields[part].annotation) if part in section.model_fields else None
        if inner is None:
            break
        section = inner
    valid = list(section.model_fields)
    same_name = [key for key in _keys(model) if key.split(".")[-1] == place[-1]]  # in other sections
    hint = f"did you mean {' or '.join(same_name)}?" if same_name else did_you_mean(place[-1], valid)
    separator = " " if hint else ""
    return f"unknown key {'.'.join(place)}: {hint}{separator}valid keys are {', '.join(valid)}"


def _keys(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """Return the paths of all keys, with those of the sections below."""
    for name, field in model.model_fields.items():
        yield f"{above}{name}"
        if (section := _section_of(field.annotation)) is not None:
            yield from _keys(section, f"{above}{name}.")


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model of a section, which may be optional, or None if the key is not a section."""
    inner = next((one for one in get_args(annotation) if one is not type(None)), annotation)
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None

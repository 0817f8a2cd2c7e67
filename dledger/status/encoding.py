"""Converts NodeStatus to and from JSON. The field names are the same as in the proto, so all formats have the
same fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import Any, TypeVar

from dledger.status.model import DamagedRange, ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

_T = TypeVar("_T", MemberAddress, FollowerStatus, ElectionEvent, DamagedRange, NodeStatus)


def node_status_to_json(status: NodeStatus) -> dict[str, Any]:
    """Return plain values that json.dumps accepts."""
    return asdict(status)


def node_status_from_json(data: Mapping[str, Any]) -> NodeStatus:
    """Parse the output of node_status_to_json. Raises ValueError if a field is missing or has the wrong type.

    Ignores fields of newer versions.
    """
    try:
        return _status(dict(data))
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"the data is not a node status: {error}") from None


def _status(values: dict[str, Any]) -> NodeStatus:
    values["members"] = tuple(_build(MemberAddress, item) for item in values.get("members", ()))
    values["followers"] = tuple(_build(FollowerStatus, item) for item in values.get("followers", ()))
    values["elections"] = tuple(_build(ElectionEvent, item) for item in values.get("elections", ()))
    values["damaged"] = tuple(_build(DamagedRange, item) for item in values.get("damaged", ()))
    for name in ("limits_hit", "clocks"):
        values[name] = {str(key): int(value) for key, value in values.get(name, {}).items()}
    return _build(NodeStatus, values)


def _build(cls: type[_T], data: Mapping[str, Any]) -> _T:
    known: tuple[Field[Any], ...] = fields(cls)
    missing = [
        f.name for f in known if f.name not in data and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{cls.__name__}: missing fields: {', '.join(missing)}")
    return cls(**{f.name: data[f.name] for f in known if f.name in data})

"""NodeStatus as JSON and back. Field names are those of the proto, so that all forms show the same facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields
from typing import Any, TypeVar

from dledger.status.model import DamagedRange, ElectionEvent, FollowerStatus, MemberAddress, NodeStatus

_T = TypeVar("_T", MemberAddress, FollowerStatus, ElectionEvent, DamagedRange, NodeStatus)


def node_status_to_json(status: NodeStatus) -> dict[str, Any]:
    """Plain values only: what json.dumps takes."""
    return asdict(status)


def node_status_from_json(data: Mapping[str, Any]) -> NodeStatus:
    """The inverse of node_status_to_json. ValueError when a field is missing, or is none of its kind.

    Fields that a newer node may send are ignored.
    """
    try:
        return _status(dict(data))
    except (TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"no status of a node: {error}") from None


def _status(values: dict[str, Any]) -> NodeStatus:
    values["members"] = tuple(_build(MemberAddress, item) for item in values.get("members", ()))
    values["followers"] = tuple(_build(FollowerStatus, item) for item in values.get("followers", ()))
    values["elections"] = tuple(_build(ElectionEvent, item) for item in values.get("elections", ()))
    values["damaged"] = tuple(_build(DamagedRange, item) for item in values.get("damaged", ()))
    values["limits_hit"] = {str(name): int(hits) for name, hits in values.get("limits_hit", {}).items()}
    return _build(NodeStatus, values)


def _build(cls: type[_T], data: Mapping[str, Any]) -> _T:
    known: tuple[Field[Any], ...] = fields(cls)
    missing = [
        f.name for f in known if f.name not in data and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise ValueError(f"{cls.__name__}: missing {', '.join(missing)}")
    return cls(**{f.name: data[f.name] for f in known if f.name in data})

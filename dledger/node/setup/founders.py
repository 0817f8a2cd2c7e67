"""The members of an empty log."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.core.membership_change import first_members, unknown_members
from dledger.core.values import Membership
from dledger.errors import Code, ConfigError
from dledger.infra.logs import get_logger
from dledger.store.api import LogStore

_log = get_logger("node")


def founders(configured: Mapping[str, str], store: LogStore) -> Membership:
    """Return the members of an empty log: those of the directory, with the configured addresses.

    A node that was added later learns them with the log. Raises ConfigError if the configuration names no
    other node.
    """
    identity = store.identity
    if identity.is_joined:
        if recorded := store.hard_state.memberships:
            return recorded[0].membership
        if len(configured) == 1:
            text = "members must name the current members of the group in addition to this node"
            raise ConfigError(text, code=Code.CONFIG_INVALID)
        return unknown_members(configured, identity.node_id)
    first = identity.members or tuple(configured)
    if (differing := {*first} ^ {*configured}) and not store.hard_state.memberships:
        _log.warning(
            "members differs from the first members of the group, which count until the log has others: "
            "change the members with `dledger member`",
            differing=", ".join(sorted(differing)),
            first=", ".join(first),
        )
    return first_members({node_id: configured.get(node_id, "") for node_id in first})


def recorded_addresses(store: LogStore) -> dict[str, str]:
    """Return the addresses of the newest configuration that the log had when the node stopped; empty: the
    first one."""
    recorded = store.hard_state.memberships
    if not recorded:
        return {}
    return {member.node_id: member.address for member in recorded[-1].membership.identities}

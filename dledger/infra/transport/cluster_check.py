"""Refuses calls that are meant for another cluster.

A client may know an address at which another cluster serves now: a member was recovered as a new cluster, or
a learner was promoted to one. A client that is bound to a cluster therefore names it in the metadata of its
calls. A client that is not, or is older, names none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from dledger.errors import Code
from dledger.infra.transport.handlers import Handler

#: Metadata key of a call, with the cluster id in UTF-8.
CLUSTER_KEY: Final = "dledger-cluster-bin"
#: Prefix of the details of a refused call, which was not processed.
OTHER_CLUSTER: Final = f"{int(Code.UNKNOWN_CLUSTER)} {Code.UNKNOWN_CLUSTER.name}"


def cluster_metadata(cluster_id: str | None) -> tuple[tuple[str, bytes], ...] | None:
    """Return the metadata of calls for a cluster, None if they may be for any."""
    return None if cluster_id is None else ((CLUSTER_KEY, cluster_id.encode()),)


def for_cluster(handler: Handler, cluster_id: str) -> Handler:
    """Wrap a method of a node of `cluster_id`, which is no generator. A call for another cluster ends with
    FAILED_PRECONDITION, and 620 in its details."""
    kind = {
        (False, False): "unary_unary",
        (False, True): "unary_stream",
        (True, True): "stream_stream",
    }[handler.request_streaming, handler.response_streaming]
    method: Any = handler
    return method._replace(**{kind: _checked(getattr(method, kind), cluster_id)})  # type: ignore[no-any-return]


def _checked(behavior: Callable[..., Any], cluster_id: str) -> Callable[..., Any]:
    expected = cluster_id.encode()

    async def check(context: Any) -> None:
        for key, value in context.invocation_metadata() or ():
            if key == CLUSTER_KEY and value != expected:
                meant = value.decode(errors="replace") if isinstance(value, bytes) else value
                text = f"{OTHER_CLUSTER}: this node belongs to cluster {cluster_id!r}, not to {meant!r:.200}"
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)

    async def answer(request: Any, context: Any) -> Any:
        await check(context)
        return await behavior(request, context)

    return answer

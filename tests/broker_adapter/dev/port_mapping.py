"""A development broker behind mapped ports, as in a container: clients know only the mapped ones."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from broker_adapter.testing import DevProcess

#: Where the broker listens. Clients are never given this address.
INSIDE = "127.0.0.2"
OUTSIDE = "127.0.0.1"
_BYTES = 64 << 10


class PortMapping:
    """Ports of this machine that lead to others. Runs on an event loop of its own, in a thread."""

    def __init__(self) -> None:
        #: Connections by name of the port.
        self.connections: Counter[str] = Counter()
        #: Mapped ports by name.
        self.ports: dict[str, int] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def address(self, name: str) -> str:
        return f"localhost:{self.ports[name]}"

    def add(self, targets: Mapping[str, str]) -> None:
        """Map a port to each host:port."""
        asyncio.run_coroutine_threadsafe(self._add(targets), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _add(self, targets: Mapping[str, str]) -> None:
        for name, target in targets.items():
            server = await asyncio.start_server(self._joined(name, target), OUTSIDE, 0)
            self.ports[name] = server.sockets[0].getsockname()[1]

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _joined(self, name: str, target: str) -> Any:
        async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections[name] += 1
            host, _, port = target.rpartition(":")
            try:
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.close()
                return
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))

        return join


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def put(page: str, body: object, headers: Mapping[str, str] = MappingProxyType({})) -> tuple[int, Any]:
    """Send `PUT /advertise`, with `body` as JSON unless it is bytes. Return the status and the response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{page}advertise", data, dict(headers), method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@contextmanager
def mapped_broker(
    folder: Path, advertise: str, names: Sequence[str], options: Sequence[str] = ()
) -> Iterator[tuple[DevProcess, PortMapping]]:
    """Start a broker with `--advertise ADVERTISE`, and map a port to each of its ports in `names`.

    Nothing is advertised yet. Other ports of the broker have no mapped port.
    """
    mapping = PortMapping()
    try:
        with DevProcess(folder, ["--listen", INSIDE, "--advertise", advertise, *options]) as broker:
            mapping.add({name: str(broker.addresses[name]) for name in names if name != "page"})
            if "page" in names:
                mapping.add({"page": broker.page.split("/")[2]})
            yield broker, mapping
    finally:
        mapping.close()


@contextmanager
def advertised_broker(folder: Path, *names: str) -> Iterator[tuple[DevProcess, PortMapping]]:
    """Start a broker, map its ports in `names`, and advertise them as a test with containers does."""
    with mapped_broker(folder, "later", ["page", *names]) as (broker, mapping):
        ports = {name: mapping.ports[name] for name in names if name in ("broker", "send_only")}
        status, said = put(f"http://{mapping.address('page')}/", {"host": "localhost", **ports})
        assert status == 200, said
        yield broker, mapping

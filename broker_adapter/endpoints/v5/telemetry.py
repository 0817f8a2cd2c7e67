"""The telemetry stream of one client, which transmits its settings and the server's commands.

Other calls do not depend on this stream, because some clients take minutes to reopen it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_adapter.api import GroupConfig
from broker_adapter.endpoints.context import NODE_JS, CallContext
from broker_adapter.endpoints.directory import Directory
from broker_adapter.endpoints.names import group_of, topic_of
from broker_adapter.endpoints.rejected import Code, Rejected, ok, status_of
from broker_adapter.endpoints.v5.clients import ClientInfo, ClientStreams
from broker_adapter.endpoints.v5.messages.client_settings import SettingsLimits, answered
from broker_adapter.v2 import definition_pb2 as pb
from broker_adapter.v2 import service_pb2 as calls
from dledger.infra.quotas import client_of

#: Maximum number of queued commands, and of their bytes. Some commands contain a message.
_MAX_WAITING, _MAX_WAITING_BYTES = 64, 8 << 20
#: Maximum number of topics remembered per producer.
_MAX_TOPICS = 256
#: Maximum size of a client's command (bytes). Settings are stored while the stream is open, and sent again.
MAX_COMMAND_BYTES = 64 << 10
#: Minimum size of a command that is parsed in its own step of the event loop (bytes). Settings normally have
#: a few hundred bytes.
LARGE_COMMAND_BYTES = 4 << 10
#: Delay before settings are sent again, because Node.js clients may not be reading when the first response
#: arrives (seconds).
_AGAIN_AFTER_S = 1.0

#: Calls a function after some seconds.
Later = Callable[[float, Callable[[], None]], object]


class TelemetryStream:
    """Implements `clients.Stream`.

    Call `heard` with each command of the client. `next_to_write` returns the next command to write, and
    `wake` is called when there are more.
    """

    def __init__(
        self,
        context: CallContext,
        streams: ClientStreams,
        directory: Directory,
        limits: SettingsLimits,
        *,
        later: Later,
        wake: Callable[[], None],
        may_receive: Callable[[calls.TelemetryCommand], bool] = lambda _: True,
    ) -> None:
        """`may_receive` returns True if the client may receive a command.

        The caller must call `close` at the end of the stream. Raises Rejected (TOO_MANY_REQUESTS).
        """
        self._waiting: deque[tuple[calls.TelemetryCommand, int]] = deque()  # with sizes
        self._waiting_bytes = 0  # including the command being written
        self._writing_bytes = 0
        self._context = context
        self._streams = streams
        self._directory = directory
        self._limits = limits
        self._later = later
        self._wake = wake
        self._may_hear = may_receive
        self._is_open = True
        self._client_settings: pb.Settings | None = None
        self._answer: calls.TelemetryCommand | None = None
        self._address = client_of(context.remote)
        self._kept_bytes = 0  # size of the kept settings
        streams.add(context.client_id, self, self._address, context.account)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._keep(0)
            while self.next_to_write() is not None:
                pass
            self._streams.remove(self._context.client_id, self, self._address)

    def queue_command(self, command: calls.TelemetryCommand) -> bool:
        if not self._is_open or len(self._waiting) >= _MAX_WAITING or not self._may_hear(command):
            return False
        size = command.ByteSize()
        after = self._waiting_bytes + size
        if (self._waiting and after > _MAX_WAITING_BYTES) or not self._make_waiting(after):
            return False
        self._waiting.append((command, size))
        self._wake()
        return True

    def next_to_write(self) -> calls.TelemetryCommand | None:
        """Return the next command, or None if no command is queued.

        The call also reports that the previous command was written. Until then, that command counts against
        the limit, because the client may be slow.
        """
        self._make_waiting(self._waiting_bytes - self._writing_bytes)
        self._writing_bytes = 0
        if not self._waiting:
            return None
        command, self._writing_bytes = self._waiting.popleft()
        return command

    def _make_waiting(self, size: int) -> bool:
        """Change the number of queued bytes. Return False if they exceed the limit."""
        if not self._streams.commands_room.resize(self._address, self._waiting_bytes, size):
            return False
        self._waiting_bytes = size
        return True

    def heard(self, command: calls.TelemetryCommand) -> None:
        """Handle a client's command. All commands except settings are ignored."""
        if command.WhichOneof("command") != "settings":
            return
        try:
            if (size := command.ByteSize()) > MAX_COMMAND_BYTES:
                text = f"the settings have {size} bytes, more than {MAX_COMMAND_BYTES}"
                raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
            info, settings = self._settled(command.settings)
            if not self._keep(size):
                text = f"settings of {size} bytes exceed this client's share of the memory for settings"
                raise Rejected(Code.TOO_MANY_REQUESTS, text)
        except Rejected as error:
            self.queue_command(calls.TelemetryCommand(status=status_of(error)))
            return
        self._client_settings = command.settings
        self._streams.describe(self._context.client_id, self, info)
        self._send_settings(calls.TelemetryCommand(status=ok(), settings=settings))
        if self._context.language == NODE_JS:
            self._later(_AGAIN_AFTER_S, self._repeat)

    def _keep(self, size: int) -> bool:
        """Reserve memory for new settings in place of the previous ones.

        Return False if they exceed the limit.
        """
        if not self._streams.settings_room.resize(self._address, self._kept_bytes, size):
            return False
        self._kept_bytes = size
        return True

    def renew(self) -> None:
        """Send the settings again if they have changed."""
        if self._client_settings is None or not self._is_open:
            return
        answer = calls.TelemetryCommand(status=ok(), settings=self._settled(self._client_settings)[1])
        if answer != self._answer:
            self._send_settings(answer)

    def _send_settings(self, answer: calls.TelemetryCommand) -> None:
        """Queue settings, replacing any that are queued, because a slow client needs only the newest."""
        others = [one for one in self._waiting if one[0] is not self._answer]
        if len(others) < len(self._waiting):
            self._waiting = deque(others)
            self._make_waiting(self._writing_bytes + sum(size for _, size in others))
        self._answer = answer
        self.queue_command(answer)

    def _repeat(self) -> None:
        """Send the newest settings again."""
        if self._answer is not None:
            self.queue_command(self._answer)

    def _settled(self, settings: pb.Settings) -> tuple[ClientInfo, pb.Settings]:
        """Return the description of the client and the settings of the response. Raises Rejected."""
        namespace = self._context.namespace
        group: GroupConfig | None = None
        group_name, topics = "", []
        if settings.WhichOneof("pub_sub") == "publishing":
            topics = [topic_of(topic, namespace) for topic in settings.publishing.topics[:_MAX_TOPICS]]
        elif settings.subscription.group.name:
            group_name = group_of(settings.subscription.group, namespace)
            group = self._directory.group(group_name)
        info = ClientInfo(settings.client_type, group_name, frozenset(topics), self._context.account)
        return info, answered(settings, self._limits, group, self._context.language)

"""The conversation with one client: settings, and commands of the server.

Nothing is lost with it: all other calls are answered whether or not a client has such a stream, since some
clients take minutes to open it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_adapter.api import GroupConfig
from broker_adapter.creation_limits import client_of
from broker_adapter.messaging.client_settings import ServerLimits, answered
from broker_adapter.messaging.clients import ClientInfo, ClientStreams
from broker_adapter.messaging.context import NODE_JS, CallContext
from broker_adapter.messaging.directory import Directory
from broker_adapter.messaging.names import group_of, topic_of
from broker_adapter.messaging.rejected import Code, Rejected, ok, status_of
from broker_adapter.messaging.v2 import definition_pb2 as pb
from broker_adapter.messaging.v2 import service_pb2 as calls

#: Commands that wait to be written, and bytes of them: some have a message in them.
_MAX_WAITING, _MAX_WAITING_BYTES = 64, 8 << 20
#: Of one producer, that are remembered.
_MAX_TOPICS = 256
#: Of a client's command. Settings are kept as long as the stream, and told again.
MAX_COMMAND_BYTES = 64 << 10
#: Clients in Node.js may not listen yet when their first settings are answered.
_AGAIN_AFTER_S = 1.0

#: Run a function after some seconds.
Later = Callable[[float, Callable[[], None]], object]


class Conversation:
    """Implements `clients.Stream`. `heard` takes what the client says; `waiting` is what is to be written,
    and `wake` is called when that grows."""

    def __init__(
        self,
        context: CallContext,
        streams: ClientStreams,
        directory: Directory,
        limits: ServerLimits,
        *,
        later: Later,
        wake: Callable[[], None],
        may_hear: Callable[[calls.TelemetryCommand], bool] = lambda _: True,
    ) -> None:
        """`may_hear`: whether the client may be told such a command. Rejected (TOO_MANY_REQUESTS). `close`
        when it is over."""
        self.waiting: deque[calls.TelemetryCommand] = deque()
        self._context = context
        self._streams = streams
        self._directory = directory
        self._limits = limits
        self._later = later
        self._wake = wake
        self._may_hear = may_hear
        self._is_open = True
        self._said: pb.Settings | None = None
        self._answer: calls.TelemetryCommand | None = None
        self._address = client_of(context.remote)
        self._kept_bytes = 0  # of settings
        streams.add(context.client_id, self)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._keep(0)
            self._streams.remove(self._context.client_id, self)

    def tell(self, command: calls.TelemetryCommand) -> bool:
        if not self._is_open or not self._has_room(command) or not self._may_hear(command):
            return False
        self.waiting.append(command)
        self._wake()
        return True

    def _has_room(self, command: calls.TelemetryCommand) -> bool:
        size = sum(waiting.ByteSize() for waiting in self.waiting)
        fits = not size or size + command.ByteSize() <= _MAX_WAITING_BYTES
        return fits and len(self.waiting) < _MAX_WAITING

    def heard(self, command: calls.TelemetryCommand) -> None:
        """Answers to commands that are not settings are of use to nobody here."""
        if command.WhichOneof("command") != "settings":
            return
        try:
            if (size := command.ByteSize()) > MAX_COMMAND_BYTES:
                text = f"settings of {size} bytes; {MAX_COMMAND_BYTES} are allowed"
                raise Rejected(Code.PAYLOAD_TOO_LARGE, text)
            info, settings = self._settled(command.settings)
            if not self._keep(size):
                text = f"settings of {size} bytes: this client's share of what is kept of settings is used up"
                raise Rejected(Code.TOO_MANY_REQUESTS, text)
        except Rejected as error:
            self.tell(calls.TelemetryCommand(status=status_of(error)))
            return
        self._said = command.settings
        self._streams.describe(self._context.client_id, info)
        self._tell_settings(calls.TelemetryCommand(status=ok(), settings=settings))
        if self._context.language == NODE_JS:
            self._later(_AGAIN_AFTER_S, self._repeat)

    def _keep(self, size: int) -> bool:
        """Settings of this size instead of those before. Whether there is room; else those before stay."""
        if not self._streams.settings_room.replace(self._address, self._kept_bytes, size):
            return False
        self._kept_bytes = size
        return True

    def renew(self) -> None:
        """Tell the client its settings if they have changed since."""
        if self._said is None:
            return
        answer = calls.TelemetryCommand(status=ok(), settings=self._settled(self._said)[1])
        if answer != self._answer:
            self._tell_settings(answer)

    def _tell_settings(self, answer: calls.TelemetryCommand) -> None:
        """Instead of such as wait still: whoever does not read needs the newest ones only."""
        others = [command for command in self.waiting if command is not self._answer]
        if len(others) < len(self.waiting):
            self.waiting.clear()
            self.waiting.extend(others)
        self._answer = answer
        self.tell(answer)

    def _repeat(self) -> None:
        """The newest ones: they may have changed meanwhile."""
        if self._answer is not None:
            self.tell(self._answer)

    def _settled(self, settings: pb.Settings) -> tuple[ClientInfo, pb.Settings]:
        """What the client says of itself, and its settings as they are answered. Rejected."""
        namespace = self._context.namespace
        group: GroupConfig | None = None
        group_name, topics = "", []
        if settings.WhichOneof("pub_sub") == "publishing":
            topics = [topic_of(topic, namespace) for topic in settings.publishing.topics[:_MAX_TOPICS]]
        elif settings.subscription.group.name:
            group_name = group_of(settings.subscription.group, namespace)
            group = self._directory.group(group_name)
        info = ClientInfo(settings.client_type, group_name, frozenset(topics))
        return info, answered(settings, self._limits, group, self._context.language)

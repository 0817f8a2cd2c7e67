"""The conversation with one client: settings, and commands of the server.

Nothing is lost with it: all other calls are answered whether or not a client has such a stream, since some
clients take minutes to open it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker_adapter.api import GroupConfig
from broker_adapter.proxy.clients import ClientInfo, ClientStreams
from broker_adapter.proxy.messages.client_settings import ServerLimits, answered
from broker_adapter.proxy.messages.context import NODE_JS, CallContext
from broker_adapter.proxy.messages.directory import Directory
from broker_adapter.proxy.messages.names import group_of, topic_of
from broker_adapter.proxy.messages.rejected import Code, Rejected, ok, status_of
from broker_adapter.proxy.v2 import definition_pb2 as pb
from broker_adapter.proxy.v2 import service_pb2 as calls
from dledger.platform import client_of

#: Commands that wait to be written, and bytes of them: some have a message in them.
_MAX_WAITING, _MAX_WAITING_BYTES = 64, 8 << 20
#: Of one producer, that are remembered.
_MAX_TOPICS = 256
#: Of a client's command. Settings are kept as long as the stream, and told again.
MAX_COMMAND_BYTES = 64 << 10
#: Clients say a few hundred bytes of themselves. More is looked at in a turn of the event loop of its own.
LARGE_COMMAND_BYTES = 4 << 10
#: Clients in Node.js may not listen yet when their first settings are answered.
_AGAIN_AFTER_S = 1.0

#: Run a function after some seconds.
Later = Callable[[float, Callable[[], None]], object]


class Conversation:
    """Implements `clients.Stream`. `heard` takes what the client says; `next_to_write` gives what is to be
    written, and `wake` is called when there is more."""

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
        self._waiting: deque[tuple[calls.TelemetryCommand, int]] = deque()  # with sizes
        self._waiting_bytes = 0  # and of the one that is being written
        self._writing_bytes = 0
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
        streams.add(context.client_id, self, self._address, context.account)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._keep(0)
            while self.next_to_write() is not None:
                pass
            self._streams.remove(self._context.client_id, self, self._address)

    def tell(self, command: calls.TelemetryCommand) -> bool:
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
        """What was given before is written by now: so long it takes room, as the client may not read."""
        self._make_waiting(self._waiting_bytes - self._writing_bytes)
        self._writing_bytes = 0
        if not self._waiting:
            return None
        command, self._writing_bytes = self._waiting.popleft()
        return command

    def _make_waiting(self, size: int) -> bool:
        """Whether there is room for so many bytes of commands that wait."""
        if not self._streams.commands_room.replace(self._address, self._waiting_bytes, size):
            return False
        self._waiting_bytes = size
        return True

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
        self._streams.describe(self._context.client_id, self, info)
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
        if self._said is None or not self._is_open:
            return
        answer = calls.TelemetryCommand(status=ok(), settings=self._settled(self._said)[1])
        if answer != self._answer:
            self._tell_settings(answer)

    def _tell_settings(self, answer: calls.TelemetryCommand) -> None:
        """Instead of such as wait still: whoever does not read needs the newest ones only."""
        others = [one for one in self._waiting if one[0] is not self._answer]
        if len(others) < len(self._waiting):
            self._waiting = deque(others)
            self._make_waiting(self._writing_bytes + sum(size for _, size in others))
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
        info = ClientInfo(settings.client_type, group_name, frozenset(topics), self._context.account)
        return info, answered(settings, self._limits, group, self._context.language)

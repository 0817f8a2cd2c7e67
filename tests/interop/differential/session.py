"""One play of a sequence on one broker: sends each step's requests and records what the broker answers.

An observation is a flat mapping from a path ("code", "message[s2#1].flag") to a JSON value, in logical names:
topics, groups and ids are mapped back, hosts, times and physical positions are left out or compared by what
they lead to. So observations of different brokers can be compared by `==`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from broker_adapter.errors import AnswerMissing, FrameRefused, ResponseCode
from broker_adapter.remoting.client import connect
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from broker_adapter.remoting.connection import RemotingConnection
from broker_adapter.remoting.executors import Dispatch, Executor
from broker_adapter.wire.message import MessageRecord, decode_all
from broker_adapter.wire.message_id import parse_offset_id
from broker_adapter.wire.properties import split_properties
from tests.interop import genuine

from . import requests
from .brokers import GENUINE, ComparedBroker
from .steps import Step

Observation: TypeAlias = dict[str, Any]

_ANSWER_S: Final = 20
#: Within this time a message of level 1 (1 s), or a timer of a second, has arrived; RocketMQ's timers are
#: precise to a second, and write to the queue up to a second later.
_ARRIVAL_S: Final = 8
_CHECK_S: Final = 20
#: Between two tries of a request that is refused as busy.
_REPEAT_S: Final = 1
#: Reading stamps that differ needs messages that are not stored in the same millisecond.
_APART_S: Final = 0.003
#: What brokers add to messages by their own reckoning.
_OWN_PROPERTIES: Final = frozenset(
    {"CLUSTER", "MSG_REGION", "TRACE_ON", "WAIT", "INDEX", "__CRC32#", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
)
_DRAIN_COUNT: Final = 32
_ANSWERED_OFFSETS: Final = frozenset({"queueOffset", "offset", "nextBeginOffset", "minOffset", "maxOffset"})


@dataclass(slots=True)
class Sent:
    """A message, or a batch, that a step stored. `answer` is the broker's; `request` is what was sent."""

    topic: str
    queue_id: int
    queue_offset: int
    request: RemotingCommand
    answer: RemotingCommand
    unique_id: str = ""
    count: int = 1

    @property
    def physical_offset(self) -> int:
        return parse_offset_id(self.answer.fields["msgId"].split(",")[0]).physical_offset


@dataclass(slots=True)
class Session:
    """The state of a play. `prefix` makes its names fresh. `step_ms`: time of the step, equal in all
    sessions."""

    broker: ComparedBroker
    prefix: str
    born_ms: int
    step_ms: int = 0
    sent: dict[int, Sent] = field(default_factory=dict)
    halves: dict[int, Sent] = field(default_factory=dict)
    #: How halves have ended first: "commit" or "rollback", by step.
    ended: dict[int, str] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)
    checks: dict[str, RemotingCommand] = field(default_factory=dict)
    #: Where queues of recreated topics start, by (real topic, queue id): offsets are counted from there.
    bases: dict[tuple[str, int], int] = field(default_factory=dict)
    _deleted: set[str] = field(default_factory=set)
    _connection: RemotingConnection | None = None

    @property
    def is_genuine(self) -> bool:
        return self.broker.name == GENUINE

    async def open(self) -> None:
        """Connect, with the heartbeat of a producer, to which the broker sends checks of transactions."""
        dispatch = Dispatch()
        executor = Executor("checks", running=16, waiting=1024)
        dispatch.register([RequestCode.CHECK_TRANSACTION_STATE], self._on_check, executor)
        self._connection = await connect(self.broker.address, timeout_s=10, dispatch=dispatch)
        await self.ask(requests.put_group(self.name("READER"), {}))
        await self.ask(requests.producer_heartbeat(f"{self.prefix}@client", requests.PRODUCERS))

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close("played")
            self._connection = None

    # -- names --------------------------------------------------------------------------------------------

    def name(self, logical: str) -> str:
        """A topic's or group's name in this play; %RETRY%G0 is the retry topic of G0."""
        for system in ("%RETRY%", "%DLQ%"):
            if logical.startswith(system):
                return f"{system}{self.prefix}{logical[len(system) :]}"
        return f"{self.prefix}{logical}"

    def unique_id(self, logical: str) -> str:
        return f"{self.prefix}0000{logical}".upper()

    def logical(self, text: str) -> str:
        return re.sub(f"{self.prefix}(0000)?", "", text, flags=re.IGNORECASE)

    # -- requests -----------------------------------------------------------------------------------------

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer. Offsets of queues are translated in both directions; see `bases`."""
        fields = command.fields
        queue = (
            fields.get("topic") or fields.get("b", ""),
            int(fields.get("queueId") or fields.get("e", "-1")),
        )
        base = self.bases.get(queue, 0)
        if not base:
            return await self.ask_untranslated(command)
        is_reset = command.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        names = ["offset"] if is_reset else ["queueOffset", "commitOffset"]
        moved = {name: str(int(fields[name]) + base) for name in names if name in fields}
        answer = await self.ask_untranslated(
            RemotingCommand(command.code, {**fields, **moved}, command.body, flag=command.flag)
        )
        for name in _ANSWERED_OFFSETS & answer.fields.keys():
            # Where the queue starts RocketMQ learns late from our directory: it may answer 0, from which
            # clients are moved to the first message.
            answer.fields[name] = str(max(0, int(answer.fields[name]) - base))
        return answer

    async def ask_until_taken(self, command: RemotingCommand) -> RemotingCommand:
        """Again while the broker is busy, as clients do; nothing is stored then. RocketMQ is busy when a
        request has waited for 200 ms."""
        answer = await self.ask(command)
        while answer.code == ResponseCode.SYSTEM_BUSY:
            await genuine.pace(_REPEAT_S)
            answer = await self.ask(command)
        return answer

    async def ask_untranslated(self, command: RemotingCommand) -> RemotingCommand:
        assert self._connection is not None
        return await self._connection.invoke(command, _ANSWER_S)

    async def note_bases(self, topic: str, queues: int) -> None:
        """After a change of a topic: its queues may start anew."""
        name = self.name(topic)
        for queue_id in range(queues if topic in self._deleted else 0):
            if (name, queue_id) not in self.bases:
                command = requests.of_queue(RequestCode.GET_MIN_OFFSET, name, queue_id)
                answer = await self.ask_untranslated(command)
                self.bases[name, queue_id] = int(answer.fields.get("offset", 0))

    def tell(self, command: RemotingCommand) -> None:
        """Send a one-way request."""
        assert self._connection is not None
        self._connection.send(command)

    async def end_of(self, topic: str, queue_id: int) -> int:
        """The queue's maximal offset; 0 if the queue is unknown."""
        answer = await self.ask(requests.of_queue(RequestCode.GET_MAX_OFFSET, self.name(topic), queue_id))
        return int(answer.fields["offset"]) if answer.code == ResponseCode.SUCCESS else 0

    async def wait_for_end(self, topic: str, queue_id: int, end: int, within_s: float = _ARRIVAL_S) -> bool:
        """Brokers answer sends before they dispatch messages to their queues."""

        async def is_there() -> bool:
            return await self.end_of(topic, queue_id) >= end

        try:
            await genuine.eventually(is_there, within_s=within_s, pause_s=0.01)
        except TimeoutError:
            return False
        return True

    async def message(self, step: int) -> MessageRecord | None:
        """The first message that a step stored, as the broker has it."""
        sent = self.sent.get(step)
        if sent is None:
            return None
        group = self.name("READER")
        command = requests.pull(group, self.name(sent.topic), sent.queue_id, sent.queue_offset, 1)
        answer = await self.ask(command)
        found = messages_of(answer.body)
        return found[0] if found else None

    def forget(self, topic: str) -> None:
        """Nothing that was sent to the topic is there any more."""
        self.sent = {number: sent for number, sent in self.sent.items() if sent.topic != topic}
        self.committed = {key: at for key, at in self.committed.items() if key[1] != topic}
        self.bases = {key: base for key, base in self.bases.items() if key[0] != self.name(topic)}
        self._deleted.add(topic)

    async def _on_check(self, _: RemotingConnection, command: RemotingCommand) -> None:
        for message in messages_of(command.body):
            unique_id = split_properties(message.properties).get("UNIQ_KEY", "")
            self.checks[unique_id] = command

    # -- what is observed ---------------------------------------------------------------------------------

    def observe_message(self, message: MessageRecord, path: str) -> Observation:
        properties = split_properties(message.properties)
        base = self.bases.get((message.topic, message.queue_id), 0)
        seen: Observation = {
            f"{path}.place": [self.logical(message.topic), message.queue_id, message.queue_offset - base],
            f"{path}.flag": message.flag,
            f"{path}.sysFlag": message.sys_flag,
            f"{path}.born": message.born_timestamp - self.born_ms,
            f"{path}.reconsumeTimes": message.reconsume_times,
        }
        for name, value in properties.items():
            if name not in _OWN_PROPERTIES:
                seen[f"{path}.properties.{name}"] = self.logical(value)
        return seen

    def observe_messages(self, body: bytes) -> Observation:
        return self.observe_list(messages_of(body), "")

    def observe_list(self, messages: Sequence[MessageRecord], path: str) -> Observation:
        """Their bodies in order, and each one under its label, by which equal messages meet in different
        places: the first word of its body, and the how-many-eth with that label it is."""
        bodies, labels = [one.body.decode("utf-8", "backslashreplace") for one in messages], Counter[str]()
        seen: Observation = {f"{path}bodies": bodies}
        for message, text in zip(messages, bodies, strict=True):
            label = text.split(" ", 1)[0]
            labels[label] += 1
            seen |= self.observe_message(message, f"{path}message[{label}#{labels[label]}]")
        return seen


def messages_of(body: bytes) -> list[MessageRecord]:
    return list(decode_all(body))


Action: TypeAlias = Callable[[Session, Mapping[str, Any], int], Awaitable[Observation]]
#: Actions by kind of step; modules of actions add theirs with `action`.
ACTIONS: Final[dict[str, Action]] = {}


def action(function: Action) -> Action:
    """Register a function as the action of the kind of step that has its name."""
    ACTIONS[function.__name__] = function
    return function


def numbers(answer: RemotingCommand, *names: str) -> Observation:
    """The code, and fields that are numbers; a field that is missing is None."""
    seen: Observation = {"code": answer.code}
    for name in names:
        value = answer.fields.get(name)
        seen[name] = None if value is None else int(value)
    return seen


async def play_step(session: Session, step: Step) -> Observation:
    """What the broker shows of one step; {"skipped": true} if the step refers to one that is not there."""
    if step.args.get("of", -1) not in {*session.sent, -1} or step.args.get("half", -1) not in {
        *session.halves,
        -1,
    }:
        return {"skipped": True}
    try:
        return await ACTIONS[step.kind](session, step.args, step.number)
    except (FrameRefused, AnswerMissing) as error:
        return {"error": type(error).__name__}


async def pace() -> None:
    """Let the clock move on, so that the next message has another store timestamp."""
    await genuine.pace(_APART_S)


ARRIVAL_S: Final = _ARRIVAL_S
CHECK_S: Final = _CHECK_S
DRAIN_COUNT: Final = _DRAIN_COUNT

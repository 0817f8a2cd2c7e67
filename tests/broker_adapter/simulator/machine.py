"""The Dispatcher of one life of a simulated broker, as the simulator drives it and looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from broker_adapter.delivery_state.state import DeliveryState
from broker_adapter.metadata.state import MetadataState
from broker_adapter.store.dispatcher import Dispatcher
from dledger import Applied, AppliedEntry


class CheckedDispatcher:
    """A DurableStateMachine. `checked`: up to where the units of each queue have been compared with the log;
    they never change afterwards, except that everything is made anew."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        metadata: MetadataState,
        delivery: DeliveryState,
        kept_from: Callable[[], int],
    ) -> None:
        """`kept_from`: where the log of this node begins."""
        self.dispatcher = dispatcher
        self.metadata = metadata
        self.delivery = delivery
        self.checked: dict[tuple[str, int], int] = {}
        self._kept_from = kept_from

    @property
    def kept_from(self) -> int:
        return self._kept_from()

    def apply(self, entries: Sequence[AppliedEntry]) -> None:
        self.dispatcher.apply(entries)

    def save(self) -> Iterable[bytes]:
        return self.dispatcher.save()

    def load(self, chunks: Iterable[bytes]) -> None:
        self.checked.clear()
        self.dispatcher.load(chunks)

    def recover(self) -> Applied | None:
        found = self.dispatcher.recover()
        return None if found is None else Applied(*found)

    def replay(self, entries: Sequence[AppliedEntry]) -> None:
        self.dispatcher.replay(entries)

    def close(self) -> None:
        self.dispatcher.close()

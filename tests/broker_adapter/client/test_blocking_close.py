"""Blocking calls in progress while another thread closes the client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from broker_adapter.client import BlockingProducer, Message, SendResult
from broker_adapter.errors import BrokerError, PutIndeterminate
from broker_adapter.remoting.codes import RequestCode
from broker_adapter.remoting.command import RemotingCommand
from dledger.infra.loops.loop_thread import LoopThread

from .scripted import route_body, serving

#: A call that has not been noticed by then is not in progress, and the test proves nothing.
SEEN_S = 20.0


@contextmanager
def silent_broker(silent: int) -> Iterator[tuple[str, threading.Event]]:
    """Its address, and an event: it has received the first request with the code `silent`, to which it never
    responds."""
    seen = threading.Event()

    def answer(request: RemotingCommand) -> RemotingCommand | None:
        if request.code == silent:
            seen.set()
            return None
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return request.answer(0, body=route_body(servers))
        return request.answer(0)

    thread = LoopThread()
    world = serving(answer)
    servers = thread.run(world.__aenter__())
    try:
        yield servers[0].server.address, seen
    finally:
        thread.run(_leave(world))
        thread.stop()


async def _leave(world: object) -> None:
    await world.__aexit__(None, None, None)  # type: ignore[attr-defined]


def error_at_close(silent: int, call: Callable[[BlockingProducer], SendResult]) -> BaseException | None:
    """What a call raises if the client is closed while the call waits for the broker."""
    errors: list[BaseException] = []
    with silent_broker(silent) as (address, seen):
        producer = BlockingProducer("p", address)
        producer.start()

        def run() -> None:
            try:
                call(producer)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        assert seen.wait(SEEN_S)
        producer.close()
        thread.join(SEEN_S)
    return errors[0] if errors else None


def send(producer: BlockingProducer) -> SendResult:
    return producer.send(Message("t", b"x"))


def submit(producer: BlockingProducer) -> SendResult:
    return producer.submit(Message("t", b"x")).result(SEEN_S)


@pytest.mark.parametrize("call", [send, submit])
def test_a_send_in_progress_at_close_may_be_stored(call: Callable[[BlockingProducer], SendResult]) -> None:
    for _ in range(5):
        assert isinstance(error_at_close(RequestCode.SEND_MESSAGE_V2, call), PutIndeterminate)


@pytest.mark.parametrize("call", [send, submit])
def test_a_call_that_waits_for_a_route_at_close_fails(
    call: Callable[[BlockingProducer], SendResult],
) -> None:
    error = error_at_close(RequestCode.GET_ROUTEINFO_BY_TOPIC, call)
    assert isinstance(error, BrokerError) and not isinstance(error, PutIndeterminate)


def test_a_close_that_a_callback_tries_in_vain_can_be_repeated() -> None:
    """In the client's own thread it would deadlock."""
    errors: list[BaseException] = []

    def close(*_: object) -> None:
        try:
            producer.close()
        except RuntimeError as error:
            errors.append(error)

    with silent_broker(RequestCode.UNREGISTER_CLIENT) as (address, _):
        producer = BlockingProducer("p", address, on_attempt=close)
        producer.start()
        with suppress(BrokerError):
            producer.send(Message("t", b"x"))
        assert errors and "deadlock" in str(errors[0])
        producer.close()
        assert not producer._thread._thread.is_alive()


def test_calls_that_have_ended_are_forgotten() -> None:
    thread = LoopThread()
    for _ in range(3):
        thread.run(asyncio.sleep(0))
    assert not thread._calls
    thread.stop()


def test_what_does_not_end_by_itself_is_cancelled() -> None:
    thread = LoopThread()
    future = thread.start(asyncio.Event().wait())
    thread.stop(0.01)
    assert future.cancelled()

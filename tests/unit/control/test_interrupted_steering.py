"""A steerer ends when it is cancelled, also where a library below swallows the cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate.control.journal import Journal
from tidegate.control.queues import rabbitmq
from tidegate.control.queues.rabbitmq import RabbitmqController
from tidegate.core.store import Clock
from tidegate.core.topology import ControlMode, Range, Scaling
from tidegate.engines.rabbitmq.client import parse_address


class Unwritten:
    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None: ...


class Link:
    """A link whose calls swallow the cancellation that comes meanwhile."""

    def __init__(self, *_: object) -> None:
        """It needs none of its addresses."""

    async def __aenter__(self) -> Link:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def length(self, queue: str) -> Any:
        return 0


async def test_a_cancellation_that_a_library_swallows_ends_the_steerer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    class Seen:
        sample = None

    class Sensor:
        def __init__(self, *_: object) -> None: ...

        async def poll(self, *_: object) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return Seen()  # as `asyncio.wait_for` does when its answer comes at that moment

    class Deciding:
        def __init__(self, *_: object) -> None: ...

        def decide(self, *_: object) -> Any: ...

    async def nothing(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(rabbitmq, "ControllerConnection", Link)
    monkeypatch.setattr(rabbitmq, "RabbitmqSensor", Sensor)
    monkeypatch.setattr(rabbitmq, "Autoscaler", Deciding)
    monkeypatch.setattr(rabbitmq, "without_unmeasured", lambda *_: None)
    monkeypatch.setattr(RabbitmqController, "_find", nothing)
    journal = Journal(Unwritten(), None, Clock().wall)
    monkeypatch.setattr(journal, "write", nothing)
    scaling = Scaling(replicas=Range(1, 2), steering=ControlMode.RECOMMEND)
    steering = RabbitmqController(
        parse_address("amqp://127.0.0.1:1/"),
        "orders",
        scaling,
        None,
        journal,
        say=pytest.fail,
        seen=lambda *_: None,
    )

    running = asyncio.create_task(steering.run())
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

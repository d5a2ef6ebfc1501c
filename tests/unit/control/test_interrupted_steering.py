"""A steerer ends when it is cancelled, also where a library below swallows the cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidegate.adapters.rabbitmq.address import parse_address
from tidegate.control import rabbitmq_steering
from tidegate.control.journal import Journal
from tidegate.control.rabbitmq_steering import RabbitmqSteering
from tidegate.core.ports import Clock
from tidegate.core.scaling import Range, Scaling, Steering


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

        async def look(self, *_: object) -> Any:
            asked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return Seen()  # as `asyncio.wait_for` does when its answer comes at that moment

    class Deciding:
        def __init__(self, *_: object) -> None: ...

        def decide(self, *_: object) -> Any: ...

    async def nothing(*_: object, **__: object) -> None: ...

    monkeypatch.setattr(rabbitmq_steering, "SteererLink", Link)
    monkeypatch.setattr(rabbitmq_steering, "RabbitmqSensor", Sensor)
    monkeypatch.setattr(rabbitmq_steering, "Autoscaler", Deciding)
    monkeypatch.setattr(rabbitmq_steering, "by_what_is_known", lambda *_: None)
    monkeypatch.setattr(RabbitmqSteering, "_find", nothing)
    journal = Journal(Unwritten(), None, Clock().wall)
    monkeypatch.setattr(journal, "write", nothing)
    scaling = Scaling(replicas=Range(1, 2), steering=Steering.RECOMMEND)
    steering = RabbitmqSteering(
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

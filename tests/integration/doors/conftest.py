"""Doors of both engines under one suite; what a test opens is closed behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from door_under_test import OpenDoor
from missing_peer import skipped_where_missing

from tidegate.core.errors import Unavailable
from tidegate.core.services import Door, Engine
from tidegate.doors import DOOR_LIMITS, DoorSettings
from tidegate.doors.gateway import GatewayDoor
from tidegate.doors.haproxy.door import HaproxyDoor, haproxy_program


@pytest.fixture(params=[Engine.GATEWAY, Engine.HAPROXY])
def engine(request: pytest.FixtureRequest) -> Engine:
    return Engine(request.param)


@pytest.fixture
async def open_door(engine: Engine) -> AsyncIterator[OpenDoor]:
    """Start a door; what the settings and their limits lack are their defaults."""
    if engine is Engine.HAPROXY:
        with skipped_where_missing(Unavailable):
            haproxy_program()
    opened: list[Door] = []

    async def opening(**given: object) -> Door:
        limits = {name: given.pop(name) for name in tuple(given) if hasattr(DOOR_LIMITS, name)}
        settings = DoorSettings(
            "shop",
            health_path=str(given.pop("health_path", "/well")),
            limits=replace(DOOR_LIMITS, **limits),  # type: ignore[arg-type]
            **given,  # type: ignore[arg-type]
        )
        door: Door = HaproxyDoor(settings) if engine is Engine.HAPROXY else GatewayDoor(settings)
        await door.start()
        opened.append(door)
        return door

    yield opening
    for door in opened:
        await door.stop(timeout_s=0.0)

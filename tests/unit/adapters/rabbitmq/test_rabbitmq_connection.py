"""A connection that is closed while somebody waits for it."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually_async

from tidegate.core.errors import Unavailable
from tidegate.engines.rabbitmq.client import parse_address
from tidegate.engines.rabbitmq.connection import RabbitmqConnection

NOBODY = "amqp://127.0.0.1:1/"
FOR_EVER_S = 3600.0


async def test_waiting_call_fails_when_client_is_closed() -> None:
    connection = RabbitmqConnection(parse_address(NOBODY), FOR_EVER_S, opens_when_needed=True)
    waiting = asyncio.create_task(connection.connected())
    # Nobody answers there, and it goes on trying.
    await eventually_async(lambda: connection._tasks)

    await connection.close()

    with pytest.raises(Unavailable, match="the client is closed"):
        await waiting


async def test_a_closed_client_has_no_connection_and_is_blocked_by_nobody() -> None:
    connection = RabbitmqConnection(parse_address(NOBODY), FOR_EVER_S, opens_when_needed=True)

    await connection.close()

    assert not connection.is_blocked
    with pytest.raises(Unavailable, match="the client is closed"):
        await connection.channel()

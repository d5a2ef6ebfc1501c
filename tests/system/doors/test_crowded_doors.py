"""Slowloris and idle connections by the hundred at a door of either engine: others are served."""

from __future__ import annotations

import contextlib
import http.client

import pytest
from crowded_door import crowd_at, door_before_a_shop

from tidegate.core.services import Engine

IDLE, SLOW = 1200, 300
CONNECTIONS, REQUESTS = 10, 10


@pytest.mark.parametrize("engine", [Engine.GATEWAY, Engine.HAPROXY])
def test_a_client_is_served_among_idle_connections_and_slow_heads(engine: Engine) -> None:
    with door_before_a_shop(engine, IDLE + SLOW) as port, crowd_at(port, IDLE, SLOW):
        for _ in range(CONNECTIONS):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
            with contextlib.closing(connection):
                for _ in range(REQUESTS):
                    connection.request("GET", "/choose?book=7")
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == 200

"""What thousands of idle connections and slow heads at a door cost another client of it."""

from __future__ import annotations

import http.client
import time
from statistics import median

import pytest
from crowded_door import crowd_at, door_before_a_shop
from figures import Figure

from tidegate.core.services import Engine

IDLE, SLOW = 4000, 1000
# The crowd comes and goes so often. Of the rounds with it and those without, the medians count:
# what the machine does besides comes and goes, too.
ROUNDS, REQUESTS = 5, 1000
# A browser opens a connection now and then: it has to be taken, too.
NEW_CONNECTION_EVERY = 10


def p99_ms(port: int) -> float:
    """Of a client that asks, waits for its answer, and asks again."""
    took = []
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    for number in range(REQUESTS):
        if number % NEW_CONNECTION_EVERY == 0:
            connection.close()
        begun = time.perf_counter()
        connection.request("GET", "/choose?book=7")
        answer = connection.getresponse()
        answer.read()
        took.append(1e3 * (time.perf_counter() - begun))
        assert answer.status == 200
    connection.close()
    return sorted(took)[int(0.99 * len(took))]


@pytest.mark.parametrize("engine", [Engine.GATEWAY, Engine.HAPROXY])
def test_requests_before_and_in_a_crowd(engine: Engine, figure: Figure) -> None:
    calm, crowded = [], []
    with door_before_a_shop(engine, IDLE + SLOW) as port:
        p99_ms(port)
        for _ in range(ROUNDS):
            calm.append(p99_ms(port))
            with crowd_at(port, IDLE, SLOW):
                crowded.append(p99_ms(port))
    figure(f"{engine} door, p99, nobody else", median(calm), "ms", "–")
    figure(f"{engine} door, p99, 5000 in a crowd", median(crowded), "ms", "–")
    figure("the same as a multiple", median(crowded) / median(calm), "×", "at most 3")

"""Ports for servers that have to be told one.

Below those that the kernel gives to whoever asks for any: of these every outgoing connection takes
one, also between our look and the server's start.
"""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 20_000, 30_000
# Its own: tests that want to be repeatable set the seed of everybody's.
_DICE = random.Random()


def free_ports(*offsets: int) -> int:
    """A port that nobody has now, and so are those that are so far above it."""
    while True:
        first = _DICE.randrange(FIRST, LAST)
        with contextlib.ExitStack() as held:
            try:
                for offset in (0, *offsets):
                    held.enter_context(socket.create_server(("127.0.0.1", first + offset)))
            except OSError:
                continue
            return first

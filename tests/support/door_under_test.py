"""What a test of doors is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tidegate.core.services import Door

# Starts a door with these settings and limits; the rest are their defaults.
OpenDoor = Callable[..., Awaitable[Door]]

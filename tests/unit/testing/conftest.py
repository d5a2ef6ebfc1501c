"""Written as a user would: with the plugin, on a loop as pytest-asyncio makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tidegate.testing.plugin import tidegate_broker

__all__ = ["tidegate_broker"]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"plain": asyncio.SelectorEventLoop}

"""The prefetch loop of nodes runs in virtual time: rates are exact on a busy machine, too."""

from __future__ import annotations

import math

import pytest
from virtual_nodes import (
    backing,
    clock,
    connect,
    mq,
    node,
    pytest_asyncio_loop_factories,
    start_node,
)

from tidegate.control import prefetch

__all__ = [
    "backing",
    "clock",
    "connect",
    "mq",
    "node",
    "pytest_asyncio_loop_factories",
    "start_node",
]


@pytest.fixture(autouse=True)
def steps_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tick leaves what takes some real milliseconds to the next one; here it never does."""
    monkeypatch.setattr(prefetch, "_STEPS_S", math.inf)

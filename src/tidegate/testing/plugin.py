"""The pytest plugin: the fixture `tidegate_broker`.

A plain fixture, so that it needs no plugin for async tests and gets along with each: the broker
starts in whichever loop first asks it for something, and what lives in memory only needs no
goodbye when that loop is closed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.testing.broker import Broker


@pytest.fixture
def tidegate_broker() -> Iterator[Broker]:
    """A Tidegate broker in memory, with virtual time; new for each test."""
    # Not above: pytest imports plugins in every project, also where nobody uses them.
    from tidegate.testing.broker import Broker

    broker = Broker()
    yield broker
    broker.drop()

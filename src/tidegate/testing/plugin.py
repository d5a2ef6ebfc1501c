"""The pytest plugin with the fixture `tidegate_broker`.

The fixture is synchronous, so it works with every plugin for asynchronous tests and with none. The
broker starts in the event loop that first calls it. If that loop is closed before the end of the
test, nothing is left to stop, since the broker exists in memory only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidegate.testing.broker import Broker


@pytest.fixture
def tidegate_broker() -> Iterator[Broker]:
    """Provide an in-memory Tidegate broker with virtual time, new for each test."""
    # Import late: pytest loads this plugin in every project, even if no test uses it.
    from tidegate.testing.broker import Broker

    broker = Broker()
    yield broker
    broker.drop()

"""A store in memory in place of all stores, for tests that do not depend on the store."""

from __future__ import annotations

import pytest
from backing import Backing, MemoryBacking


@pytest.fixture
def backing() -> Backing:
    return MemoryBacking()

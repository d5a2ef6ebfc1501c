"""Access does not depend on the store: these tests run on the quickest one."""

from __future__ import annotations

import pytest

from backing import Backing, MemoryBacking


@pytest.fixture
def backing() -> Backing:
    return MemoryBacking()

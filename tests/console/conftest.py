"""A node in memory with a console before it; what needs processes starts them itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from serving_console import Console, console_of

from backing import Backing, MemoryBacking
from tidegate.node.server import Node


@pytest.fixture
def backing() -> Iterator[Backing]:
    """What consoles do does not depend on where messages are kept."""
    contents = MemoryBacking()
    yield contents
    contents.give_back()


@pytest.fixture
async def console(node: Node, tmp_path: Path) -> AsyncIterator[Console]:
    async with console_of(node, tmp_path / "console") as running:
        yield running

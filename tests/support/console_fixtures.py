"""A node in memory with a console in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from serving_console import Console, console_of

from tidegate.broker.node import Node


@pytest.fixture
async def console(node: Node, tmp_path: Path) -> AsyncIterator[Console]:
    async with console_of(node, tmp_path / "console") as running:
        yield running

"""A fleet of real processes on a schema of its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from backing import PostgresBacking
from led_fleet import FleetUnderTest


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tidegate-fleet-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def fleet(embedded_url: str, folder: Path) -> AsyncIterator[FleetUnderTest]:
    under_test = FleetUnderTest(PostgresBacking("embedded", embedded_url).url, folder)
    await under_test.start()
    yield under_test
    await under_test.stop()

"""Connections to PostgreSQL that are ended at any moment: every call gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tidegate.core.errors import Unavailable
from tidegate.lab.faults.injector import terminate_backends
from tidegate.lab.peers.server import temporary_folder
from tidegate.storage.embedded import EmbeddedPostgres
from tidegate.storage.pipeline import PipelineConnection

QUESTION = b"select 1"


@pytest.fixture(scope="module")
def store_url() -> Iterator[str]:
    with temporary_folder("backends") as folder, EmbeddedPostgres(folder / "data") as postgres:
        yield postgres.url


@pytest.mark.timeout(120)
async def test_a_call_is_answered_whenever_its_backend_is_terminated(store_url: str) -> None:
    """libuv tells of a broken socket once; what lay behind the last words was never read."""
    connection = PipelineConnection(store_url, (QUESTION,))
    answered = unknown = 0
    for _ in range(150):
        terminating = asyncio.create_task(asyncio.to_thread(terminate_backends, store_url))
        for _ in range(30):
            try:
                async with asyncio.timeout(10.0):
                    await connection.call([(QUESTION, [], [])] * 3)
                answered += 1
            except Unavailable:
                unknown += 1
        await terminating
    connection.close()
    print(f"{answered} answered, {unknown} unknown")
    assert unknown > 0
    assert answered + unknown == 150 * 30

"""Connections to PostgreSQL that are ended at any moment: every call gets an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from waiting import LIMIT_S

from tidegate.core.errors import Unavailable
from tidegate.storage.postgres.messages import PipelineConnection
from tidegate_lab.faults.deployment import terminate_backends

QUESTION = b"select 1"


async def test_a_call_is_answered_whenever_its_backend_is_terminated(
    store: tuple[str, Path],
) -> None:
    """libuv tells of a broken socket once; what lay behind the last words was never read."""
    store_url, _ = store
    connection = PipelineConnection(store_url, (QUESTION,))
    answered = unknown = 0
    for _ in range(150):
        terminating = asyncio.create_task(asyncio.to_thread(terminate_backends, store_url))
        for _ in range(30):
            try:
                async with asyncio.timeout(LIMIT_S):
                    await connection.call([(QUESTION, [], [])] * 3)
                answered += 1
            except Unavailable:
                unknown += 1
        await terminating
    connection.close()
    print(f"{answered} answered, {unknown} unknown")
    assert unknown > 0
    assert answered + unknown == 150 * 30

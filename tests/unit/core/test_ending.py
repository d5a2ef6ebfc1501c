"""Tasks that are told to end do, also those that take a cancellation for something else."""

from __future__ import annotations

import asyncio

from tidegate.core.runtime import cancel_and_wait


async def test_a_task_that_loses_a_cancellation_is_told_again() -> None:
    lost = 0

    async def survives_outages() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                # As psycopg does when the server dies in the middle of a cancelled query.
                lost += 1
                if lost == 2:
                    raise

    task = asyncio.create_task(survives_outages())
    await asyncio.sleep(0)

    await cancel_and_wait([task])

    assert task.cancelled()
    assert lost == 2


async def test_cancel_and_wait_swallows_the_error_of_a_failed_task() -> None:
    async def fails() -> None:
        raise RuntimeError("too late to matter")

    await cancel_and_wait([asyncio.create_task(fails())])

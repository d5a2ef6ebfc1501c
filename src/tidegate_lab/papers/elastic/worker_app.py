"""The application of the ramp's workers; its handler does nothing.

The configured limit of a replica determines how fast a worker is.
"""

from __future__ import annotations

import tidegate

QUEUE = "orders"

app = tidegate.App()


@app.worker(QUEUE, concurrency=8)
async def handle(payload: bytes) -> None:
    """Return at once: the replica's limit makes the worker slow."""

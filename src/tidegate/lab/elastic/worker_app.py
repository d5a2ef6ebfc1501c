"""What workers of the ramp run: nothing; how fast a replica delivers is stated elsewhere."""

from __future__ import annotations

import tidegate

QUEUE = "orders"

app = tidegate.App()


@app.worker(QUEUE, concurrency=8)
async def handle(payload: bytes) -> None:
    """Done: the replica's stated rate is what makes a worker slow."""

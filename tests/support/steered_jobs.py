"""Workers that `tidegate steer --worker` starts beside each replica."""

from __future__ import annotations

import os

import tidegate

app = tidegate.App()


@app.worker("orders")
async def handle(message: tidegate.Message) -> bytes:
    return os.environ["TIDEGATE_REPLICA"].encode()

"""An app for `tidegate tune prefetch --worker tuned_application:app`."""

from __future__ import annotations

import tidegate

app = tidegate.App()


@app.worker("orders")
async def ship(order: bytes) -> None: ...

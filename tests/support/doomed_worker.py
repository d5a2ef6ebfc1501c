"""A worker process that is killed: python doomed_worker.py URL HISTORY NAME HANGS_AFTER

After so many deliveries its handlers hang, so that it is killed with messages in its hands; with 0
they never do. It writes down each delivery before it does anything, and that it lets go of it when
that is done, and says on its output how far it is.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from load import Load

import tidegate
from tidegate.demo.history import HistoryWriter


def main() -> None:
    url, path, name, hangs_after = sys.argv[1:]
    app = tidegate.App(url)
    history = HistoryWriter(Path(path), name)
    load = Load(history, "orders")

    @app.worker("orders", concurrency=4, prefetch=20)
    async def handle(message: tidegate.Message) -> None:
        load.delivered(message)
        history.flush()
        print(load.deliveries, flush=True)
        if 0 < int(hangs_after) <= load.deliveries:
            await asyncio.Event().wait()
        await asyncio.sleep(0.002)  # the handler's work
        load.acknowledges(message)
        history.flush()
        print(load.deliveries, flush=True)

    app.run()


if __name__ == "__main__":
    main()

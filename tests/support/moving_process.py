"""A process that moves or finishes moves and may be told to die on the way (TIDEGATE_CRASH_POINT).

Arguments: the stores' URLs, separated by blanks, and either a move as JSON or `finish`, a queue
and an epoch.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tidegate.core.topology import SegmentMove
from tidegate.storage.sharded import ShardedStore


async def main() -> None:
    store = ShardedStore(sys.argv[1].split())
    await store.open()
    if sys.argv[2] == "finish":
        print(await store.finish_moves(int(sys.argv[3]), int(sys.argv[4])))
    else:
        print(await store.move(SegmentMove(*json.loads(sys.argv[2]))))
    await store.close()


asyncio.run(main())

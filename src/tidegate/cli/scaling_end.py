"""The command `scale --off`: a logical queue becomes a plain one when its replicas are empty."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

from tidegate.cli.asking import queue_key
from tidegate.cli.rescaling import topology_of
from tidegate.core.errors import ChangedMeanwhile, TidegateError
from tidegate.core.scaling import Scaling, Steering
from tidegate.core.scaling_words import changed

if TYPE_CHECKING:
    from tidegate.client.client import Client

_LOOK_S = 0.2
# How long the rollback after Ctrl-C may take.
_TAKE_BACK_S = 3.0


async def end_scaling(mq: Client, queue: str) -> None:
    """Drain all replicas of a queue, wait until they are gone, and end its scaling.

    Ctrl-C during the wait restores the previous scaling.
    """
    topology = await topology_of(mq, queue)
    if topology is None:
        return
    key = queue_key(queue)
    if topology.replicas:
        going = changed(
            topology.scaling,
            {"min": 0, "steering": Steering.MANUAL, "replicas_wanted": 0},
        )
        before = topology.scaling
        await mq.set_scaling(key, going, before=before)
        print(f"waiting until the replicas of {queue} are empty", file=sys.stderr)
        try:
            while topology is not None and topology.replicas:
                await asyncio.sleep(_LOOK_S)
                topology = await topology_of(mq, queue)
        except asyncio.CancelledError:
            await _take_back(mq, queue, before, going)
            raise
    # Raise `ChangedMeanwhile` if another client changed the scaling while the replicas drained.
    await mq.set_scaling(key, None, before=None if topology is None else topology.scaling)


async def _take_back(mq: Client, queue: str, before: Scaling, going: Scaling) -> None:
    """Restore the scaling after Ctrl-C; if that fails, print how to continue."""
    try:
        async with asyncio.timeout(_TAKE_BACK_S):
            # Keep a change that another client made meanwhile.
            with contextlib.suppress(ChangedMeanwhile):
                await mq.set_scaling(queue_key(queue), before, before=going)
        print(f"queue {queue} goes on scaling as it did", file=sys.stderr)
    except (TidegateError, TimeoutError):
        least = before.replicas.min
        print(
            f"the replicas of {queue} go on draining: `tidegate scale {queue} --off` waits again, "
            f"`tidegate scale {queue} --auto --min {least}` keeps them",
            file=sys.stderr,
        )

"""What people want to know of prefetch control beside its steps: who decides, and redesigns.

A step is a row of the lake and a line of `tidegate explain QUEUE --prefetch`; a thousand consumers
make a thousand of them a second. Into the catalogue, where `tidegate explain` and every node read,
goes what changes: another mode, a limit reached, other gains, a ceiling found; the same about the
same queue not more often than once a minute, and when the store is away not at all.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import msgspec

from tidegate.core.errors import TidegateError
from tidegate.core.ports import Store
from tidegate.core.steering import Decision
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

_AGAIN_S = 60.0
# More at a time nobody reads.
_WAITING_MAX = 50


class PrefetchJournal:
    """Decisions on their way to the catalogue and the lake."""

    def __init__(self, store: Store, recorder: Recorder | None, wall: Callable[[], float]) -> None:
        self._store = store
        self._recorder = recorder
        self._wall = wall
        self._written: dict[tuple[str, str, str], float] = {}
        self._waiting: deque[Decision] = deque(maxlen=_WAITING_MAX)

    def note(self, decision: Decision, what: str) -> None:
        """Keep it, unless the same was said of the queue of late."""
        now = self._wall()
        about = (decision.service, decision.rule, what)
        self._written = {key: at for key, at in self._written.items() if now - at < _AGAIN_S}
        if about in self._written:
            return
        self._written[about] = now
        self._waiting.append(msgspec.structs.replace(decision, at=now))

    async def write(self) -> None:
        """What waits, to where people look."""
        while self._waiting:
            decision = self._waiting.popleft()
            if self._recorder is not None:
                self._recorder.decision(
                    decision.loop,
                    decision.service,
                    decision.law,
                    at_s=decision.at,
                    inputs=decision.inputs,
                    outputs=decision.outputs,
                    action="hold" if decision.rule.startswith("held") else "set prefetch",
                    reason=decision.reason,
                )
            try:
                _, epoch = await self._store.leader()
                document = msgspec.json.encode(decision)
                await self._store.note_decision(decision.service, document, epoch)
            except TidegateError as failure:
                log.warning("a decision about %s is not kept: %s", decision.service, failure)

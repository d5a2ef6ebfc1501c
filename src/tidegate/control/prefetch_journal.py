"""The journal of prefetch control.

Every control step is a row in the lake and a line of `tidegate explain QUEUE --prefetch`; a
thousand consumers make a thousand steps a second. The catalogue gets only changes: another mode, a
reached limit, other gains, a new ceiling. The same change of the same queue is recorded once a
minute at most. While the store is unavailable changes are dropped.
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
# Decisions that wait for the store; more at once would not be read.
_WAITING_MAX = 50


class PrefetchJournal:
    """Collects decisions, and writes them to the catalogue and the lake."""

    def __init__(self, store: Store, recorder: Recorder | None, wall: Callable[[], float]) -> None:
        self._store = store
        self._recorder = recorder
        self._wall = wall
        self._written: dict[tuple[str, str, str], float] = {}
        self._waiting: deque[Decision] = deque(maxlen=_WAITING_MAX)

    def note(self, decision: Decision, what: str) -> None:
        """Queue a decision, unless the same change of its queue was recorded lately."""
        now = self._wall()
        about = (decision.service, decision.rule, what)
        self._written = {key: at for key, at in self._written.items() if now - at < _AGAIN_S}
        if about in self._written:
            return
        self._written[about] = now
        self._waiting.append(msgspec.structs.replace(decision, at=now))

    async def write(self) -> None:
        """Write the queued decisions; log and drop what the store does not take."""
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

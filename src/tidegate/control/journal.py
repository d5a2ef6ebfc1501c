"""The journal: decisions for the lake's history and for `tidegate explain`.

Every executed change in the number of replicas or machines is recorded. Any other decision repeats
in every period with slightly different numbers: it is recorded when it begins, and every _AGAIN_S
seconds while it lasts. The newest entry must not be out of date, so the end of a hold or of a
problem is recorded too.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from tidegate.core.decisions import NON_SCALING_ACTIONS, AnyAction, Decision, format_rule
from tidegate.core.errors import TidegateError
from tidegate.core.store import Store
from tidegate.telemetry.recorder import Recorder

log = logging.getLogger(__name__)

# Seconds after which a continuing decision is recorded again.
_AGAIN_S = 60.0
# Characters kept of a problem that is over.
_OVER_MAX = 200


class DecisionStore(Protocol):
    """Stores decisions for people: the catalogue of a store, or the screen of `tidegate steer`."""

    async def note_decision(self, service: str, document: bytes, leader_epoch: int) -> None: ...


class Journal:
    """Records the decisions of the loops."""

    def __init__(
        self, notes: DecisionStore, recorder: Recorder | None, wall: Callable[[], float]
    ) -> None:
        self._notes = notes
        self._recorder = recorder
        self._wall = wall
        # What was recorded lately, and when.
        self._written: dict[tuple[str, str, str, str, str], float] = {}
        # By loop and service: the problem that the newest entry mentions; empty if none.
        self._trouble: dict[tuple[str, str], str] = {}

    async def write(self, decision: Decision, epoch: int, good: str = "") -> None:
        """Record a decision if it is worth it.

        `good` is a text about something that has been achieved; the decision is then always
        recorded.
        """
        now = self._wall()
        about, trouble = (decision.loop, decision.service), _trouble(decision)
        before = self._trouble.get(about, "")
        is_news = self._is_news(decision, now)
        if good or (before and not trouble and not is_news):
            words = filter(None, (good or _over(before), decision.outcome))
            decision = msgspec.structs.replace(decision, outcome="; ".join(words))
        elif not is_news:
            return
        self._trouble[about] = trouble
        # Use wall-clock time: people and history need it, and the loop's clock has no date. Leave
        # out infinite numbers, which JSON cannot express.
        kept = msgspec.structs.replace(
            decision, at=now, inputs=_finite(decision.inputs), outputs=_finite(decision.outputs)
        )
        if self._recorder is not None:
            self._recorder.decision(
                kept.loop,
                kept.service,
                kept.law,
                at_s=now,
                inputs=kept.inputs,
                outputs=kept.outputs,
                action=", ".join(map(action_label, kept.actions)) or "hold",
                reason=" ".join(filter(None, (kept.reason, kept.outcome))),
            )
        await self._notes.note_decision(kept.service, msgspec.json.encode(kept), epoch)

    def _is_news(self, decision: Decision, now: float) -> bool:
        """Return whether the decision changes a number, or differs from those recorded lately."""
        if decision.carried_out and any(
            not isinstance(action, NON_SCALING_ACTIONS) for action in decision.actions
        ):
            return True
        is_held = decision.rule.startswith("held")
        if not (decision.is_worth_keeping or decision.outcome or is_held):
            return False
        kinds = {type(action).__name__ for action in decision.actions}
        about = (
            *(decision.loop, decision.service, decision.rule),
            *(" ".join(sorted(kinds)), decision.outcome),
        )
        written = {key: at for key, at in self._written.items() if now - at < _AGAIN_S}
        self._written = written
        if about in written:
            return False
        written[about] = now
        return True


def _trouble(decision: Decision) -> str:
    """Return what holds the decision back or went wrong; empty if nothing."""
    return decision.outcome or (decision.rule if decision.rule.startswith("held") else "")


def _over(trouble: str) -> str:
    """Return the text that says that a problem is over."""
    if trouble in ("held: stale", "held: no measurement"):
        return "it is measured again"
    if trouble.startswith("recommend-only"):
        return "nothing is recommended any more"
    if trouble.startswith("held"):
        return f"no longer so: {format_rule(trouble)}"
    return f"no longer so: {trouble[:_OVER_MAX]}"


def _finite(numbers: dict[str, float]) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def action_label(action: AnyAction) -> str:
    """Return an action in a few words: `AddReplica 1`, `Drain 3`."""
    values = (getattr(action, name) for name in action.__struct_fields__)
    return " ".join([type(action).__name__, *(str(value) for value in values if value is not None)])


# The journal of prefetch control.
#
# Every control step is a row in the lake and a line of `tidegate explain QUEUE --prefetch`; a
# thousand consumers make a thousand steps a second. The catalogue gets only changes: another mode,
# a reached limit, other gains, a new ceiling. The same change of the same queue is recorded once a
# minute at most. While the store is unavailable changes are dropped.


_PREFETCH_AGAIN_S = 60.0
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
        self._written = {
            key: at for key, at in self._written.items() if now - at < _PREFETCH_AGAIN_S
        }
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

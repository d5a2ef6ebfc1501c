"""Records changes that users make to queues and services, among the decisions about them.

`tidegate explain` shows them, so that operators see who changed what and when. Any node writes such
a note, with the epoch of the present leader. If the leader changes in that moment, the note is
lost; the change itself is not.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import msgspec

from tidegate.core.by_hand import ByHand
from tidegate.core.by_hand import told as by_hand_told
from tidegate.core.errors import TidegateError
from tidegate.core.hosting import decided_about
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch_words import told as goal_told
from tidegate.core.scaling import Scaling
from tidegate.core.scaling_words import written
from tidegate.core.steering import PERSON, Decision

if TYPE_CHECKING:
    from tidegate.node.session import Session

log = logging.getLogger(__name__)


async def note_scaling(
    session: Session, queue: str, before: Scaling | None, after: Scaling | None
) -> None:
    """Record a change of scaling settings, if anything has changed. The change is made already."""
    if before != after:
        otherwise = "Without it the queue would scale as before."
        await _note(session, queue, told(before, after), otherwise)


async def note_policy(
    session: Session, queue: str, before: QueuePolicy, after: QueuePolicy
) -> None:
    """Record a change of the prefetch goal or of `paused`, if there is one."""
    if before.paused != after.paused:
        held = "It is paused: nothing is delivered until it is resumed."
        await _note(session, queue, held if after.paused else "It is resumed.", "")
    if before.prefetch != after.prefetch:
        reason = f"Prefetch {goal_told(after.prefetch)}, before {goal_told(before.prefetch)}."
        otherwise = "Without it consumers would have their prefetch as before."
        await _note(session, queue, reason, otherwise)


async def note_by_hand(session: Session, service: str, before: ByHand, after: ByHand) -> None:
    """Record a change of a service's override, if there is one."""
    if before != after:
        otherwise = "Without it the law would decide as before."
        reason = by_hand_told(before, after)
        reason = reason[0].upper() + reason[1:]
        await _note(session, decided_about(service), reason, otherwise, loop="http")


async def _note(
    session: Session, queue: str, reason: str, otherwise: str, *, loop: str = "queue"
) -> None:
    node = session.node
    who = session.guard.user or session.client_name or "a client without a name"
    change = Decision(
        at=node.clock.wall(),
        loop=loop,
        service=queue,
        law=PERSON,
        rule=f"changed by {who}",
        reason=reason,
        otherwise=otherwise,
        by=who,
    )
    if node.recording is not None:
        node.recording.recorder.decision(
            change.loop,
            queue,
            change.law,
            at_s=change.at,
            inputs={},
            outputs={},
            action=change.rule,
            reason=change.reason,
        )
    try:
        _, epoch = await node.store.leader()
        await node.store.note_decision(queue, msgspec.json.encode(change), epoch)
    except TidegateError as failure:
        log.warning("who has changed %s is not written down: %s", queue, failure)


def told(before: Scaling | None, after: Scaling | None) -> str:
    """Return the text of a change, in terms of the settings."""
    if after is None:
        return "It scales no more: a plain queue from now on."
    words = written(after)
    if before is None:
        bounds = f"{after.replicas.min} to {after.replicas.max}"
        return f"It scales from now on: {bounds} replicas, policy {after.policy}."
    old = written(before)
    return (
        ", ".join(
            f"{key} {_value(old[key])} → {_value(words[key])}"
            for key in words
            if words[key] != old[key]
        )
        + "."
    )


def _value(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['min']} to {value['max']}"
    return f"{value:g}" if isinstance(value, float) else str(value)

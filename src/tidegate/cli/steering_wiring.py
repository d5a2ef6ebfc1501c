"""How a node process gets its control shell; the settings' queues, made when the cluster starts.

What a running system was told wins over the settings: a node that is started again must not undo
what somebody said in the night. A section [queues.NAME] makes its queue where there is none and
scales it where nobody has said how; where the two differ, the log says so and how to apply it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.core.ending import ended
from tidegate.core.errors import ChangedMeanwhile
from tidegate.core.model import QueuePolicy
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.prefetch_words import told
from tidegate.core.scaling import Scaling
from tidegate.core.scaling_words import written

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.cli.settings.settings import Settings
    from tidegate.control.alerts import Alerts
    from tidegate.control.prefetch_loop import PrefetchLoop
    from tidegate.control.steering import Steering
    from tidegate.core.ports import Store
    from tidegate.fleet.fleet import Fleet
    from tidegate.node.server import Node

log = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def steered(
    node: Node, settings: Settings, store_urls: Sequence[str], config: Path | None = None
) -> AsyncIterator[None]:
    """While this lasts the node's loops run; they have ended before the node says goodbye."""
    from tidegate.cli.fleet_wiring import fleet_of

    recorder = None if node.recording is None else node.recording.recorder
    fleet = fleet_of(settings, node.store, store_urls, recorder, config)
    alerts = alerts_of(settings)
    running = [
        asyncio.create_task(steering_of(node, settings, fleet, alerts).run()),
        asyncio.create_task(prefetch_loop_of(node, settings).run()),
    ]
    try:
        yield
    finally:
        await ended(running)
        await alerts.stop()
        if fleet is not None:
            await fleet.close()


def alerts_of(settings: Settings) -> Alerts:
    """Who is told of what goes wrong."""
    from tidegate.control.alerts import Alerts, AlertSettings

    chosen = settings.alerts
    return Alerts(
        AlertSettings(
            command=chosen.command,
            webhook=chosen.webhook,
            warnings=chosen.warnings,
            timeout_s=chosen.timeout_s,
            attempts=chosen.attempts,
        )
    )


def steering_of(
    node: Node, settings: Settings, fleet: Fleet | None, alerts: Alerts | None = None
) -> Steering:
    """The loops of one node, with what its settings say about machines and knowledge."""
    from tidegate.adapters.native.actuator import NativeActuator
    from tidegate.adapters.native.sensor import NativeSensor
    from tidegate.control.learned import Learned
    from tidegate.control.steering import Steering
    from tidegate.telemetry.knowledge import Knowledge

    return Steering(
        node.store,
        lambda: node.member_id,
        NativeSensor(node.store.members, node.neighbours.asked),
        NativeActuator(node.store, node.neighbours.ask),
        fleet=fleet,
        learned=Learned(Knowledge(settings.knowledge_folder, log.warning)),
        recorder=None if node.recording is None else node.recording.recorder,
        alerts=alerts,
        clock=node.clock,
        agreements=agreements_of(settings),
    )


def agreements_of(settings: Settings) -> list[Agreement]:
    """What the settings promise; of documents that cannot be read, nothing, and the log says so."""
    from tidegate.agreement.document import AgreementInvalid, read_agreements

    try:
        return read_agreements(settings.pipeline.agreement_places)
    except AgreementInvalid as wrong:
        log.error("no agreement of [pipeline] is judged live: %s", wrong)
        return []


def prefetch_loop_of(node: Node, settings: Settings) -> PrefetchLoop:
    """What steers the prefetch of the consumers of the queues that this node owns."""
    from tidegate.control.learned_prefetch import LearnedPrefetch
    from tidegate.control.prefetch_journal import PrefetchJournal
    from tidegate.control.prefetch_loop import PrefetchLoop
    from tidegate.telemetry.knowledge import Knowledge

    recorder = None if node.recording is None else node.recording.recorder
    return PrefetchLoop(
        node.ownership.with_prefetch_goal,
        node.name,
        PrefetchJournal(node.store, recorder, node.clock.wall),
        learned=LearnedPrefetch(Knowledge(settings.knowledge_folder, log.warning)),
        recorder=recorder,
        clock=node.clock,
    )


async def declare_queues(store: Store, queues: Mapping[str, Scaling]) -> None:
    """Make the queues of the settings, and scale those of which nobody has said how."""
    for name, scaling in queues.items():
        queue = await store.create_queue(name, True) or await store.find_queue(None, name)
        if queue is None:
            continue
        topology = await store.topology(queue.queue_id)
        if topology is None:
            # Of several nodes that begin with these settings, one says it.
            with contextlib.suppress(ChangedMeanwhile):
                await store.set_scaling(queue.queue_id, scaling, None)
            log.info("queue scales as the settings say", extra={"queue": name})
        elif topology.scaling != scaling:
            said, held = written(scaling), written(topology.scaling)
            differ = ", ".join(
                f"{key} = {held[key]} (settings: {said[key]})"
                for key in said
                if said[key] != held[key]
            )
            log.warning(
                "queue %s was changed while it ran, and stays so: %s. `tidegate scale %s "
                "--from-settings` applies the settings",
                name,
                differ,
                name,
            )


async def declare_goals(store: Store, goals: Mapping[str, PrefetchGoal]) -> None:
    """Make the queues whose prefetch the settings steer; those that are there stay as they are."""
    for name, goal in goals.items():
        if await store.create_queue(name, True, QueuePolicy(prefetch=goal)) is not None:
            continue
        queue = await store.find_queue(None, name)
        if queue is not None and queue.policy.prefetch != goal:
            log.warning(
                "queue %s exists, and its prefetch stays as it is: %s (settings: %s). "
                "`tidegate policy %s --prefetch-…` changes it",
                name,
                told(queue.policy.prefetch),
                told(goal),
                name,
            )

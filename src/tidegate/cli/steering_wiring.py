"""The control loops of a node process, and the queues that the settings declare.

The state of the running system takes precedence over the settings. Otherwise the restart of a node
would undo an operator's change. A section [queues.NAME] creates its queue if it does not exist, and
sets its scaling if it has none. If both differ, the log reports it with the command that applies
the settings.
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
    """Run the node's control loops in this context; they end before the node leaves the cluster."""
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
    """Return the sender of alerts that the settings define."""
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
    """Return the control loops of one node."""
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
    """Return the agreements of the settings; log an error and return none if one is invalid."""
    from tidegate.agreement.document import AgreementInvalid, read_agreements

    try:
        return read_agreements(settings.pipeline.agreement_places)
    except AgreementInvalid as wrong:
        log.error("no agreement of [pipeline] is judged live: %s", wrong)
        return []


def prefetch_loop_of(node: Node, settings: Settings) -> PrefetchLoop:
    """Return the loop that controls the prefetch of consumers on the queues this node owns."""
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
    """Create the queues of the settings, and set the scaling of those without any."""
    for name, scaling in queues.items():
        queue = await store.create_queue(name, True) or await store.find_queue(None, name)
        if queue is None:
            continue
        topology = await store.topology(queue.queue_id)
        if topology is None:
            # If several nodes start with the same settings, one of them sets the scaling first.
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
    """Create the queues with a prefetch goal in the settings; existing queues keep their policy."""
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

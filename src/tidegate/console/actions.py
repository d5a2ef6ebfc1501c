"""Endpoints for overrides of a queue's prefetch, replicas and shares."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import delete, put
from litestar.params import FromPath, JSONBody

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doing import not_now, noted, queue_in
from tidegate.console.marks import prefetch_mark, scaling_mark
from tidegate.console.person import Person
from tidegate.console.problems import answers
from tidegate.console.wishes import Goal, Prefetch, Shares, Steer
from tidegate.core.errors import InvalidValue
from tidegate.core.model import QueueInfo, promised_by_another
from tidegate.core.prefetch_words import by_hand as prefetch_by_hand
from tidegate.core.prefetch_words import given_back, goal_of
from tidegate.core.replication import Topology, scaled_by_another
from tidegate.core.scaling import Steering
from tidegate.core.scaling_words import changed

# Prefetch


@put(
    "/queues/{name:str}/prefetch",
    status_code=204,
    responses=answers(404, 409),
    operation_id="set_prefetch",
    needs="configure; of one consumer admin",
    summary="Set the prefetch by hand, of all consumers or of one",
)
async def set_prefetch(request: AnyRequest, name: FromPath[str], data: JSONBody[Prefetch]) -> None:
    person, queue = await person_of(request), queue_in(name)
    if data.consumer is not None:
        what = f"prefetch {data.messages} for consumer {data.consumer}"
        async with noted(request, person, what, queue):
            await _set_one_prefetch(person, queue, data)
        return
    async with noted(request, person, f"prefetch {data.messages} by hand", queue):
        info = await _as_seen(person, queue, data.seen)
        try:
            goal = prefetch_by_hand(info.policy.prefetch, data.messages)
        except InvalidValue as wrong:
            # The goal's bounds exclude this prefetch.
            raise not_now(str(wrong)) from None
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


async def _as_seen(person: Person, queue: str, seen: str | None) -> QueueInfo:
    """Return the queue; raise if its prefetch settings have changed since the user looked."""
    info = await person.client.queue(queue)
    if seen is not None and seen != prefetch_mark(info.policy.prefetch):
        raise promised_by_another(queue)
    return info


async def _set_one_prefetch(person: Person, queue: str, data: JSONBody[Prefetch]) -> None:
    client = person.client
    client.forget_queue_id(queue)
    numbers = await client.stats(queue)
    found = [
        (part.queue_id, one)
        for node in numbers.nodes
        for part in node.queues
        for one in part.consumers
        if one.consumer == data.consumer and data.client_id in (None, one.client_id)
    ]
    if len(found) != 1:
        raise not_now(
            f"{len(found)} consumers of {queue!r} have the number {data.consumer}: say client_id "
            "and consumer of one that is there"
        )
    ((queue_id, one),) = found
    await client.set_consumer_prefetch(queue_id, one.client_id, one.consumer, data.messages)


@delete(
    "/queues/{name:str}/prefetch",
    responses=answers(404, 409),
    operation_id="give_back_prefetch",
    needs="configure",
    summary="Give the prefetch back: to its loop, or to consumers where nothing was steered",
)
async def give_back_prefetch(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "give the prefetch back", queue):
        info = await person.client.queue(queue)
        if info.policy.prefetch is None:
            raise not_now(f"nobody steers the prefetch of {queue!r}: set a goal, such as keep-up")
        goal = given_back(info.policy.prefetch)
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


@put(
    "/queues/{name:str}/prefetch-goal",
    status_code=204,
    responses=answers(404, 409),
    operation_id="set_prefetch_goal",
    needs="configure",
    summary="Say what the prefetch is steered to: 400/s, keep-up, off",
)
async def set_prefetch_goal(request: AnyRequest, name: FromPath[str], data: JSONBody[Goal]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, f"prefetch goal {data.goal}", queue):
        info = await _as_seen(person, queue, data.seen)
        try:
            # Start from the present goal, so that bounds, times and models stay.
            goal = goal_of(data.goal, info.policy.prefetch)
        except InvalidValue as wrong:
            raise not_now(str(wrong)) from None
        await person.client.set_policy(info.queue_id, before=info.policy, prefetch=goal)


# Replicas


@put(
    "/queues/{name:str}/steering",
    status_code=204,
    responses=answers(404, 409),
    operation_id="steer",
    needs="configure",
    summary="Say who decides how many replicas there are",
)
async def steer(request: AnyRequest, name: FromPath[str], data: JSONBody[Steer]) -> None:
    person, queue = await person_of(request), queue_in(name)
    told = f"{data.mode.value}" + ("" if data.replicas is None else f", {data.replicas} replicas")
    async with noted(request, person, f"steering {told}", queue):
        changes: dict[str, Any] = {"steering": data.mode.value}
        if data.mode is Steering.MANUAL:
            # Without a number, keep the present number of replicas.
            changes["replicas_wanted"] = data.replicas
        await _rescale(request, person, queue, changes, data.seen)


@put(
    "/queues/{name:str}/shares",
    status_code=204,
    responses=answers(404, 409),
    operation_id="set_shares",
    needs="configure",
    summary="Set by hand which part of new messages each replica gets",
)
async def set_shares(request: AnyRequest, name: FromPath[str], data: JSONBody[Shares]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "shares by hand", queue) as doing:
        shares = {int(number): part for number, part in data.shares.items()}
        await _rescale(request, person, queue, {"shares": shares}, data.seen)
        total = sum(shares.values())
        doing.outcome = ", ".join(f"{one}: {part / total:.0%}" for one, part in shares.items())


@delete(
    "/queues/{name:str}/shares",
    responses=answers(404, 409),
    operation_id="give_back_shares",
    needs="configure",
    summary="Give the shares back to their loop",
)
async def give_back_shares(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "give the shares back to their loop", queue):
        await _rescale(request, person, queue, {"shares": None})


async def _rescale(
    request: AnyRequest,
    person: Person,
    queue: str,
    changes: dict[str, Any],
    seen: str | None = None,
) -> None:
    client = person.client
    changing: asyncio.Lock = request.app.state.changing
    # Read, change and write under a lock: of two users at once, neither undoes the other's change.
    async with changing:
        info = await client.queue(queue)
        if not info.elastic:
            raise not_now(
                f"queue {queue!r} does not scale: `tidegate scale {queue} --min 1 --max 8` makes it"
            )
        topology = await client.topology(info.queue_id)
        if seen is not None and seen != scaling_mark(topology.scaling):
            raise scaled_by_another(queue)
        _check_replicas(topology, changes)
        bounds = topology.scaling.replicas
        if "replicas_wanted" in changes and changes["replicas_wanted"] is None:
            changes["replicas_wanted"] = min(max(len(topology.replicas), bounds.min), bounds.max)
        try:
            wanted = changed(topology.scaling, changes)
        except InvalidValue as wrong:
            raise not_now(str(wrong)) from None
        # Another console or a command does not use this lock; `before` makes the second change
        # fail.
        await client.set_scaling(info.queue_id, wanted, before=topology.scaling)


def _check_replicas(topology: Topology, changes: dict[str, Any]) -> None:
    """Refuse shares that name no existing replica.

    The law would otherwise keep deciding the shares, although the override seems to be set.
    """
    there = {one.number for one in topology.replicas}
    shares = changes.get("shares")
    if shares and there and not any(shares.get(number, 0.0) > 0.0 for number in there):
        numbers = ", ".join(map(str, sorted(there)[:20]))
        raise not_now(f"none of these replicas is there: say shares of {numbers}")

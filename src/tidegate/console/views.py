"""Read endpoints: overview, services, decisions, fleet, and live events."""

from __future__ import annotations

import re
from typing import Annotated

from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream

from tidegate.client.message import Message
from tidegate.console.overview import DECISIONS_SHOWN, explanations, live_events, no_service
from tidegate.console.schemas import (
    ConsumerView,
    DecisionView,
    FleetView,
    HostedView,
    Kind,
    MachineView,
    MessageView,
    NodeView,
    Overview,
    ServiceView,
    SlotView,
    prefetch_mark,
    scaling_mark,
)
from tidegate.console.security import RequestRefused, decoded_name, error_responses
from tidegate.console.sessions import AnyRequest, user_connection_of
from tidegate.console.snapshot import Key, Snapshot, agreement_in, with_timeout
from tidegate.console.watch import UserConnection
from tidegate.core.errors import InvalidValue, LimitReached
from tidegate.core.machines import MachineState, SlotKind
from tidegate.core.model import Right
from tidegate.core.services import Service
from tidegate.core.topology import Scaling
from tidegate.telemetry.stats import ConsumerStats, QueueStats

DECISIONS_MAX = 500
STREAMS_MAX = 200
CONSUMERS_MAX = 1_000

ServiceParameter = Annotated[
    str,
    QueryParameter(
        name="service",
        max_length=300,
        description="`queue/NAME` or `http/NAME`; empty: none, and of decisions those about "
        "machines.",
    ),
]
PointsParameter = Annotated[
    bool, QueryParameter(name="points", description="False: without the last 15 minutes.")
]
CountParameter = Annotated[int, QueryParameter(name="count", ge=1, le=DECISIONS_MAX)]


@get(
    "/overview",
    responses=error_responses(),
    operation_id="overview",
    needs="see",
    summary="All services",
)
async def overview(request: AnyRequest) -> Overview:
    return await (await user_connection_of(request)).watch.current()


@get(
    "/services/{kind:str}/{name:str}",
    responses=error_responses(404),
    operation_id="service",
    needs="see",
    summary="One service, with its last 15 minutes",
)
async def service(
    request: AnyRequest, kind: FromPath[str], name: FromPath[str], points: PointsParameter = True
) -> ServiceView:
    person = await user_connection_of(request)
    key = _key(kind, name)
    watch = person.watch
    watch.focus(key)
    await watch.current()
    row = watch.row(key)
    if row is None:
        # The service may be newer than the last snapshot.
        watch.hurry()
        await watch.next_snapshot()
        row = watch.row(key)
    if row is None:
        raise no_service(key)
    sight = watch.snapshot
    consumers: list[ConsumerView] = []
    topology = None
    goal = goal_mark = ""
    if key[0] is Kind.QUEUE:
        topology = sight.topologies.get(key[1])
        numbers = await with_timeout(person.client.stats(key[1]))
        found = [one for node in numbers.nodes for one in node.queues]
        consumers = [_consumer(part, one) for part in found for one in part.consumers]
        goal = next((one.prefetch_goal for one in found if one.prefetch_goal), "")
        policy = (await with_timeout(person.client.queue(key[1]))).policy
        goal_mark = prefetch_mark(policy.prefetch)
    scaling = None if topology is None else topology.scaling
    bounds = None if scaling is None else (scaling.replicas.min, scaling.replicas.max)
    # Read it from the node: the user may just have changed it, and sends its mark with the next
    # change.
    said = None if scaling is None else await _scaling_text(person, key[1])
    hosted = None
    if key[0] is Kind.HTTP and (service := await hosted_service(person, key[1])) is not None:
        hosted = hosted_view(service)
        bounds = hosted.by_hand.bounds(hosted.agreed_min, hosted.agreed_max)
    return ServiceView(
        row=row,
        agreement=watch.agreements.get(key),
        points=watch.timeline(key).points() if points else [],
        decisions=await explanations(person, key),
        consumers=consumers[:CONSUMERS_MAX],
        replicas_min=None if bounds is None else bounds[0],
        replicas_max=None if bounds is None else bounds[1],
        policy="" if scaling is None else scaling.policy.value,
        scaling_mark="" if said is None else scaling_mark(said),
        shares_by_hand=said is not None and said.shares is not None,
        prefetch_goal=goal,
        prefetch_mark=goal_mark,
        hosted=hosted,
        allowed=_allowed(person, key, is_elastic=scaling is not None),
    )


@get(
    "/decisions",
    responses=error_responses(404),
    operation_id="decisions",
    needs="see",
    summary="What was decided, and why",
)
async def decisions(
    request: AnyRequest, about: ServiceParameter = "", count: CountParameter = DECISIONS_SHOWN
) -> list[DecisionView]:
    person = await user_connection_of(request)
    return await explanations(person, _key_of(about) if about else None, count)


@get(
    "/fleet",
    responses=error_responses(),
    operation_id="fleet",
    needs="logged in",
    summary="Machines, slots and nodes",
)
async def fleet(request: AnyRequest) -> FleetView:
    person = await user_connection_of(request)
    await person.watch.current()
    return fleet_view(person.watch.snapshot, await explanations(person, None))


@get(
    "/live",
    responses={
        **error_responses(404),
        200: ResponseSpec(
            data_container=str,
            description="Server-sent events: `overview` each second; of a service also `point` "
            "and `decision`. The data of each is JSON.",
            media_type="text/event-stream",
            generate_examples=False,
        ),
    },
    operation_id="live",
    needs="see",
    summary="The same as it happens",
    include_in_schema=True,
)
async def live(request: AnyRequest, about: ServiceParameter = "") -> Stream:
    person = await user_connection_of(request)
    key = _key_of(about) if about else None
    streams: set[object] = request.app.state.streams
    if len(streams) >= STREAMS_MAX:
        raise LimitReached(f"{STREAMS_MAX} pages are open: close some")
    # Before the response begins, so that an error becomes an error response.
    await person.watch.current()
    events = live_events(request, person, key)
    return Stream(events, media_type="text/event-stream")


def _key_of(about: str) -> Key:
    kind, _, name = about.partition("/")
    return _key(kind, name)


def _key(kind: str, name: str) -> Key:
    try:
        found = Kind(kind)
    except ValueError:
        raise RequestRefused(
            404, "NOT_FOUND", f"a service is a queue or http, not {kind[:40]!r}"
        ) from None
    if not name:
        raise RequestRefused(404, "NOT_FOUND", "a service has a name: queue/orders")
    return found, decoded_name(name)


def _consumer(part: QueueStats, one: ConsumerStats) -> ConsumerView:
    return ConsumerView(
        consumer=one.consumer,
        client_id=one.client_id,
        client=one.client_name,
        replica=part.replica,
        prefetch=one.prefetch,
        unacknowledged=one.unacknowledged,
        acked_per_s=one.acked_per_s,
        mode=one.control[-1].mode if one.control else "",
    )


async def _scaling_text(person: UserConnection, queue: str) -> Scaling | None:
    """Return a queue's scaling settings; None if it does not scale any more."""
    try:
        return (await with_timeout(person.client.topology(queue))).scaling
    except InvalidValue:
        # It does not scale any more.
        return None


def _allowed(person: UserConnection, key: Key, *, is_elastic: bool) -> list[str]:
    """Return what the user may do with a service."""
    kind, name = key
    if kind is Kind.HTTP:
        return ["by-hand"] if person.may(Right.CONFIGURE, name) else []
    found = []
    if person.may(Right.READ, name):
        found.append("browse")
    if person.may(Right.WRITE, name):
        found.append("put")
    if person.may(Right.CONFIGURE, name):
        found += ["pause", "prefetch", "goal", "purge", "delete"]
        if is_elastic:
            found += ["scaling", "shares"]
    if person.may(Right.ADMIN, name):
        found.append("prefetch-of-one")
    # Each dead letter goes to its own original queue, where the broker checks the right to write. A
    # user without any right to write cannot redrive.
    if person.may(Right.READ, name) and not person.read_only:
        found.append("redrive")
    return found


# The fleet as a map: machines, their slots, and nodes.


def fleet_view(sight: Snapshot, decisions: list[DecisionView]) -> FleetView:
    fleet = sight.fleet
    held: dict[int, list[SlotView]] = {}
    for slot in fleet.slots:
        kind = Kind.HTTP if slot.kind is SlotKind.INSTANCE else Kind.QUEUE
        held.setdefault(slot.machine_id, []).append(
            SlotView(
                service=slot.queue,
                kind=kind,
                number=slot.number,
                state=slot.state,
                share=slot.share,
            )
        )
    machines = [
        MachineView(
            machine_id=one.machine_id,
            state=one.state.value,
            slots=one.slots,
            held=held.get(one.machine_id, []),
            host=one.host,
            address=one.address,
            booting_s=max(sight.at - one.ordered_at, 0.0)
            if one.state is MachineState.BOOTING
            else None,
            detail=one.detail,
        )
        for one in fleet.machines
    ]
    nodes = [
        NodeView(
            member_id=one.member_id,
            name=one.name,
            address=one.address,
            uptime_s=one.uptime_s,
            queues=len(one.queues) + one.queues_left_out,
            connections=one.connections,
            memory_bytes=one.process_memory_bytes,
            commit_p99_s=one.commit.p99_ms / 1e3 if one.commit.count else None,
            is_leader=one.member_id == fleet.leader,
        )
        for one in sight.numbers.nodes
    ]
    return FleetView(
        at=sight.at,
        leader=fleet.leader,
        machines=machines,
        nodes=nodes,
        unplaced=fleet.unplaced,
        instances_waiting=fleet.instances_waiting,
        decisions=decisions,
    )


# The overrides of an HTTP application, beside the deployed and agreed values.


async def hosted_service(person: UserConnection, name: str) -> Service | None:
    """Return the service as stored now; None if it is missing, or invisible to the user."""
    if person.store is None or not person.may(Right.SEE, name):
        return None
    return next(
        (o for o in await with_timeout(person.store.services()) if o.spec.name == name), None
    )


def hosted_view(service: Service) -> HostedView:
    """Return the view of a service; an unreadable agreement sets no bounds."""
    agreement = agreement_in(service.spec.agreement, service.spec.name)
    agreed = None if agreement is None else agreement.resources
    return HostedView(
        by_hand=service.by_hand,
        concurrency=service.spec.concurrency,
        agreed_min=1 if agreed is None else max(agreed.replicas_min, 1),
        agreed_max=None if agreed is None else agreed.replicas_max,
    )


# Messages for display: as text, else in hexadecimal, and only the beginning of a large one.


TEXT_BYTES_MAX = 64 * 1024
HEX_BYTES_MAX = 4 * 1024
# A regular expression, because a search checks thousands of texts, and a Python loop over their
# characters would block all users.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


def message_view(message: Message) -> MessageView:
    payload = bytes(message.payload)
    text = _text(payload[:TEXT_BYTES_MAX], is_cut=len(payload) > TEXT_BYTES_MAX)
    shown = TEXT_BYTES_MAX if text is not None else HEX_BYTES_MAX
    death = message.deaths[-1] if message.deaths else None
    reason = ""
    if death is not None:
        reason = death.reason.value
        if death.error:
            reason += f": {death.error}"
        elif death.failures and death.failures[-1].error:
            reason += f": {death.failures[-1].error}"
        elif death.failures:
            reason += f": {death.failures[-1].reason}"
    return MessageView(
        message_id=message.message_id,
        at=message.arrived_at,
        priority=message.priority,
        size_bytes=len(payload),
        text=text,
        payload_hex=payload[:HEX_BYTES_MAX].hex() if text is None else None,
        truncated=len(payload) > shown,
        headers=dict(message.headers),
        delivery_count=message.delivery_count if death is None else death.deliveries,
        reason=reason,
        origin="" if death is None else death.queue,
    )


def fits(message: MessageView, wanted: str) -> bool:
    """Return whether a message contains a text in any displayed part."""
    if not wanted:
        return True
    lowered = wanted.lower()
    texts = (message.text or message.payload_hex or "", message.reason, message.origin)
    if any(lowered in one.lower() for one in texts) or wanted == str(message.message_id):
        return True
    return any(lowered in f"{key}: {value}".lower() for key, value in message.headers.items())


def _text(payload: bytes, *, is_cut: bool) -> str | None:
    """Decode UTF-8 without control characters; None if it is something else.

    If the payload was cut, an incomplete last character is dropped.
    """
    # At most the last three bytes belong to an incomplete character.
    for end in range(len(payload), max(len(payload) - 4, -1), -1) if is_cut else [len(payload)]:
        try:
            text = payload[:end].decode()
        except UnicodeDecodeError:
            continue
        return None if _CONTROL.search(text) else text
    return None

"""Read endpoints: overview, services, decisions, fleet, and live events."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, QueryParameter
from litestar.response import Stream

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doorkeeper import name_in
from tidegate.console.explanations import DECISIONS_SHOWN, explanations, no_service
from tidegate.console.fleet_views import fleet_view
from tidegate.console.hosted_views import hosted_service, hosted_view
from tidegate.console.live_events import live_events
from tidegate.console.marks import prefetch_mark, scaling_mark
from tidegate.console.model import (
    ConsumerView,
    DecisionView,
    FleetView,
    Kind,
    Overview,
    ServiceView,
)
from tidegate.console.person import Person
from tidegate.console.problems import Refused, answers
from tidegate.console.services_seen import Key
from tidegate.console.sight import in_time
from tidegate.core.errors import InvalidValue, LimitReached
from tidegate.core.scaling import Scaling
from tidegate.core.users import Right
from tidegate.telemetry.numbers import ConsumerNumbers, QueueNumbers

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


@get("/overview", responses=answers(), operation_id="overview", needs="see", summary="All services")
async def overview(request: AnyRequest) -> Overview:
    return await (await person_of(request)).watch.current()


@get(
    "/services/{kind:str}/{name:str}",
    responses=answers(404),
    operation_id="service",
    needs="see",
    summary="One service, with its last 15 minutes",
)
async def service(
    request: AnyRequest, kind: FromPath[str], name: FromPath[str], points: PointsParameter = True
) -> ServiceView:
    person = await person_of(request)
    key = _key(kind, name)
    watch = person.watch
    watch.focus(key)
    await watch.current()
    row = watch.row(key)
    if row is None:
        # The service may be newer than the last snapshot.
        watch.hurry()
        await watch.next_look()
        row = watch.row(key)
    if row is None:
        raise no_service(key)
    sight = watch.sight
    consumers: list[ConsumerView] = []
    topology = None
    goal = goal_mark = ""
    if key[0] is Kind.QUEUE:
        topology = sight.topologies.get(key[1])
        numbers = await in_time(person.client.stats(key[1]))
        found = [one for node in numbers.nodes for one in node.queues]
        consumers = [_consumer(part, one) for part in found for one in part.consumers]
        goal = next((one.prefetch_goal for one in found if one.prefetch_goal), "")
        policy = (await in_time(person.client.queue(key[1]))).policy
        goal_mark = prefetch_mark(policy.prefetch)
    scaling = None if topology is None else topology.scaling
    bounds = None if scaling is None else (scaling.replicas.min, scaling.replicas.max)
    # Read it from the node: the user may just have changed it, and sends its mark with the next
    # change.
    said = None if scaling is None else await _said(person, key[1])
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
    responses=answers(404),
    operation_id="decisions",
    needs="see",
    summary="What was decided, and why",
)
async def decisions(
    request: AnyRequest, about: ServiceParameter = "", count: CountParameter = DECISIONS_SHOWN
) -> list[DecisionView]:
    person = await person_of(request)
    return await explanations(person, _key_of(about) if about else None, count)


@get(
    "/fleet",
    responses=answers(),
    operation_id="fleet",
    needs="logged in",
    summary="Machines, slots and nodes",
)
async def fleet(request: AnyRequest) -> FleetView:
    person = await person_of(request)
    await person.watch.current()
    return fleet_view(person.watch.sight, await explanations(person, None))


@get(
    "/live",
    responses={
        **answers(404),
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
    person = await person_of(request)
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
        raise Refused(
            404, "NOT_FOUND", f"a service is a queue or http, not {kind[:40]!r}"
        ) from None
    if not name:
        raise Refused(404, "NOT_FOUND", "a service has a name: queue/orders")
    return found, name_in(name)


def _consumer(part: QueueNumbers, one: ConsumerNumbers) -> ConsumerView:
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


async def _said(person: Person, queue: str) -> Scaling | None:
    """Return a queue's scaling settings; None if it does not scale any more."""
    try:
        return (await in_time(person.client.topology(queue))).scaling
    except InvalidValue:
        # It does not scale any more.
        return None


def _allowed(person: Person, key: Key, *, is_elastic: bool) -> list[str]:
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

"""Overrides of HTTP applications: instances, bounds and concurrency."""

from __future__ import annotations

from litestar import put
from litestar.params import FromPath, JSONBody

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doing import not_now, noted, queue_in
from tidegate.console.explanations import no_service
from tidegate.console.hosted_views import hosted_service, hosted_view
from tidegate.console.model import Kind
from tidegate.console.problems import answers
from tidegate.console.wishes import HoldService
from tidegate.core.by_hand import ByHand, complaints, told


@put(
    "/services/{kind:str}/{name:str}/by-hand",
    status_code=204,
    responses=answers(404, 409),
    operation_id="hold_service",
    needs="configure",
    summary="Set what an HTTP application has by hand: what is not said, the law decides",
)
async def hold_service(
    request: AnyRequest, kind: FromPath[str], name: FromPath[str], data: JSONBody[HoldService]
) -> None:
    """Set or remove the overrides.

    `seen` contains the overrides when the user looked; 409 if they have changed since.
    """
    person, service = await person_of(request), queue_in(name)
    if kind != Kind.HTTP.value:
        raise no_service((Kind.HTTP, service))
    known = await hosted_service(person, service)
    if known is None:
        raise no_service((Kind.HTTP, service))
    wanted = ByHand(
        instances=data.instances,
        least=data.least,
        most=data.most,
        concurrency=data.concurrency,
        in_flight_max=data.in_flight_max,
    )
    before = known.by_hand if data.seen is None else data.seen
    what = f"by hand: {told(before, wanted).rstrip('.') or 'as it is'}"
    async with noted(request, person, what, service):
        view = hosted_view(known)
        if wrong := complaints(wanted, view.agreed_min, view.agreed_max):
            raise not_now("; ".join(wrong))
        await person.client.steer_service(service, wanted, before=before)

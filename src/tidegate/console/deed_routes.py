"""The audit log's endpoint."""

from __future__ import annotations

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.deeds import Deeds
from tidegate.console.model import Deed
from tidegate.console.problems import answers
from tidegate.core.users import Right


@get(
    "/deeds",
    responses=answers(),
    operation_id="deeds",
    needs="logged in",
    summary="What people have done here",
)
async def deeds(
    request: AnyRequest, count: Annotated[int, QueryParameter(name="count", ge=1, le=1000)] = 200
) -> list[Deed]:
    person = await person_of(request)
    found: Deeds = request.app.state.deeds
    # Users without full administration see their own entries, and those about queues they may see.
    return [
        one
        for one in found.newest_first(count if person.is_admin else 10 * count)
        if person.is_admin or one.user == person.user or person.may(Right.SEE, one.service)
    ][:count]

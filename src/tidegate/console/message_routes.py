"""Endpoints for messages: browse, put, and redrive dead letters."""

from __future__ import annotations

import asyncio
from typing import Annotated

from litestar import get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from tidegate.client.options import PutOptions
from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doing import not_now, noted, queue_in
from tidegate.console.message_views import fits, message_view
from tidegate.console.model import MessagePage, MessageView
from tidegate.console.person import Person
from tidegate.console.problems import answers
from tidegate.console.wishes import Moved, NewMessage, Put, Redrive
from tidegate.core.errors import InvalidValue

MESSAGES_SHOWN = 50
MESSAGES_MAX = 500
# Maximum number of messages that one request searches for a text.
_SEARCHED_MAX = 5_000
# The same in bytes; a client continues the search with another request.
_SEARCHED_BYTES_MAX = 128 * 1024 * 1024
_LOT_BYTES = 8 * 1024 * 1024
# First batch, while the messages' size is unknown.
_LOT_FIRST = 8
_LOOK_S_MAX = 12.0
_ID_MAX = 2**53

AfterParameter = Annotated[int, QueryParameter(name="after", ge=0, le=_ID_MAX)]
CountParameter = Annotated[int, QueryParameter(name="count", ge=1, le=MESSAGES_MAX)]
FilterParameter = Annotated[str, QueryParameter(name="filter", max_length=200)]


@get(
    "/queues/{name:str}/messages",
    responses=answers(404),
    operation_id="browse",
    needs="read",
    summary="Look at messages that wait; nothing is taken",
)
async def browse(
    request: AnyRequest,
    name: FromPath[str],
    after: AfterParameter = 0,
    count: CountParameter = MESSAGES_SHOWN,
    wanted: FilterParameter = "",
) -> MessagePage:
    person = await person_of(request)
    queue = queue_in(name)
    async with asyncio.timeout(_LOOK_S_MAX):
        is_elastic = (await person.client.queue(queue)).elastic
        if is_elastic:
            return await _only_page(person, queue, count, wanted)
        return await _page(person, queue, after, count, wanted)


async def _only_page(person: Person, queue: str, count: int, wanted: str) -> MessagePage:
    """Return the only page of a logical queue: each replica has its own ids, so no page follows."""
    limit = MESSAGES_MAX if wanted else count
    # Count before browsing, because messages may leave meanwhile. A node silently omits messages
    # beyond half a frame, so fewer than counted means that some are missing.
    numbers = await person.client.stats(queue)
    parts = [part for node in numbers.nodes for part in node.queues]
    # Delayed messages are not browsed.
    waiting = sum(part.waiting - part.delayed for part in parts)
    # Ask for one more than needed, to detect whether there are more.
    lot = await person.client.browse(queue, limit=limit + 1)
    is_cut = len(lot) > limit or len(lot) < waiting
    looked_at = lot[:limit]
    found = [view for view in map(message_view, looked_at) if fits(view, wanted)]
    return MessagePage(
        messages=found[:count],
        is_cut=is_cut or len(found) > count,
        looked_at=len(looked_at),
    )


async def _page(person: Person, queue: str, after: int, count: int, wanted: str) -> MessagePage:
    """Return a page, read in batches of a few megabytes, however large the messages are."""
    found: list[MessageView] = []
    looked_at, looked_at_bytes, limit = 0, 0, _LOT_FIRST
    while looked_at < _SEARCHED_MAX and looked_at_bytes < _SEARCHED_BYTES_MAX:
        lot = await person.client.browse(queue, limit=limit, first_id=after + 1 if after else 0)
        for message in lot:
            if len(found) == count:
                return MessagePage(messages=found, next_after=after)
            after = message.message_id
            view = message_view(message)
            if fits(view, wanted):
                found.append(view)
        if len(lot) < limit:
            return MessagePage(messages=found)
        looked_at += len(lot)
        looked_at_bytes += sum(len(message.payload) for message in lot)
        mean_bytes = looked_at_bytes // looked_at + 1
        limit = min(max(_LOT_BYTES // mean_bytes, 1), MESSAGES_MAX)
    return MessagePage(messages=found, next_after=after)


@post(
    "/queues/{name:str}/messages",
    responses=answers(404),
    operation_id="put_message",
    needs="write",
    summary="Put a message",
)
async def put_message(request: AnyRequest, name: FromPath[str], data: JSONBody[NewMessage]) -> Put:
    person, queue = await person_of(request), queue_in(name)
    options = PutOptions(priority=data.priority)
    if data.headers:
        options["headers"] = data.headers
    if data.delay_s is not None:
        options["delay"] = data.delay_s
    if data.group is not None:
        options["group"] = data.group
    async with noted(request, person, "put a message", queue) as doing:
        message_id = await person.client.put(queue, data.text.encode(), **options)
        doing.outcome = f"message {message_id}"
    return Put(message_id)


@post(
    "/queues/{name:str}/redrive",
    status_code=200,
    responses=answers(404, 409),
    operation_id="redrive",
    needs="read there, write where they go",
    summary="Send dead letters back; the queue is that of the dead letters",
)
async def redrive(request: AnyRequest, name: FromPath[str], data: JSONBody[Redrive]) -> Moved:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "redrive dead letters", queue, is_long=True) as doing:
        try:
            moved = await person.client.redrive(queue, to=data.to, limit=data.count)
        except InvalidValue as wrong:
            # For example, the target queue does not exist.
            raise not_now(str(wrong)) from None
        doing.outcome = f"{moved} went {'back' if data.to is None else f'to {data.to}'}"
    return Moved(moved)

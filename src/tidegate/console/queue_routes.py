"""Endpoints for queues: create, pause, purge, delete; each change is audited."""

from __future__ import annotations

from litestar import delete, post
from litestar.params import FromPath, JSONBody

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doing import noted, queue_in
from tidegate.console.problems import answers
from tidegate.console.wishes import NewQueue, Purged


@post(
    "/queues",
    status_code=204,
    responses=answers(409),
    operation_id="create_queue",
    needs="configure",
    summary="Make a queue",
)
async def create_queue(request: AnyRequest, data: JSONBody[NewQueue]) -> None:
    person = await person_of(request)
    async with noted(request, person, "make a queue", data.name):
        await person.client.create_queue(data.name, durable=data.durable)


@delete(
    "/queues/{name:str}",
    responses=answers(404),
    operation_id="delete_queue",
    needs="configure",
    summary="Delete a queue and all that is in it",
)
async def delete_queue(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "delete the queue", queue, is_long=True):
        person.client.forget_queue_id(queue)
        await person.client.delete_queue(queue)


@post(
    "/queues/{name:str}/pause",
    status_code=204,
    responses=answers(404),
    operation_id="pause",
    needs="configure",
    summary="Deliver nothing until it is resumed",
)
async def pause(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "pause", queue):
        await person.client.pause(queue)


@post(
    "/queues/{name:str}/resume",
    status_code=204,
    responses=answers(404),
    operation_id="resume",
    needs="configure",
    summary="Deliver again",
)
async def resume(request: AnyRequest, name: FromPath[str]) -> None:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "resume", queue):
        await person.client.resume(queue)


@post(
    "/queues/{name:str}/purge",
    status_code=200,
    responses=answers(404),
    operation_id="purge",
    needs="configure",
    summary="Drop every message that waits",
)
async def purge(request: AnyRequest, name: FromPath[str]) -> Purged:
    person, queue = await person_of(request), queue_in(name)
    async with noted(request, person, "purge", queue, is_long=True) as doing:
        person.client.forget_queue_id(queue)
        count = await person.client.purge(queue)
        doing.outcome = f"{count} messages dropped"
    return Purged(count)

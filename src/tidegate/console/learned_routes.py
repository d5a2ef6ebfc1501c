"""Endpoints for learned models and report pages; files are read in a thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

from litestar import Response, get
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath

from tidegate.console.access import AnyRequest, person_of
from tidegate.console.doorkeeper import SLASH
from tidegate.console.model import ModelView, ResultView
from tidegate.console.models_learned import models_learned
from tidegate.console.problems import Refused, answers
from tidegate.console.results import Results
from tidegate.core.replication import logical_name
from tidegate.core.users import Right


@get("/models", responses=answers(), operation_id="models", needs="see", summary="What was learned")
async def models(request: AnyRequest) -> list[ModelView]:
    person = await person_of(request)
    folder: Path | None = request.app.state.options.knowledge
    if folder is None:
        return []
    found = await asyncio.to_thread(models_learned, folder)
    return [one for one in found if person.is_admin or person.may(Right.SEE, _queue_of(one))]


def _queue_of(model: ModelView) -> str:
    """Return the queue of a model's subject.

    The subject is a queue, whose name may contain slashes; of a prefetch model it is
    `queue/client`.
    """
    if model.kind == "prefetch":
        # Split as the prefetch loop does; without a client the subject is the queue.
        return logical_name(model.subject.rpartition("/")[0] or model.subject)
    return logical_name(model.subject)


@get(
    "/results",
    responses=answers(),
    operation_id="results",
    needs="logged in",
    summary="Pages of experiments and reports",
)
async def results(request: AnyRequest) -> list[ResultView]:
    await person_of(request)
    folders = Results(request.app.state.options.results)
    return await asyncio.to_thread(folders.newest_first)


@get(
    "/results/{path:path}",
    responses={
        **answers(404),
        200: ResponseSpec(
            data_container=bytes,
            description="The page, sandboxed.",
            media_type="text/html",
            generate_examples=False,
        ),
    },
    operation_id="result",
    needs="logged in",
    summary="One of these pages",
)
async def result(request: AnyRequest, path: FromPath[str]) -> Response[bytes]:
    await person_of(request)
    folders = Results(request.app.state.options.results)
    found = await asyncio.to_thread(folders.file, str(path).replace(SLASH, "/"))
    if found is None:
        raise Refused(404, "NOT_FOUND", "there is no such page: see /api/results")
    content, media_type = found
    return Response(content, media_type=media_type)

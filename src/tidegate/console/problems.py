"""Error responses: a code, the cause and the remedy, and never a traceback."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec

from tidegate.console.model import Problem
from tidegate.core import errors

log = logging.getLogger(__name__)

# The first match counts.
_STATUS: tuple[tuple[type[errors.TidegateError], int], ...] = (
    (errors.QueueNotExisting, 404),
    (errors.TopicNotExisting, 404),
    (errors.ClientNotExisting, 404),
    (errors.UniqueConstraint, 409),
    (errors.ChangedMeanwhile, 409),
    (errors.Forbidden, 403),
    (errors.ModeForbids, 403),
    (errors.NotAuthenticated, 401),
    (errors.TooLarge, 413),
    (errors.LimitReached, 429),
    (errors.CallerError, 400),
    (errors.RetryLater, 503),
)
_WORDS = {
    400: ("INVALID", "the request cannot be understood"),
    401: ("NOT_AUTHENTICATED", "log in"),
    403: ("FORBIDDEN", "this user may not do that"),
    404: ("NOT_FOUND", "there is nothing of that name: see /api/openapi.json for what there is"),
    405: ("METHOD_NOT_ALLOWED", "not with this method: see /api/openapi.json"),
    409: ("CONFLICT", "there is one of that name"),
    413: ("TOO_LARGE", "the request is too large"),
    415: ("NOT_JSON", "send JSON, with Content-Type: application/json"),
    429: ("LIMIT_REACHED", "too many: wait a moment"),
    503: ("UNAVAILABLE", "no node answers: look whether `tidegate up` runs"),
}
_BUG = ("INTERNAL_ERROR", "a bug of ours: the log of the console says more")


class Refused(Exception):
    """A request that the console refuses, not the broker."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        self.status = status
        self.problem = Problem(error=error, detail=detail)
        super().__init__(detail)


def answers(*statuses: int) -> dict[int, ResponseSpec]:
    """Return the descriptions of these error statuses, and of the common ones."""
    return {
        status: ResponseSpec(
            data_container=Problem, description=_WORDS[status][1], generate_examples=False
        )
        for status in sorted({*statuses, 400, 401, 403, 405, 413, 429, 503})
    }


def _answer(status: int, problem: Problem) -> Response[bytes]:
    # Not Basic, although programs may use it: browsers would open their own password dialog.
    headers = {"WWW-Authenticate": 'Session realm="tidegate"'} if status == 401 else {}
    if status in (429, 503):
        headers["Retry-After"] = "1" if status == 503 else "60"
    # Encode here: the framework's encoding must not fail on an error response.
    return Response(
        msgspec.json.encode(problem),
        status_code=status,
        media_type=MediaType.JSON,
        headers=headers,
    )


def on_refused(_: Request[Any, Any, Any], refused: Refused) -> Response[bytes]:
    return _answer(refused.status, refused.problem)


def on_error(_: Request[Any, Any, Any], error: errors.TidegateError) -> Response[bytes]:
    """Respond to an error from the broker."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    if status == 500:
        log.error("unexpected: %r", error)
        return _answer(500, Problem(error=_BUG[0], detail=_BUG[1]))
    return _answer(status, Problem(error=error.name, detail=str(error)))


def on_http(_: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
    """Respond to an error from the framework, such as an unknown path or a missing field."""
    status = error.status_code
    if status >= 500:
        log.error("unexpected: %r", error, exc_info=error)
        return _answer(500, Problem(error=_BUG[0], detail=_BUG[1]))
    name, what = _WORDS.get(status, _WORDS[400])
    if status == 400 and isinstance(error.extra, list):
        # The field and what is wrong with it.
        told = [
            f"{one.get('key', '')}: {one['message']}".removeprefix(": ")
            for one in error.extra
            if isinstance(one, dict) and "message" in one
        ]
        what = "; ".join(told) or what
    elif status == 400:
        what = error.detail or what
    return _answer(status, Problem(error=name, detail=what[:500]))


def on_bug(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, TimeoutError):
        return _answer(503, Problem(error=_WORDS[503][0], detail="no answer in time: try again"))
    log.error("a bug", exc_info=error)
    return _answer(500, Problem(error=_BUG[0], detail=_BUG[1]))

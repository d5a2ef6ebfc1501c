"""A response that the gateway makes itself instead of a server's."""

from __future__ import annotations

from http import HTTPStatus

from tidegate.core.errors import CallerError

# Statuses of the server class that a client has caused itself: a method or version that is not
# supported, and a request that has passed this gateway before.
CLIENT_FAULTS = frozenset((501, 505, 508))


class Refusal(CallerError):
    """The reason and status of a rejected request; the connection is closed after most of them.

    After bytes that are no valid request, the meaning of the following bytes is unknown.
    """

    def __init__(
        self, status: int, why: str, *, retry_after_s: int | None = None, close: bool = True
    ) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.retry_after_s = retry_after_s
        self.close = close

    @property
    def phrase(self) -> str:
        return HTTPStatus(self.status).phrase

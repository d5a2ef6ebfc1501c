"""A request that the gateway answers itself, and why."""

from __future__ import annotations

from http import HTTPStatus

from tidegate.core.errors import CallerError

# What a client has brought about by itself, though the status is one of servers: a method or a
# version that is not passed on, and a request that says to have been here before.
CLIENT_FAULTS = frozenset((501, 505, 508))


class Refusal(CallerError):
    """The answer instead of a server's; after most of them the connection is closed.

    Whoever sent bytes that are no request may mean anything by the bytes that follow.
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

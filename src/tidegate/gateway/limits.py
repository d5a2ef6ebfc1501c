"""Bounds of a gateway: everything that a client or a server could make grow has one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tidegate.core.errors import InvalidValue

_MAY_BE_0 = frozenset(
    ("body_bytes_max", "pool_idle_max", "replay_bytes_max", "retries_max", "waiting_max")
)


@dataclass(frozen=True)
class GatewayLimits:
    """What is allowed, and for how long one waits."""

    # Request line and fields together, of requests and of answers.
    header_bytes_max: int = 32 * 1024
    # None: any length, since bodies are streamed and never held.
    body_bytes_max: int | None = None
    connections_max: int = 10_000
    # Beyond these requests are refused at once with 503. What a server is said to take by itself
    # (ServerAddress.concurrency) counts instead.
    in_flight_max: int = 2_000
    in_flight_per_server_max: int = 1_000
    # While all servers are full, so many requests wait for one, and so long; then they get 503,
    # too. None do unless somebody asks for it: a queue that nobody looks at only hides the load.
    waiting_max: int = 0
    wait_s: float = 5.0
    retry_after_s: int = 1
    # Who was refused for lack of room is listened to again after so long, whatever it was told: to
    # refuse costs little, and is all that is done if one client asks again at once for ever.
    refused_pause_s: float = 0.5

    # From the first byte of a request (or the connection) to the end of its fields.
    head_timeout_s: float = 10.0
    # Between two requests of a connection.
    idle_timeout_s: float = 60.0
    # A body may take so long, and longer by a second for each so many bytes that have come.
    body_grace_s: float = 20.0
    body_bytes_per_s_min: int = 500
    # A client that reads nothing of its answer; one that reads slowly is waited for.
    send_stall_s: float = 60.0
    # After an answer that ends a connection has gone out, for what the client is still sending.
    linger_s: float = 1.0
    # While both may talk; once one of them has said all, the silence of an answer.
    tunnel_idle_s: float = 3600.0

    connect_timeout_s: float = 2.0
    # From the whole request to the head of the answer, and between two parts of it.
    answer_timeout_s: float = 60.0
    answer_stall_s: float = 60.0
    # From the request's head to the end of its answer, retries included; None: no deadline.
    deadline_s: float | None = None

    # How often a request is tried on another server, where trying again does no harm.
    retries_max: int = 2
    # What of a body is kept to be sent again.
    replay_bytes_max: int = 64 * 1024
    # Below the keep-alive of usual servers (uvicorn: 5 s), so that we are the one who hangs up: a
    # POST on a connection that the server is just closing could not be tried again.
    pool_idle_s: float = 3.0
    pool_idle_max: int = 256

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if value is None and one.name in ("body_bytes_max", "deadline_s"):
                continue
            may_be_0 = one.name in _MAY_BE_0
            if not (value >= 0 if may_be_0 else value > 0):
                least = "0 or above" if may_be_0 else "above 0"
                raise InvalidValue(f"{one.name} is {value!r}; it must be {least}")

"""The limits of a gateway: everything that a client or server could make grow has one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from tidegate.core.errors import InvalidValue

_MAY_BE_0 = frozenset(
    ("body_bytes_max", "pool_idle_max", "replay_bytes_max", "retries_max", "waiting_max")
)


@dataclass(frozen=True)
class GatewayLimits:
    """Sizes, numbers and times that are allowed; times are in seconds."""

    # Request line and fields together, of requests and of responses.
    header_bytes_max: int = 32 * 1024
    # None means unlimited: bodies are streamed and never held as a whole.
    body_bytes_max: int | None = None
    connections_max: int = 10_000
    # More requests are rejected at once with 503. The concurrency of a server
    # (ServerAddress.concurrency), if set, replaces the limit per server.
    in_flight_max: int = 2_000
    in_flight_per_server_max: int = 1_000
    # While all servers are full, this many requests wait for one, for this long; then they get 503
    # too. The default is 0, because a queue only hides the load if nothing reacts to it.
    waiting_max: int = 0
    wait_s: float = 5.0
    retry_after_s: int = 1
    # A client rejected for lack of room is not read for this time, independent of Retry-After.
    # Rejecting is cheap, but a client that retries at once would otherwise use the whole processor.
    refused_pause_s: float = 0.5

    # From the first byte of a request, or the connection, to the end of its fields.
    head_timeout_s: float = 10.0
    # Between two requests of a connection.
    idle_timeout_s: float = 60.0
    # Time for a body, plus one second for each `body_bytes_per_s_min` bytes received.
    body_grace_s: float = 20.0
    body_bytes_per_s_min: int = 500
    # For a client that reads nothing of its response; a slow reader is not cut off.
    send_stall_s: float = 60.0
    # Time to read and discard what the client still sends after the last response.
    linger_s: float = 1.0
    # While both sides may send; when one has ended, `answer_stall_s` counts instead.
    tunnel_idle_s: float = 3600.0

    connect_timeout_s: float = 2.0
    # From the complete request to the head of the response, and between two parts of it.
    answer_timeout_s: float = 60.0
    answer_stall_s: float = 60.0
    # From the request's head to the end of its response, with retries; None means unlimited.
    deadline_s: float | None = None

    # Attempts on other servers, if a repetition does no harm.
    retries_max: int = 2
    # Bytes of a body that are kept for a repetition.
    replay_bytes_max: int = 64 * 1024
    # Shorter than the keep-alive of usual servers (uvicorn: 5 s), so that the gateway closes idle
    # connections. A POST on a connection that the server is just closing could not be repeated.
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

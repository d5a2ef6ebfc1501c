"""Active health checks: one loop per server."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from tidegate.core.health import HEALTH_ANSWER_S
from tidegate.gateway.own_shortage import is_own_shortage
from tidegate.gateway.response_reader import BadAnswer, ResponseHead, ResponseReader
from tidegate.gateway.server import Server
from tidegate.gateway.servers import Servers


@dataclass(frozen=True)
class HealthCheck:
    """The request of a health check, and its interval."""

    # None means that an accepted connection is enough.
    path: str | None = None
    interval_s: float = 1.0
    timeout_s: float = HEALTH_ANSWER_S
    # A response with this status or above is a failure.
    ill_from: int = 400


async def check_forever(check: HealthCheck, servers: Servers, server: Server) -> None:
    while True:
        # A shortage of our own says nothing about the server; requests report it.
        with contextlib.suppress(OSError):
            await _check(check, servers, server)
        await asyncio.sleep(check.interval_s)


async def _check(check: HealthCheck, servers: Servers, server: Server) -> None:
    """Check a server once; raise `OSError` if resources of our own are short."""
    try:
        async with asyncio.timeout(check.timeout_s):
            failure = await _asked(check, server)
    except TimeoutError:
        servers.unanswered(server, f"no answer to a check within {check.timeout_s:g} s")
    except (OSError, BadAnswer) as broken:
        if isinstance(broken, OSError) and is_own_shortage(broken):
            raise
        servers.checked(server, f"check failed: {broken}")
    else:
        servers.checked(server, failure)


async def _asked(check: HealthCheck, server: Server) -> str | None:
    """Return why the server is not healthy; None if it is."""
    # Use a new connection each time: an old one may work although new ones fail.
    address = server.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        if check.path is None:
            return None
        request = "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nUser-Agent: tidegate\r\n\r\n"
        writer.write(request.format(check.path, server.host_field.decode()).encode())
        answer = ResponseReader(header_bytes_max=32 * 1024)
        answer.expect(b"GET")
        while data := await reader.read(65536):
            answer.receive(data)
            for event in answer.events:
                if isinstance(event, ResponseHead) and not event.interim:
                    is_well = event.status < check.ill_from
                    return None if is_well else f"a check was answered {event.status}"
            answer.events.clear()
        return "hung up on a check"
    finally:
        writer.close()

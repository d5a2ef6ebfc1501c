"""Resolution of backend host names to addresses.

HAProxy resolves no host name of a server that is added at run time. Numeric addresses also keep
arbitrary text, such as a machine's name for itself, out of HAProxy commands.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

import msgspec

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.hosting import Backend


async def by_number(backends: Sequence[Backend]) -> tuple[list[Backend], str]:
    """Return the backends with numeric addresses, and an error text for those left out.

    A backend whose host name does not resolve is left out. The text is empty if there is none.
    Raises InvalidValue if two backends have the same instance_id.
    """
    names = [one.name for one in backends]
    if len(set(names)) < len(names):
        raise InvalidValue("two backends have one instance_id; each instance is there once")
    found: list[Backend] = []
    unknown: list[str] = []
    for one in backends:
        try:
            found.append(msgspec.structs.replace(one, host=await _number_of(one)))
        except Unavailable as failure:
            unknown.append(str(failure))
    return found, "; ".join(unknown)


async def _number_of(backend: Backend) -> str:
    try:
        return str(ip_address(backend.host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            backend.host, backend.port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as failure:
        raise Unavailable(
            f"{backend.name} is at {backend.host!r}, which has no address: {failure}"
        ) from failure
    return str(found[0][4][0])

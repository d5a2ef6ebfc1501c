"""A check that an address is free, before a command starts any process."""

from __future__ import annotations

import errno
import socket

from tidegate.core.errors import InvalidValue, Unavailable


def check_free(host: str, port: int, option: str = "--port") -> None:
    """Raise `Unavailable` if a server cannot listen on the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Servers set this option, too: connections in TIME_WAIT do not block the address.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:
        raise InvalidValue(f"--host {host!r} is no address, nor the name of a computer") from None
    except OSError as failure:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {failure.strerror or failure}; "
            f"{_advice(failure, option)}"
        ) from None


def _advice(failure: OSError, option: str) -> str:
    if isinstance(failure, socket.gaierror) or failure.errno == errno.EADDRNOTAVAIL:
        return "choose an address of this computer with --host"
    if failure.errno in (errno.EACCES, errno.EPERM):
        return f"choose a port from 1024 on with {option}: those below are not for everybody"
    return f"choose another with {option}, or end what listens there"

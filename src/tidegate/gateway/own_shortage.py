"""Failures to connect that are our own: they say nothing about who was to be connected to.

Descriptors (of this process, of this computer), local ports and memory run out on this side. Who
took that for a server that does not listen would eject all of them, at the moment of most load.
"""

from __future__ import annotations

import errno

_OWN = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))


def is_own_shortage(failure: OSError) -> bool:
    return failure.errno in _OWN

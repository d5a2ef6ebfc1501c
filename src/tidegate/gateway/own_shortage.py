"""Connect errors caused by this computer, which say nothing about the server.

Descriptors (of this process, of this computer), local ports and memory may run out on our side. If
this were taken for a server that does not listen, the gateway would eject all servers at the moment
of the highest load.
"""

from __future__ import annotations

import errno

_OWN = frozenset((errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM))


def is_own_shortage(failure: OSError) -> bool:
    return failure.errno in _OWN

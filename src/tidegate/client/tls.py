"""TLS contexts of clients: at least TLS 1.2, with the host's certificate verified."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from tidegate.core.errors import InvalidValue

CA_FILE_VARIABLE = "TIDEGATE_CA_FILE"


def verifying_context(authority: Path | None = None) -> ssl.SSLContext:
    """Return a context that trusts the authorities of a PEM file, or those of the machine.

    `authority` is the file; `None` means the file in TIDEGATE_CA_FILE, if set.
    """
    if authority is None and (named := os.environ.get(CA_FILE_VARIABLE)):
        authority = Path(named)
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as failure:
        raise InvalidValue(f"{authority} holds no certificates in PEM: {failure}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context

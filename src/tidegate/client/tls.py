"""TLS to a node: 1.2 at least, and the certificate must be the host's."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from tidegate.core.errors import InvalidValue

CA_FILE_VARIABLE = "TIDEGATE_CA_FILE"


def verifying_context(authority: Path | None = None) -> ssl.SSLContext:
    """Trusts the authorities of a PEM file (named here or by the environment), or the machine's."""
    if authority is None and (named := os.environ.get(CA_FILE_VARIABLE)):
        authority = Path(named)
    try:
        context = ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as failure:
        raise InvalidValue(f"{authority} holds no certificates in PEM: {failure}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context

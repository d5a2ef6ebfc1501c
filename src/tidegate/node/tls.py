"""TLS between nodes and clients and among nodes: at least 1.2, certificates always verified."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidegate.client.tls import verifying_context
from tidegate.core.errors import InvalidValue


class NodeTls:
    """The node's certificate, and the context that verifies the certificates of other nodes.

    Raises `InvalidValue` if a file is missing or does not hold what it should.
    """

    def __init__(self, certificate: Path, key: Path, authority: Path | None = None) -> None:
        self.accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.accepting.minimum_version = ssl.TLSVersion.TLSv1_2
        for file in (certificate, key):
            if not file.is_file():
                raise InvalidValue(f"{file}: there is no such file; it is needed for TLS")
        try:
            # An empty password, or OpenSSL would prompt for one and block a node that restarts.
            self.accepting.load_cert_chain(certificate, key, password=b"")
        except (OSError, ValueError) as failure:
            raise InvalidValue(
                f"{certificate} and {key} are no certificate with its key, in PEM and without "
                f"password: {getattr(failure, 'reason', None) or failure}"
            ) from None
        self.calling = verifying_context(authority)

"""The section [tls], with a check of the keys that belong together."""

from __future__ import annotations

from typing import Any

import msgspec


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The PEM files a node needs for TLS."""

    certificate: str | None = None
    key: str | None = None
    # The CA that signed the other nodes' certificates; None means the CAs that the machine trusts.
    authority: str | None = None


def tls_complaints(tls: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if bool(tls.get("certificate")) != bool(tls.get("key")):
        return ["tls.certificate and tls.key go together: set both of them"]
    return []

"""The section [tls], and what in it goes together."""

from __future__ import annotations

from typing import Any

import msgspec


class TlsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files, in PEM, with which a node speaks TLS."""

    certificate: str | None = None
    key: str | None = None
    # Who has signed the other nodes' certificates; default: whom the machine trusts.
    authority: str | None = None


def tls_complaints(tls: dict[str, Any]) -> list[str]:
    """What is wrong with the section as a whole."""
    if bool(tls.get("certificate")) != bool(tls.get("key")):
        return ["tls.certificate and tls.key go together: set both of them"]
    return []

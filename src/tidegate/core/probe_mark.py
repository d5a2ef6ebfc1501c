"""The mark by which a door recognises the leader's probe and leaves it out of its counts.

A window in which only the probe asks must count as having no data, and fast answers to the probe
must not improve the measured response times. The mark is derived from the service's secret, which
only its doors and the leader know. So no client can exclude its requests from the counts. Doors
never pass the mark on.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

FIELD = "Tidegate-Probe"


def probe_mark(secret: str) -> str:
    """Return the value of the probe's header; empty if the service has no secret."""
    return hmac.new(secret.encode(), b"tidegate probe", sha256).hexdigest() if secret else ""

"""The mark of a probe: by it a door knows that a request is the leader's own, and leaves it out.

A probe asks as a client would, and is none: a window in which nobody else asks has no data, and a
quick health path must not pass for quick answers. The mark follows from the secret of the service,
which only its doors and whoever leads have, so nobody else hides requests from the counts. Doors
never pass it on.
"""

from __future__ import annotations

import hmac
from hashlib import sha256

FIELD = "Tidegate-Probe"


def probe_mark(secret: str) -> str:
    """What a probe of a service with this secret says; "" without a secret."""
    return hmac.new(secret.encode(), b"tidegate probe", sha256).hexdigest() if secret else ""

"""An agreement document."""

from __future__ import annotations

import msgspec


class Agreement(msgspec.Struct, frozen=True):
    """What one service promises."""

    name: str

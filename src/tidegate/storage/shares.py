"""What orders about replicas must say to be understood, whichever store takes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tidegate.core.errors import InvalidValue
from tidegate.core.replication import HOMES


def whole_shares(shares: Mapping[int, float]) -> dict[int, float]:
    """Shares that add up to 1, or to 0 if nobody is to get anything."""
    for number, share in shares.items():
        if not (math.isfinite(share) and share >= 0):
            raise InvalidValue(f"a share is at least 0: {share} of replica {number} is not")
    whole = sum(shares.values())
    return {number: share / whole if whole else 0.0 for number, share in shares.items()}


def check_homes(homes: Sequence[int]) -> None:
    if len(homes) not in (0, HOMES):
        raise InvalidValue(f"there are {HOMES} homes, not {len(homes)}: name a replica for each")

"""Checks of settings for replicas, shared by all stores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tidegate.core.errors import InvalidValue
from tidegate.core.replication import HOMES


def whole_shares(shares: Mapping[int, float]) -> dict[int, float]:
    """Return shares scaled to a sum of 1; all 0 if their sum is 0.

    Raises `InvalidValue` for a share that is negative or not finite.
    """
    for number, share in shares.items():
        if not (math.isfinite(share) and share >= 0):
            raise InvalidValue(f"a share is at least 0: {share} of replica {number} is not")
    whole = sum(shares.values())
    return {number: share / whole if whole else 0.0 for number, share in shares.items()}


def check_homes(homes: Sequence[int]) -> None:
    if len(homes) not in (0, HOMES):
        raise InvalidValue(f"there are {HOMES} homes, not {len(homes)}: name a replica for each")

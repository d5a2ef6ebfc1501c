"""Marks of what was said about a queue: another when that is, and sent back with a change."""

from __future__ import annotations

import hashlib

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.scaling import Scaling


def scaling_mark(scaling: Scaling) -> str:
    """Of all that was said, and of nothing that loops do."""
    return _mark(scaling)


def prefetch_mark(goal: PrefetchGoal | None) -> str:
    """Of what the prefetch is steered to, by a loop or by hand."""
    return _mark(goal)


def _mark(said: object) -> str:
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]

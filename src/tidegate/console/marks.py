"""Marks of settings: a client sends back the mark that it saw, to detect other changes."""

from __future__ import annotations

import hashlib

import msgspec

from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.scaling import Scaling


def scaling_mark(scaling: Scaling) -> str:
    """Return the mark of the settings that users have made; control loops do not change it."""
    return _mark(scaling)


def prefetch_mark(goal: PrefetchGoal | None) -> str:
    """Return the mark of a prefetch goal or a manual prefetch."""
    return _mark(goal)


def _mark(said: object) -> str:
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]

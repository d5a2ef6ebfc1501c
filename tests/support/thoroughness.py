"""How many examples a model is tried with: numbers are for the usual profile, others scale them."""

from __future__ import annotations

from hypothesis import settings

# Of the profile `quick`, which tests run with unless told otherwise.
USUAL = 40


def examples(count: int) -> int:
    """Fifty times as many with `--hypothesis-profile thorough`, a tenth with `hasty`."""
    return max(1, count * settings.default.max_examples // USUAL)

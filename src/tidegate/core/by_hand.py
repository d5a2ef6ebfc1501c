"""The override of an HTTP service: settings by a human, which take precedence over the scaling law.

    instances        the number of serving instances                 None: the law decides
    least, most      bounds for the law                              None: those of the agreement
    concurrency      requests that each instance has at a time       None: as deployed or adapted
    in_flight_max    requests that all doors have at a time          None: as the law limits them

An override does not change the law's own results, so removing it restores them.
"""

from __future__ import annotations

import msgspec

from tidegate.core.scaling import REPLICAS_MAX

# The limit of `deploy --concurrency`.
REQUESTS_MAX = 100_000


class ByHand(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An override of one service; `None` means no override of that setting."""

    instances: int | None = None
    least: int | None = None
    most: int | None = None
    concurrency: int | None = None
    in_flight_max: int | None = None

    def bounds(self, agreed_least: int, agreed_most: int | None) -> tuple[int, int]:
        """Return the least and most instances, at least 1.

        If only one bound is overridden and contradicts the agreed one, it replaces the agreed one.
        """
        least = agreed_least if self.least is None else self.least
        most = agreed_most if self.most is None else self.most
        most = REPLICAS_MAX if most is None else most
        if least > most:
            least, most = (least, least) if self.most is None else (most, most)
        return max(least, 1), max(most, 1)


NOTHING_SAID = ByHand()

_WORDS = {
    "instances": ("instances", "automatic"),
    "least": ("at least", "as agreed"),
    "most": ("at most", "as agreed"),
    "concurrency": ("requests of an instance at a time", "automatic"),
    "in_flight_max": ("requests let in at a time", "automatic"),
}


def complaints(by_hand: ByHand, agreed_least: int = 1, agreed_most: int | None = None) -> list[str]:
    """Return the problems of an override; an empty list means that it is usable."""
    found = []
    for field, value in msgspec.structs.asdict(by_hand).items():
        highest = REPLICAS_MAX if field in ("instances", "least", "most") else REQUESTS_MAX
        if value is not None and not 1 <= value <= highest:
            found.append(f"{_WORDS[field][0]} {value}: must be between 1 and {highest}")
    least, most = by_hand.bounds(agreed_least, agreed_most)
    if by_hand.least is not None and by_hand.most is not None and by_hand.least > by_hand.most:
        found.append(f"at least {by_hand.least}, at most {by_hand.most}: must be the other way")
    elif by_hand.instances is not None and not least <= by_hand.instances <= most:
        found.append(
            f"instances {by_hand.instances}: must be {least} to {most}, as is agreed unless other "
            "bounds are said"
        )
    return found


def told(before: ByHand, after: ByHand) -> str:
    """Return the changes between two overrides as a sentence; empty if there are none."""
    changes = []
    for field, (name, nothing) in _WORDS.items():
        old, new = getattr(before, field), getattr(after, field)
        if old != new:
            words = [nothing if value is None else str(value) for value in (old, new)]
            changes.append(f"{name} {words[0]} → {words[1]}")
    return f"{', '.join(changes)}." if changes else ""

"""What a user may do with a queue: nothing, unless a grant allows it.

    read        take, browse and settle messages
    write       put messages
    configure   create, delete, purge, pause, change the policy
    admin       all of these, move queues, and set the prefetch of other clients' consumers

Each role is granted on a pattern of queue names. Any role lets the user see that the queue exists.
A dead-letter queue is a queue of its own: `orders` does not match `orders.dead`, `orders*` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.errors import InvalidValue
from tidegate.core.users import ROLES, Grant, Right

EVERY_QUEUE = "*"
_PATTERN_LENGTH_MAX = 255
# The number of cached answers. The cache is cleared when full, so that many names cannot fill
# memory.
_REMEMBERED_MAX = 10_000


def fits(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern, in one pass for any number of stars."""
    first, *others = pattern.split("*")
    if not others:
        return name == pattern
    *middle, last = others
    if not name.startswith(first):
        return False
    position = len(first)
    for part in middle:
        found = name.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(name) - len(last) >= position and name.endswith(last)


def check_pattern(pattern: str) -> str:
    if not 0 < len(pattern) <= _PATTERN_LENGTH_MAX or not pattern.isprintable():
        raise InvalidValue(
            f"a pattern is the name of a queue, with * for any characters, not {pattern!r}"
        )
    return pattern


class Permissions:
    """The grants of one user, with cached answers."""

    __slots__ = ("_grants", "_remembered", "is_everything")

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = {role: [g.pattern for g in grants if g.role is role] for role in ROLES}
        self._remembered: dict[tuple[Right, str], bool] = {}
        # True means that no single check is needed.
        self.is_everything = EVERY_QUEUE in self._grants[Right.ADMIN]

    def allows(self, right: Right, queue: str) -> bool:
        if self.is_everything:
            return True
        known = self._remembered.get((right, queue))
        if known is None:
            if len(self._remembered) >= _REMEMBERED_MAX:
                self._remembered.clear()
            known = self._remembered[right, queue] = self._look(right, queue)
        return known

    def _look(self, right: Right, queue: str) -> bool:
        roles = ROLES if right is Right.SEE else (right, Right.ADMIN)
        return any(fits(pattern, queue) for role in roles for pattern in self._grants[role])


EVERYTHING = Permissions([Grant(Right.ADMIN, EVERY_QUEUE)])
NOTHING = Permissions([])

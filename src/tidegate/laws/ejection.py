"""Outlier ejection: servers that get no requests for a while, and their gradual return.

A server is ejected when `failures_to_eject` requests in a row failed, when it refuses
connections, or when its health checks fail. It stays ejected for `base_s · 2^(ejections − 1)`, at
most `most_s`. If it is checked actively, a check must also pass. Then its weight grows from
`first_share` to 1 within `return_s`. A failure during the return ejects it again, for longer.

    HEALTHY   ── failed (n in a row), refused, check failed ──▶ EJECTED
    EJECTED   ── time is up and checks pass ──▶ RETURNING
    RETURNING ── failed once, refused, check failed ──▶ EJECTED
    RETURNING ── return_s without a failure ──▶ HEALTHY

Failures may come from a load that slows down all servers. So failed requests, and checks without an
answer in time, eject at most `share_max` of the servers. The caller, which knows all servers,
checks this limit and passes `may_eject`. A refused connection, or a wrong answer to a check, does
not come from load and always counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    """The state of a server."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    RETURNING = "returning"


@dataclass(frozen=True)
class EjectionSettings:
    """The settings of outlier ejection."""

    # Failed requests in a row, and the duration of the first ejection and of the longest.
    failures_to_eject: int = 3
    base_s: float = 1.0
    most_s: float = 30.0
    # Duration of the return, and the fraction of the weight at its beginning.
    return_s: float = 5.0
    first_share: float = 0.1
    # Largest fraction of the servers that failures may eject.
    share_max: float = 0.5
    # Checks in a row that eject a server, and that let it return.
    checks_to_eject: int = 2
    checks_to_return: int = 1


class Ejection:
    """The state of one server. The caller passes the time to every method."""

    __slots__ = (
        "_checks_failed",
        "_checks_passed",
        "_ejections",
        "_failures",
        "_since",
        "_until",
        "checked",
        "settings",
        "standing",
        "why",
    )

    def __init__(self, settings: EjectionSettings, *, checked: bool = False) -> None:
        self.settings = settings
        # Whether the server is checked actively, so that a check must pass before it returns.
        self.checked = checked
        self.standing = Standing.HEALTHY
        self.why = ""
        self._failures = 0
        self._checks_failed = 0
        self._checks_passed = 0
        self._ejections = 0
        self._since = 0.0
        self._until = 0.0

    def share(self, now: float) -> float:
        """Return the fraction of its weight that the server has now, from 0 to 1."""
        if self.standing is Standing.HEALTHY:
            return 1.0
        if self.standing is Standing.EJECTED:
            return 0.0
        first = self.settings.first_share
        grown = (now - self._since) / self.settings.return_s
        return min(first + (1.0 - first) * max(grown, 0.0), 1.0)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float, why: str, *, may_eject: bool = True) -> None:
        """Record a failed request."""
        if self.standing is Standing.EJECTED:
            return
        self._failures += 1
        enough = 1 if self.standing is Standing.RETURNING else self.settings.failures_to_eject
        if self._failures >= enough and may_eject:
            self._eject(now, why)

    def refused(self, now: float, why: str) -> None:
        """Record a refused connection; it ejects the server at once."""
        if self.standing is not Standing.EJECTED:
            self._eject(now, why)

    def check_passed(self, now: float) -> None:
        self._checks_failed = 0
        self._checks_passed += 1
        self.tick(now)

    def check_failed(self, now: float, why: str, *, may_eject: bool = True) -> None:
        self._checks_passed = 0
        self._checks_failed += 1
        if self._checks_failed >= self.settings.checks_to_eject:
            if self.standing is Standing.EJECTED:
                self.why = why
            elif may_eject:
                self._eject(now, why)

    def tick(self, now: float) -> None:
        """Advance the state by the passing of time."""
        if self.standing is Standing.EJECTED:
            well = not self.checked or self._checks_passed >= self.settings.checks_to_return
            if well and now >= self._until:
                self.standing = Standing.RETURNING
                self._since = now
                self._failures = 0
        elif self.standing is Standing.RETURNING and now >= self._since + self.settings.return_s:
            self.standing = Standing.HEALTHY
            self.why = ""
            # After a complete return the next ejection counts as the first one.
            self._ejections = 0
            self._failures = 0

    def _eject(self, now: float, why: str) -> None:
        self.standing = Standing.EJECTED
        self.why = why
        self._ejections += 1
        self._checks_passed = 0
        # Bound the exponent: a server that is away for a year would overflow it.
        longer = 2.0 ** min(self._ejections - 1, 30)
        self._until = now + min(self.settings.base_s * longer, self.settings.most_s)

"""Which servers get nothing for a while, and how they come back.

A server is ejected when `failures_to_eject` requests in a row failed, when nobody listens there, or
when its checks fail. It stays out for `base_s · 2^(ejections − 1)`, at most `most_s`, and where it
is checked actively until a check passes as well. Then it returns slowly: its weight grows from
`first_share` to 1 within `return_s`. A failure on the way ejects it again, for longer.

    HEALTHY   ── failed (n in a row), refused, check failed ──▶ EJECTED
    EJECTED   ── time is up and checks pass ──▶ RETURNING
    RETURNING ── failed once, refused, check failed ──▶ EJECTED
    RETURNING ── return_s without a failure ──▶ HEALTHY

One server that is slow under a load that all share says nothing about itself, so requests that
fail, and checks without an answer in time, eject at most `share_max` of the servers: `may_eject`,
which whoever knows them all sets. That nobody listens, or that a check is answered badly, is no
matter of load and always counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Standing(Enum):
    HEALTHY = "healthy"
    EJECTED = "ejected"
    RETURNING = "returning"


@dataclass(frozen=True)
class EjectionSettings:
    """How patient one is with a server."""

    failures_to_eject: int = 3
    base_s: float = 1.0
    most_s: float = 30.0
    return_s: float = 5.0
    first_share: float = 0.1
    share_max: float = 0.5
    # Checks in a row that eject, and that let it return.
    checks_to_eject: int = 2
    checks_to_return: int = 1


class Ejection:
    """One server's standing; every verb takes the time."""

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
        # Whether somebody checks it actively, so that a check must pass before it returns.
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
        """Which part of its weight it has."""
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
        """A request was sent and came to nothing."""
        if self.standing is Standing.EJECTED:
            return
        self._failures += 1
        enough = 1 if self.standing is Standing.RETURNING else self.settings.failures_to_eject
        if self._failures >= enough and may_eject:
            self._eject(now, why)

    def refused(self, now: float, why: str) -> None:
        """Nobody listens there."""
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
        """Time has passed."""
        if self.standing is Standing.EJECTED:
            well = not self.checked or self._checks_passed >= self.settings.checks_to_return
            if well and now >= self._until:
                self.standing = Standing.RETURNING
                self._since = now
                self._failures = 0
        elif self.standing is Standing.RETURNING and now >= self._since + self.settings.return_s:
            self.standing = Standing.HEALTHY
            self.why = ""
            # Forgiven: the next ejection is a first one again.
            self._ejections = 0
            self._failures = 0

    def _eject(self, now: float, why: str) -> None:
        self.standing = Standing.EJECTED
        self.why = why
        self._ejections += 1
        self._checks_passed = 0
        # The exponent is bounded, for a server that stays away for a year.
        longer = 2.0 ** min(self._ejections - 1, 30)
        self._until = now + min(self.settings.base_s * longer, self.settings.most_s)

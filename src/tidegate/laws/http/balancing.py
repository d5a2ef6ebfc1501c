"""Load balancing policies of the HTTP door: each is a class with one method, `choose`.

Candidates are the servers that may get the request: not ejected, not draining, not at their
limit, and not tried by this request before. Every policy respects weights: a server of weight 2
gets twice as many requests as a server of weight 1. Under WorkLoad, which gives all requests to one
server, its index counts twice. The weight of a server that returns after an ejection grows slowly
(`OutlierEjection`).

    random            P_i = w_i / Σw
    round robin       smooth: the one most behind its share, credit_i += w_i, chosen −= Σw
    first available   drawn once for each asker, kept while it is a candidate (TAPAS §3.1.1)
    … shared          the same, drawn once for a family: all askers of one host name
    WorkLoad          max of w_i·index_i, the availability index (TAPAS §2.2.3, which knows no
                      weights); it herds all requests onto one server until the index is next taken
    … drawn           P_i = w_i·index_i / Σ(w·index), none below a floor: no server starves
    least outstanding min outstanding_i / w_i; ties are drawn as random does
    better of two     two drawn as random does, the better as above; ties go to the first

The definition of a tie matters. With (outstanding + 1) / w instead, the lightest server would get
no request as long as the other servers are idle.

A user-defined policy is a class with this `choose` method.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from random import Random
from typing import Protocol, TypeVar

from tidegate.core.errors import InvalidValue

# Fraction of an even share that the drawn policy leaves to the worst server, so that it stays
# measurable.
_PROBE = 0.05
# Number of choices that first available remembers. The oldest is dropped and drawn again.
_ELECTIONS_MAX = 10_000
# Number of servers that round robin remembers. Beyond it, only current candidates are kept.
_CREDITS_MAX = 1_000


class Candidate(Protocol):
    """A server as a policy reads it."""

    @property
    def name(self) -> str: ...
    @property
    def weight(self) -> float: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def index(self) -> float: ...


Chosen = TypeVar("Chosen", bound=Candidate)


class Policy(Protocol):
    """Chooses one of at least one candidate, for a client (`asker`) that belongs to a family."""

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen: ...


def weighted_choice(
    candidates: Sequence[Chosen], weights: Sequence[float], random: Random
) -> Chosen:
    """Return a candidate drawn in proportion to the weights, or evenly if all weights are 0."""
    sums = list(accumulate(weights))
    if not sums[-1] > 0.0:
        return candidates[int(random.random() * len(candidates))]
    point = random.random() * sums[-1]
    for candidate, up_to in zip(candidates, sums, strict=True):
        if point < up_to:
            return candidate
    return candidates[-1]


def _business(one: Candidate) -> float:
    return one.outstanding / one.weight if one.weight > 0.0 else float("inf")


class RandomDraw:
    """Draws a candidate at random, in proportion to the weights."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        return weighted_choice(candidates, [one.weight for one in candidates], self._random)


class RoundRobin:
    """Smooth weighted round robin: chooses the candidate that is most behind its share."""

    def __init__(self) -> None:
        self._credit: dict[str, float] = {}

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        before = self._credit
        credit: dict[str, float] = {}
        best = candidates[0]
        most = -float("inf")
        total = 0.0
        for one in candidates:
            total += one.weight
            mine = credit[one.name] = before.get(one.name, 0.0) + one.weight
            if mine > most:
                best, most = one, mine
        credit[best.name] -= total
        if len(credit) < len(before) <= _CREDITS_MAX:
            # A server that is no candidate now (full, or failed for this request) keeps its credit.
            credit = before | credit
        self._credit = credit
        return best


class FirstAvailable:
    """Draws a server once per asker and keeps it while it is a candidate.

    With `shared` set, all askers of a family use the same server.
    """

    def __init__(self, random: Random, *, shared: bool = False) -> None:
        self._random = random
        self._shared = shared
        self._elected: OrderedDict[str, str] = OrderedDict()

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        who = family if self._shared else asker
        name = self._elected.get(who)
        if name is not None:
            for one in candidates:
                if one.name == name:
                    self._elected.move_to_end(who)
                    return one
        elected = weighted_choice(candidates, [one.weight for one in candidates], self._random)
        self._elected[who] = elected.name
        if len(self._elected) > _ELECTIONS_MAX:
            self._elected.popitem(last=False)
        return elected


class HighestIndex:
    """The paper's WorkLoad policy, extended by weights."""

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        return max(candidates, key=lambda one: one.index * one.weight)


class DrawnByIndex:
    """WorkLoad with a random draw, which avoids sending all requests to one server."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        floor = _PROBE * sum(one.index for one in candidates) / len(candidates)
        weights = [max(one.index, floor) * one.weight for one in candidates]
        return weighted_choice(candidates, weights, self._random)


class LeastOutstanding:
    """Chooses the candidate with the fewest outstanding requests per weight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        least = min(map(_business, candidates))
        tied = [one for one in candidates if _business(one) <= least]
        if len(tied) == 1:
            return tied[0]
        return weighted_choice(tied, [one.weight for one in tied], self._random)


class BetterOfTwo:
    """Draws two candidates and chooses the one with fewer outstanding requests per weight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        weights = [one.weight for one in candidates]
        first = weighted_choice(candidates, weights, self._random)
        if len(candidates) == 1:
            return first
        others = [one for one in candidates if one is not first]
        if len(others) == 1:
            second = others[0]
        else:
            second = weighted_choice(others, [one.weight for one in others], self._random)
        return first if _business(first) <= _business(second) else second


POLICIES: dict[str, Callable[[Random], Policy]] = {
    "random": RandomDraw,
    "round-robin": lambda random: RoundRobin(),
    "first-available": FirstAvailable,
    "first-available-shared": lambda random: FirstAvailable(random, shared=True),
    "workload": lambda random: HighestIndex(),
    "workload-drawn": DrawnByIndex,
    "least-outstanding": LeastOutstanding,
    "better-of-two": BetterOfTwo,
}


def balancing_policy(name: str, random: Random) -> Policy:
    """Return a new policy by its name; `random` supplies its draws.

    Raises `InvalidValue` for an unknown name.
    """
    try:
        return POLICIES[name](random)
    except KeyError:
        known = ", ".join(POLICIES)
        raise InvalidValue(f"no policy is called {name!r}; there are {known}") from None


# -- availability_index --
# The availability index: how available each server is, in percent of all (TAPAS §2.2.3).
#
#     index_i = mean of  100·(1/RT_i)/Σ(1/RT_j),  100·TP_i/ΣTP_j,  100·Mem_i/ΣMem_j
#
# The paper divides RT_i by ΣRT, which is not a share, and its text says median where its formula is
# the mean. The indexes add up to 100.
#
# A factor that was measured for some servers only takes the mean of the measured ones for the rest.
# A server without any measurement therefore gets an average index and is neither avoided nor
# flooded with requests. If nothing was measured, every server gets an even share.


@dataclass(frozen=True)
class ServerSample:
    """Measurements of one server. `None` means not measured."""

    response_time_s: float | None = None
    throughput_per_s: float | None = None
    free_memory_bytes: float | None = None


# Smaller response times do not differ, and 0 from a coarse clock must not be divided by.
_RESPONSE_TIME_S_LEAST = 1e-6


def availability_index(samples: Mapping[str, ServerSample]) -> dict[str, float]:
    """Return the index of every server by name. The indexes are above 0 and add up to 100."""
    if not samples:
        return {}
    even = 100.0 / len(samples)
    factors = [
        _shares(
            {
                name: None
                if one.response_time_s is None
                # A coarse clock may measure 0.
                else 1.0 / max(one.response_time_s, _RESPONSE_TIME_S_LEAST)
                for name, one in samples.items()
            }
        ),
        _shares({name: one.throughput_per_s for name, one in samples.items()}),
        _shares({name: one.free_memory_bytes for name, one in samples.items()}),
    ]
    known = [factor for factor in factors if factor is not None]
    if not known:
        return dict.fromkeys(samples, even)
    return {name: sum(factor[name] for factor in known) / len(known) for name in samples}


def _shares(values: Mapping[str, float | None]) -> dict[str, float] | None:
    """Return each server's part in percent, or `None` if none is measured.

    Unmeasured servers get the mean of the measured ones.
    """
    measured = [value for value in values.values() if value is not None and value >= 0.0]
    total = sum(measured)
    if not total > 0.0 or total == float("inf"):
        return None
    mean = total / len(measured)
    filled = {
        name: value if value is not None and value >= 0.0 else mean
        for name, value in values.items()
    }
    whole = sum(filled.values())
    return {name: 100.0 * value / whole for name, value in filled.items()}


# -- ejection --
# Outlier ejection: servers that get no requests for a while, and their gradual return.
#
# A server is ejected when `failures_to_eject` requests in a row failed, when it refuses
# connections, or when its health checks fail. It stays ejected for `base_s · 2^(ejections − 1)`, at
# most `most_s`. If it is checked actively, a check must also pass. Then its weight grows from
# `first_share` to 1 within `return_s`. A failure during the return ejects it again, for longer.
#
#     HEALTHY   ── failed (n in a row), refused, check failed ──▶ EJECTED
#     EJECTED   ── time is up and checks pass ──▶ RETURNING
#     RETURNING ── failed once, refused, check failed ──▶ EJECTED
#     RETURNING ── return_s without a failure ──▶ HEALTHY
#
# Failures may come from a load that slows down all servers. So failed requests, and checks without
# an answer in time, eject at most `share_max` of the servers. The caller, which knows all servers,
# checks this limit and passes `may_eject`. A refused connection, or a wrong answer to a check, does
# not come from load and always counts.


class ServerState(Enum):
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


class OutlierEjection:
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
        self.standing = ServerState.HEALTHY
        self.why = ""
        self._failures = 0
        self._checks_failed = 0
        self._checks_passed = 0
        self._ejections = 0
        self._since = 0.0
        self._until = 0.0

    def share(self, now: float) -> float:
        """Return the fraction of its weight that the server has now, from 0 to 1."""
        if self.standing is ServerState.HEALTHY:
            return 1.0
        if self.standing is ServerState.EJECTED:
            return 0.0
        first = self.settings.first_share
        grown = (now - self._since) / self.settings.return_s
        return min(first + (1.0 - first) * max(grown, 0.0), 1.0)

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, now: float, why: str, *, may_eject: bool = True) -> None:
        """Record a failed request."""
        if self.standing is ServerState.EJECTED:
            return
        self._failures += 1
        enough = 1 if self.standing is ServerState.RETURNING else self.settings.failures_to_eject
        if self._failures >= enough and may_eject:
            self._eject(now, why)

    def refused(self, now: float, why: str) -> None:
        """Record a refused connection; it ejects the server at once."""
        if self.standing is not ServerState.EJECTED:
            self._eject(now, why)

    def check_passed(self, now: float) -> None:
        self._checks_failed = 0
        self._checks_passed += 1
        self.tick(now)

    def check_failed(self, now: float, why: str, *, may_eject: bool = True) -> None:
        self._checks_passed = 0
        self._checks_failed += 1
        if self._checks_failed >= self.settings.checks_to_eject:
            if self.standing is ServerState.EJECTED:
                self.why = why
            elif may_eject:
                self._eject(now, why)

    def tick(self, now: float) -> None:
        """Advance the state by the passing of time."""
        if self.standing is ServerState.EJECTED:
            well = not self.checked or self._checks_passed >= self.settings.checks_to_return
            if well and now >= self._until:
                self.standing = ServerState.RETURNING
                self._since = now
                self._failures = 0
        elif self.standing is ServerState.RETURNING and now >= self._since + self.settings.return_s:
            self.standing = ServerState.HEALTHY
            self.why = ""
            # After a complete return the next ejection counts as the first one.
            self._ejections = 0
            self._failures = 0

    def _eject(self, now: float, why: str) -> None:
        self.standing = ServerState.EJECTED
        self.why = why
        self._ejections += 1
        self._checks_passed = 0
        # Bound the exponent: a server that is away for a year would overflow it.
        longer = 2.0 ** min(self._ejections - 1, 30)
        self._until = now + min(self.settings.base_s * longer, self.settings.most_s)

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
from collections.abc import Callable, Sequence
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


def drawn(candidates: Sequence[Chosen], weights: Sequence[float], random: Random) -> Chosen:
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
        return drawn(candidates, [one.weight for one in candidates], self._random)


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
        elected = drawn(candidates, [one.weight for one in candidates], self._random)
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
        return drawn(candidates, weights, self._random)


class LeastOutstanding:
    """Chooses the candidate with the fewest outstanding requests per weight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        least = min(map(_business, candidates))
        tied = [one for one in candidates if _business(one) <= least]
        if len(tied) == 1:
            return tied[0]
        return drawn(tied, [one.weight for one in tied], self._random)


class BetterOfTwo:
    """Draws two candidates and chooses the one with fewer outstanding requests per weight."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def choose(self, candidates: Sequence[Chosen], asker: str, family: str) -> Chosen:
        weights = [one.weight for one in candidates]
        first = drawn(candidates, weights, self._random)
        if len(candidates) == 1:
            return first
        others = [one for one in candidates if one is not first]
        if len(others) == 1:
            second = others[0]
        else:
            second = drawn(others, [one.weight for one in others], self._random)
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


def policy_of(name: str, random: Random) -> Policy:
    """Return a new policy by its name; `random` supplies its draws.

    Raises `InvalidValue` for an unknown name.
    """
    try:
        return POLICIES[name](random)
    except KeyError:
        known = ", ".join(POLICIES)
        raise InvalidValue(f"no policy is called {name!r}; there are {known}") from None

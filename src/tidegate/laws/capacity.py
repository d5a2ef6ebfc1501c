"""The capacity of a queue: the number of clients that it serves best, and their best mix.

    C = the smallest number of clients that reaches 95 % of the plateau

By definition C maximises the throughput. But a measured curve is flat and noisy around its maximum,
so the number exactly at the maximum is a matter of chance. The law proceeds in these steps:
1. For each number of clients the best mix of producers and consumers counts, stable mixes first.
2. The points are fitted by a curve with a single peak: neighbours that contradict it are noise and
   are pooled.
3. The plateau is the mean of all points near the peak.
4. Between measured numbers of clients the throughput is interpolated linearly.

The best mix is the stable mix that reaches the plateau with the fewest clients. In the paper that
is one producer for two consumers.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeWarning, curve_fit

from tidegate.core.text import Term
from tidegate.laws.scaling import DEFAULT_BAND, Stability, StabilityBand, stability, throughput_at

# Fraction of the plateau beyond which more clients do not pay.
KNEE_FRACTION = 0.95
# Fraction of the highest point within which a difference may be chance.
NEAR_PEAK = 0.9
# Three numbers of clients cannot show a rise, a bend and a plateau.
CLIENT_COUNTS_MIN = 4
# Multiple of C that must have been tried, since 95 % of a straight line is reached at 95 % of its
# length too.
TRIED_BEYOND = 1.25
# A shorter measurement shows the joining of clients more than their work.
SECONDS_MIN = 5.0

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LoadPoint:
    """The mean rates of a queue while it had this many producers and consumers."""

    producers: int
    consumers: int
    produced_per_s: float
    consumed_per_s: float
    # Length of the measurement in seconds.
    seconds: float

    @property
    def clients(self) -> int:
        return self.producers + self.consumers

    @property
    def throughput_per_s(self) -> float:
        """The smaller of the two rates, because growth or decline of the backlog cannot last."""
        return min(self.produced_per_s, self.consumed_per_s)


@dataclass(frozen=True)
class Capacity:
    """C of a queue, with the mix that reaches it."""

    accepted: bool
    reason: str
    operations: int
    seconds: float
    # Without enough data these are 0 and not a guess.
    clients: int = 0
    throughput_per_s: float = math.nan
    best_producers: int = 0
    best_consumers: int = 0
    # Whether a quarter more clients than C were tried without gain. If not, C is a lower bound.
    flattens: bool = False
    curve: ScalabilityCurve | None = None


def _numbers_of_clients(count: int) -> str:
    if count < 2:
        return f"{'only one' if count else 'no'} number of clients was"
    return f"only {count} different numbers of clients were"


def capacity(operations: Sequence[LoadPoint], band: StabilityBand = DEFAULT_BAND) -> Capacity:
    """Return the capacity of one queue.

    Too little data raises no error; the result is then not accepted and has a reason.
    """
    known = _merged(operations)
    seconds = math.fsum(operation.seconds for operation in known)
    best = [one for one in _best_by_clients(known, band) if one.throughput_per_s > 0.0]
    if len(best) < CLIENT_COUNTS_MIN:
        return Capacity(
            accepted=False,
            reason=f"{_numbers_of_clients(len(best))} at work for {SECONDS_MIN:g} s or longer; a "
            f"curve needs {CLIENT_COUNTS_MIN} different ones",
            operations=len(known),
            seconds=seconds,
        )
    clients = np.array([operation.clients for operation in best], dtype=np.float64)
    measured = np.array([operation.throughput_per_s for operation in best])
    weight = np.array([operation.seconds for operation in best])
    smooth = _one_peak(measured, weight)
    plateau = _plateau(smooth, weight)
    found = _reached(clients, smooth, KNEE_FRACTION * plateau)
    flattens = bool(clients[-1] >= TRIED_BEYOND * found)
    mix = _best_mix(known, KNEE_FRACTION * plateau, band)
    return Capacity(
        accepted=flattens and mix is not None,
        reason=_reason(found, plateau, flattens, mix, int(clients[-1])),
        operations=len(known),
        seconds=seconds,
        clients=found,
        throughput_per_s=plateau,
        best_producers=mix.producers if mix else 0,
        best_consumers=mix.consumers if mix else 0,
        flattens=flattens,
        curve=fit_curve(clients, measured, weight),
    )


def _merged(operations: Iterable[LoadPoint]) -> list[LoadPoint]:
    """Return one point per mix, averaged over its seconds, without unusable and short ones."""
    by_mix: dict[tuple[int, int], list[LoadPoint]] = {}
    for one in operations:
        at_work = one.producers > 0 and one.consumers > 0 and one.seconds > 0.0
        if at_work and math.isfinite(one.produced_per_s + one.consumed_per_s + one.seconds):
            by_mix.setdefault((one.producers, one.consumers), []).append(one)
    merged = []
    for (producers, consumers), parts in sorted(by_mix.items()):
        seconds = math.fsum(part.seconds for part in parts)
        produced = math.fsum(part.produced_per_s * part.seconds for part in parts) / seconds
        consumed = math.fsum(part.consumed_per_s * part.seconds for part in parts) / seconds
        if seconds >= SECONDS_MIN:
            merged.append(LoadPoint(producers, consumers, produced, consumed, seconds))
    return merged


def _is_stable(operation: LoadPoint, band: StabilityBand) -> bool:
    state = stability(operation.produced_per_s, operation.consumed_per_s, band)
    return state is Stability.STABLE


def _best_by_clients(operations: Sequence[LoadPoint], band: StabilityBand) -> list[LoadPoint]:
    """Return the best mix of each number of clients, fewest clients first."""
    best: dict[int, LoadPoint] = {}
    for one in operations:
        other = best.get(one.clients)
        if other is None or _rank(one, band) > _rank(other, band):
            best[one.clients] = one
    return [best[clients] for clients in sorted(best)]


def _rank(operation: LoadPoint, band: StabilityBand) -> tuple[bool, float]:
    return _is_stable(operation, band), operation.throughput_per_s


def _best_mix(
    operations: Sequence[LoadPoint], enough_per_s: float, band: StabilityBand
) -> LoadPoint | None:
    """Return the stable mix that reaches the plateau with the fewest clients, else the fastest one.

    Returns `None` if no mix is stable.
    """
    stable = [operation for operation in operations if _is_stable(operation, band)]
    reaching = [one for one in stable if one.throughput_per_s >= enough_per_s]
    if reaching:
        return min(reaching, key=lambda one: (one.clients, -one.throughput_per_s))
    return max(stable, key=lambda one: one.throughput_per_s, default=None)


def _one_peak(values: Array, weight: Array) -> Array:
    """Return the closest values, by least squares, that rise to one peak and fall from it."""
    candidates = [
        np.concatenate(
            [
                _rising(values[: peak + 1], weight[: peak + 1]),
                _rising(values[:peak:-1], weight[:peak:-1])[::-1],
            ]
        )
        for peak in range(len(values))
    ]
    return min(candidates, key=lambda fitted: float(weight @ (values - fitted) ** 2))


def _plateau(values: Array, weight: Array) -> float:
    """Return the mean of the values near the peak, in two steps, since the peak may be chance."""
    level = float(values.max())
    for fraction in (NEAR_PEAK, KNEE_FRACTION):
        near = values >= fraction * level
        level = float(np.average(values[near], weights=weight[near]))
    return level


def _rising(values: Array, weight: Array) -> Array:
    """Return the closest values that never fall, by pooling neighbours into their mean."""
    pools: list[tuple[float, float, int]] = []
    for value, mass in zip(values.tolist(), weight.tolist(), strict=True):
        pools.append((value, mass, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (v1, w1, n1), (v2, w2, n2) = pools.pop(-2), pools.pop()
            pools.append(((v1 * w1 + v2 * w2) / (w1 + w2), w1 + w2, n1 + n2))
    return np.repeat([value for value, _, _ in pools], [n for _, _, n in pools])


def _reached(clients: Array, throughput: Array, enough_per_s: float) -> int:
    """Return the smallest whole number of clients with enough throughput, by interpolation."""
    first = int(np.argmax(throughput >= enough_per_s))
    if first == 0:
        return int(clients[0])
    low, high = throughput[first - 1], throughput[first]
    part = (enough_per_s - low) / (high - low)
    between = float(clients[first - 1] + part * (clients[first] - clients[first - 1]))
    return math.ceil(between - 1e-9)


def _reason(
    found: int, plateau: float, flattens: bool, mix: LoadPoint | None, most_clients: int
) -> str:
    if not flattens:
        return (
            f"up to the {most_clients} clients that were seen the throughput was not seen to "
            f"flatten: the capacity is at least {found}, try more"
        )
    if mix is None:
        return "no mix of producers and consumers was stable, so none of these rates can last"
    return (
        f"{found} clients reach {KNEE_FRACTION:.0%} of {plateau:.4g} msg/s, "
        f"best with {mix.producers} producers and {mix.consumers} consumers"
    )


# -- scalability --
# Fit of the Universal Scalability Law: throughput as a function of the number of clients.
#
#     X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))     Universal Scalability Law
#
# λ is the throughput of one client. σ is contention: clients queue for a shared resource. κ is
# coherency: the cost that clients cause each other, so that throughput falls behind the peak.


# Three unknowns, and one point more to check the fit.
POINTS_MIN = 4


@dataclass(frozen=True)
class ScalabilityCurve:
    """The fitted law; `r2` is the part of the points' variance that it explains."""

    rate_per_s: float
    contention: float
    coherency: float
    r2: float

    def throughput_per_s(self, clients: Term) -> Term:
        return throughput_at(clients, self.rate_per_s, self.contention, self.coherency)

    @property
    def clients_at_peak(self) -> float:
        """The number of clients at the peak; infinite if the curve never falls."""
        if self.coherency <= 0.0:
            return math.inf
        return math.sqrt(max(1.0 - self.contention, 0.0) / self.coherency)


def fit_curve(
    clients: NDArray[np.float64],
    throughput_per_s: NDArray[np.float64],
    seconds: NDArray[np.float64],
) -> ScalabilityCurve | None:
    """Return the curve through measured points, weighted by their duration, or `None`."""
    highest = float(throughput_per_s.max(initial=0.0))
    if len(np.unique(clients)) < POINTS_MIN or highest <= 0.0:
        return None
    share = throughput_per_s / highest
    slope = float(np.max(share / clients))
    try:
        with warnings.catch_warnings():
            # The covariance is not used, and a fit at a bound has none.
            warnings.simplefilter("ignore", OptimizeWarning)
            fitted, _ = curve_fit(
                throughput_at,
                clients,
                share,
                p0=(slope, 0.05, 0.001),
                sigma=1.0 / np.sqrt(seconds),
                bounds=([0.0, 0.0, 0.0], [np.inf, 1.0, 1.0]),
                max_nfev=2000,
            )
    except RuntimeError:
        return None
    left_over = float(seconds @ (share - throughput_at(clients, *fitted)) ** 2)
    mean = float(np.average(share, weights=seconds))
    spread = float(seconds @ (share - mean) ** 2)
    return ScalabilityCurve(
        rate_per_s=float(fitted[0]) * highest,
        contention=float(fitted[1]),
        coherency=float(fitted[2]),
        r2=1.0 - left_over / spread if spread > 0.0 else math.nan,
    )

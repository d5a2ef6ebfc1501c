"""Generated traces: typical shapes of load, each from a few parameters and a seed.

Each shape is a function of time, sampled once per second. Random numbers come from one generator
created from the seed, so the same seed gives the same trace on every machine.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from tidegate.simulation.trace import Trace


def sampled(name: str, duration_s: float, rate_at: Callable[[float], float]) -> Trace:
    """Return a function of time as a trace with one row per second, sampled in its middle."""
    seconds = max(2, math.ceil(duration_s))
    times = [float(second) for second in range(seconds)]
    return Trace(name, times, [max(0.0, round(rate_at(time + 0.5), 6)) for time in times])


def ramp(
    growth_per_s2: float, top_per_s: float, hold_s: float = 0.0, *, start_per_s: float = 0.0
) -> Trace:
    """Return a trace that grows at a constant rate and then stays constant."""
    rise_s = (top_per_s - start_per_s) / growth_per_s2
    return sampled(
        "ramp",
        rise_s + hold_s,
        lambda time: min(top_per_s, start_per_s + growth_per_s2 * time),
    )


def square(low_per_s: float, high_per_s: float, half_s: float, periods: int) -> Trace:
    """Return a trace that alternates between a low and a high rate."""
    return sampled(
        "square",
        2 * half_s * periods,
        lambda time: low_per_s if (time // half_s) % 2 == 0 else high_per_s,
    )


def saw_tooth(low_per_s: float, high_per_s: float, period_s: float, periods: int) -> Trace:
    """Return a trace that repeatedly rises slowly and falls at once."""
    return sampled(
        "saw-tooth",
        period_s * periods,
        lambda time: low_per_s + (high_per_s - low_per_s) * (time % period_s) / period_s,
    )


# Random shapes


def promised_load(seed: int, growth_per_s2: float, duration_s: float = 1800.0) -> Trace:
    """Return levels held for some minutes, rising at most as fast as agreed and falling at once."""
    chance = random.Random(f"promised {seed}")
    rates: list[float] = []
    rate = chance.uniform(8.0, 18.0)
    while len(rates) < duration_s:
        target = chance.uniform(8.0, 150.0)
        growth = chance.uniform(0.5, 1.0) * growth_per_s2
        while rate < target:
            rate = min(rate + growth, target)
            rates.append(rate)
        rate = target
        rates += [rate] * round(chance.uniform(60.0, 240.0))
    return sampled("agreement", duration_s, lambda time: rates[int(time)])


def random_ramps(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace that rises, stays on a plateau, and falls again."""
    low = chance.uniform(20.0, 200.0)
    high = low + chance.uniform(200.0, 900.0)
    rise_s = chance.uniform(0.15, 0.4) * duration_s
    plateau_s = chance.uniform(0.1, 0.3) * duration_s
    fall_s = chance.uniform(0.1, 0.3) * duration_s

    def rate_at(time: float) -> float:
        if time < rise_s:
            return low + (high - low) * time / rise_s
        if time < rise_s + plateau_s:
            return high
        return max(low, high - (high - low) * (time - rise_s - plateau_s) / fall_s)

    return sampled("ramps", duration_s, rate_at)


def random_steps(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace of levels that last some minutes each."""
    levels: list[tuple[float, float]] = []
    until = 0.0
    while until < duration_s:
        until += chance.uniform(120.0, 600.0)
        levels.append((until, chance.uniform(20.0, 800.0)))
    return sampled(
        "steps", duration_s, lambda time: next(rate for end, rate in levels if time < end)
    )


def random_bursts(chance: random.Random, duration_s: float) -> Trace:
    """Return a trace of a constant base with short bursts."""
    base = chance.uniform(50.0, 300.0)
    bursts: list[tuple[float, float, float]] = []
    time_s = chance.expovariate(1 / 240.0)
    while time_s < duration_s:
        bursts.append((time_s, time_s + chance.uniform(10.0, 90.0), chance.uniform(100.0, 600.0)))
        time_s = bursts[-1][1] + chance.expovariate(1 / 240.0)
    return sampled(
        "bursts",
        duration_s,
        lambda time: base + sum(height for start, end, height in bursts if start <= time < end),
    )


def random_diurnal(chance: random.Random, duration_s: float) -> Trace:
    """Return one or more days compressed into the duration, with a second harmonic and noise."""
    days = chance.uniform(1.0, 2.5)
    mean = chance.uniform(150.0, 500.0)
    swing, second = chance.uniform(0.4, 0.9) * mean, chance.uniform(0.0, 0.25) * mean
    phase = chance.uniform(0.0, 2 * math.pi)
    noise, level = chance.uniform(0.0, 0.03) * mean, 0.0
    wander: list[float] = []
    for _ in range(math.ceil(duration_s) + 1):
        level = 0.98 * level + chance.gauss(0.0, noise)
        wander.append(level)

    def rate_at(time: float) -> float:
        angle = 2 * math.pi * days * time / duration_s + phase
        return mean + swing * math.sin(angle) + second * math.sin(2 * angle) + wander[int(time)]

    return sampled("diurnal", duration_s, rate_at)


def random_flash_crowd(chance: random.Random, duration_s: float) -> Trace:
    """Return a low base with a rise to many times that within about a minute, and a slow decay."""
    base = chance.uniform(30.0, 200.0)
    peak = base * chance.uniform(3.0, 8.0)
    start_s = chance.uniform(0.1, 0.5) * duration_s
    rise_s = chance.uniform(20.0, 120.0)
    decay_s = chance.uniform(0.1, 0.3) * duration_s

    def rate_at(time: float) -> float:
        if time < start_s:
            return base
        if time < start_s + rise_s:
            return base + (peak - base) * (time - start_s) / rise_s
        return base + (peak - base) * math.exp(-(time - start_s - rise_s) / decay_s)

    return sampled("flash-crowd", duration_s, rate_at)


KINDS: dict[str, Callable[[random.Random, float], Trace]] = {
    "ramps": random_ramps,
    "steps": random_steps,
    "bursts": random_bursts,
    "diurnal": random_diurnal,
    "flash-crowd": random_flash_crowd,
}


def random_trace(kind: str, seed: int, duration_s: float) -> Trace:
    """Return a trace of a kind from `KINDS`; the same seed gives the same trace."""
    return KINDS[kind](random.Random(f"{kind} {seed}"), duration_s)

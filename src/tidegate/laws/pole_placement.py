"""Pole placement: gains of P, PI and PID controllers from the wanted poles of the closed loop.

    plant   y(k+1) = a·y(k) + b·u(k)          y arrival rate (msg/s), u prefetch, e = target − y
    P       u(k) = Kp·e(k)                    pole a − b·Kp, so stable iff (a−1)/b < Kp < (1+a)/b
            y∞ = target·Kp·b / (1 − a + Kp·b): it keeps a steady-state error
    PI      u(k) = u(k−1) + (Kp+Ki)·e(k) − Kp·e(k−1)
            z² + [b(Kp+Ki) − (1+a)]·z + a − b·Kp
    PID     u(k) = Kp·e(k) + Ki·Σe(i) + Kd·[e(k) − e(k−1)]
            z³ + [b(Kp+Ki+Kd) − (1+a)]·z² + [a − b(Kp+2Kd)]·z + b·Kd

The gains follow by comparing coefficients with the wanted polynomial. The paper has three
misprints: Ki = (a+Kp·b)/b for PI, −0.063 in Kp, and one Kd·e(k) too many for PID. Its numbers
follow from the formulas above.

    settling within k_s samples, overshoot Mp:  r = e^(−4/k_s),  θ = π·ln r / ln Mp
    wanted z² − 2r·cosθ·z + r²

A controller may weigh the target less than the measurement in its P and D parts (setpoint weight w:
Kp·(w·target − y)). That moves the zero of the closed loop, which causes overshoot, and moves no
pole. The module uses the standard library only: a node that redesigns its controllers needs no
numpy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import mul

from tidegate.laws.least_squares import Model


class Kind(StrEnum):
    """The type of a controller."""

    P = "P"
    PI = "PI"
    PID = "PID"


@dataclass(frozen=True, slots=True)
class Gains:
    """The gains of one controller. They hold for one sampling interval."""

    kind: Kind
    # Kp, Ki, Kd: prefetch per msg/s of error.
    proportional: float
    integral: float = 0.0
    derivative: float = 0.0
    # Weight of the target in the P and D parts.
    setpoint_weight: float = 1.0

    def __str__(self) -> str:
        parts = [f"Kp = {self.proportional:.5g}"]
        if self.kind is not Kind.P:
            parts.append(f"Ki = {self.integral:.5g}")
        if self.kind is Kind.PID:
            parts.append(f"Kd = {self.derivative:.5g}")
        if self.setpoint_weight != 1.0:
            parts.append(f"setpoint weight {self.setpoint_weight:g}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Polynomials:
    """A closed loop from target to rate: numerator and denominator, highest power first."""

    numerator: tuple[float, ...]
    denominator: tuple[float, ...]


def p_gains(a: float, b: float, pole: float) -> Gains:
    """Return the P controller whose closed loop has this pole."""
    return Gains(Kind.P, (a - pole) / b)


def pi_gains(a: float, b: float, wanted: Sequence[float]) -> Gains:
    """Return the PI controller for the wanted z² + c1·z + c0, given as (c1, c0)."""
    c1, c0 = wanted
    proportional = (a - c0) / b
    return Gains(Kind.PI, proportional, (c1 + 1.0 + a - b * proportional) / b)


def pid_gains(a: float, b: float, wanted: Sequence[float]) -> Gains:
    """Return the PID controller for the wanted z³ + c2·z² + c1·z + c0, given as (c2, c1, c0)."""
    c2, c1, c0 = wanted
    derivative = c0 / b
    proportional = (a - c1 - 2.0 * b * derivative) / b
    integral = (c2 + 1.0 + a - b * proportional - b * derivative) / b
    return Gains(Kind.PID, proportional, integral, derivative)


def proportional_bounds(a: float, b: float) -> tuple[float, float]:
    """Return the limits of Kp between which a P controller is stable."""
    return (a - 1.0) / b, (1.0 + a) / b


def steady_rate_per_s(model: Model, gains: Gains, target_per_s: float) -> float:
    """Return the steady-state rate: the target with an integral, and off it without."""
    if gains.kind is not Kind.P:
        return target_per_s
    loop = model.b * gains.proportional
    return float((loop * target_per_s + model.offset_per_s) / (1.0 - model.a + loop))


def wanted_pair(settling_samples: float, overshoot: float) -> tuple[float, float]:
    """Return radius r and angle θ of the pole pair for this settling time and overshoot."""
    radius = math.exp(-4.0 / settling_samples)
    # ln 0 is −∞: without overshoot the angle is 0.
    angle = math.pi * math.log(radius) / math.log(overshoot) if overshoot > 0.0 else 0.0
    return radius, min(angle, math.pi)


def closed_loop(a: float, b: float, gains: Gains, late_samples: int = 0) -> Polynomials:
    """Return the loop from target to rate with measurements that are late by so many samples."""
    kp, ki, kd = gains.proportional, gains.integral, gains.derivative
    w = gains.setpoint_weight
    feedback: tuple[float, ...]
    forward: tuple[float, ...]
    open_loop: tuple[float, ...]
    match gains.kind:
        case Kind.P:
            feedback, forward = (kp,), (w * kp,)
            open_loop = (1.0, -a)
        case Kind.PI:
            feedback, forward = (kp + ki, -kp), (w * kp + ki, -w * kp)
            open_loop = (1.0, -1.0 - a, a)
        case Kind.PID:
            feedback = (kp + ki + kd, -kp - 2.0 * kd, kd)
            forward = (w * (kp + kd) + ki, -w * (kp + 2.0 * kd), w * kd)
            open_loop = (1.0, -1.0 - a, a, 0.0)
    delayed = open_loop + (0.0,) * late_samples
    fed_back = (0.0,) * (len(delayed) - len(feedback)) + tuple(b * c for c in feedback)
    return Polynomials(
        numerator=tuple(b * c for c in forward) + (0.0,) * late_samples,
        denominator=tuple(x + y for x, y in zip(delayed, fed_back, strict=True)),
    )


def roots_within(polynomial: Sequence[float], radius: float = 1.0) -> bool:
    """Return whether all roots lie inside the circle, by the Schur–Cohn test."""
    degree = len(polynomial) - 1
    c = [x * radius ** (degree - i) for i, x in enumerate(polynomial)]
    while len(c) > 1:
        first, last = c[0], c[-1]
        if not abs(last) < abs(first):
            return False
        # Divide by the first coefficient, so that no coefficient overflows.
        c = [c[i] - last / first * c[-1 - i] for i in range(len(c) - 1)]
    return True


def disturbed_loop(a: float, b: float, gains: Gains) -> Polynomials:
    """Return the loop from an additive disturbance of the rate to the rate: 1 / (1 + open loop)."""
    undisturbed = Gains(gains.kind, 0.0)
    return Polynomials(
        numerator=closed_loop(a, b, undisturbed).denominator,
        denominator=closed_loop(a, b, gains).denominator,
    )


def step_response(loop: Polynomials, samples: int) -> list[float]:
    """Return the response to a unit step of the input, computed by the difference equation."""
    order = len(loop.denominator) - 1
    lag = order + 1 - len(loop.numerator)
    past = [c / loop.denominator[0] for c in loop.denominator[1:]]
    # The input is 0 before sample 0, so each sample adds one coefficient.
    driven = [
        sum(loop.numerator[: max(k - lag + 1, 0)]) / loop.denominator[0] for k in range(order + 1)
    ]
    recent = deque([0.0] * order, maxlen=order)
    response: list[float] = []
    for k in range(samples):
        out = driven[min(k, order)] - sum(map(mul, past, recent))
        recent.appendleft(out)
        response.append(out)
    return response


def weighted(gains: Gains, setpoint_weight: float) -> Gains:
    """Return the same gains with another setpoint weight: the same poles and another zero."""
    return replace(gains, setpoint_weight=setpoint_weight)

"""The result of a tuning: a model with its quality, and the controller designed for it."""

from __future__ import annotations

import asyncio
import cmath
import contextlib
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass

import control
import msgspec
import numpy as np
from numpy.typing import NDArray

from tidegate.client.app import App
from tidegate.client.client import Client
from tidegate.client.connect import connect
from tidegate.client.engine import EngineClient, EngineSubscription
from tidegate.core.errors import InvalidValue, IoFailure
from tidegate.core.prefetch import ConsumerSample, ControllerKind, PrefetchModel
from tidegate.laws.prefetch.design import (
    ControllerType,
    DesignRefused,
    Gains,
    Requirement,
    StepResponse,
    analyse_step,
    closed_loop,
    place_poles,
    proportional_bounds,
    steady_rate_per_s,
)
from tidegate.laws.prefetch.fit import LinearModel


class TunedController(msgspec.Struct, frozen=True, kw_only=True):
    """Gains per sample of the model, and the behaviour that the model predicts for them."""

    kind: ControllerKind
    proportional: float
    integral: float
    derivative: float
    setpoint_weight: float
    # Real and imaginary part, slowest first.
    poles: list[tuple[float, float]]
    damping: float
    # Settling time and overshoot of the simulated step to the target.
    settle_s: float
    overshoot: float
    # Remaining error as a fraction of the target; 0 with an integral.
    offset: float

    @staticmethod
    def of(loop: ClosedLoop, sample_s: float) -> TunedController:
        gains = loop.gains
        return TunedController(
            kind=ControllerKind(gains.kind.value),
            proportional=gains.proportional,
            integral=gains.integral,
            derivative=gains.derivative,
            setpoint_weight=gains.setpoint_weight,
            poles=[(pole.real, pole.imag) for pole in loop.poles],
            damping=loop.damping,
            settle_s=loop.predicted.settling_samples * sample_s,
            overshoot=loop.predicted.overshoot,
            offset=loop.offset,
        )


class TunedModel(PrefetchModel, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of a model file.

    Code that loads it as a `PrefetchModel` ignores the further fields.
    """

    target_per_s: float
    controller: TunedController
    # Standard errors.
    a_error: float = math.nan
    b_error: float = math.nan
    # Description of the consumer that was measured.
    measured_on: str = ""
    notes: tuple[str, ...] = ()

    def plain(self) -> PrefetchModel:
        """Return the model without the informational fields, in the form that a goal contains."""
        fields = PrefetchModel.__struct_fields__
        return PrefetchModel(**{name: getattr(self, name) for name in fields})


# Analysis of a closed loop before it runs: poles, damping, and a simulated step.
#
#     F(z) = C(z)·P(z) / (1 + C(z)·P(z))        ζ = −Re(ln z) / |ln z| of a pole z
#
# The loop is built with python-control from the same polynomials as the gains. Settling time and
# overshoot come from the simulated step and not from the formulas, because the zero of the closed
# loop affects them. Three kinds of loops are refused with their poles in the error: unstable ones
# (a pole outside the unit circle), badly damped ones, and ones that late measurements make
# unstable. A pole on the negative real axis alternates from sample to sample; the formula of ζ
# holds for it too.


# A smaller damping rings for more than three periods: an overshoot of one half.
DAMPING_MIN = 0.2
# A pole of 0.999 needs 4,000 samples; longer simulations would serve no user.
HORIZON_MIN, HORIZON_MAX = 50, 20_000
LOOP_ROUNDING = 1e-6

Array = NDArray[np.float64]
Poles = tuple[complex, ...]


@dataclass(frozen=True)
class ClosedLoop:
    """A controller with its plant, as the model describes it."""

    model: LinearModel
    gains: Gains
    # Slowest first.
    poles: Poles
    zeros: Poles
    # The smallest damping of any pole.
    damping: float
    # Response to the simulated step, relative to its own final value, which for P is not the
    # target.
    predicted: StepResponse
    # Remaining error as a fraction of the target; 0 with an integral.
    offset: float
    # The largest pole radius with measurements that are late by 0, 1, 2, … samples.
    late_radii: tuple[float, ...]
    # For P only: the limits of Kp between which the loop is stable.
    proportional_bounds: tuple[float, float] | None = None

    @property
    def is_stable(self) -> bool:
        return self.late_radii[0] < 1.0

    def steady_rate_per_s(self, target_per_s: float) -> float:
        """Return the rate at which the loop comes to rest."""
        return steady_rate_per_s(self.model, self.gains, target_per_s)

    def response_per_s(self, target_per_s: float, samples: int) -> list[float]:
        """Return the simulated step from 0 to the target, for drawing."""
        rates = _simulate(_transfer(self.model, self.gains), samples)
        return [float(rate) * target_per_s for rate in rates]

    def __str__(self) -> str:
        return (
            f"{self.gains.kind}: {self.gains}; poles {format_poles(self.poles)}; damping "
            f"{self.damping:.2f}; settles in {self.predicted.settling_samples} samples with "
            f"{self.predicted.overshoot:.1%} overshoot and {self.offset:.1%} offset"
        )


def design_controller(
    model: LinearModel, kind: ControllerType, requirement: Requirement
) -> ClosedLoop:
    """Return the analysed controller that keeps the requirement.

    Raises `DesignRefused`, with the poles in its text, if there is none.
    """
    try:
        placed = place_poles(model, kind, requirement)
    except DesignRefused as refused:
        if refused.gains is None:
            raise
        poles = analyse_loop(model, refused.gains, requirement.late_samples)
        raise DesignRefused(f"{refused}. {_shown_late(poles)}", refused.gains) from None
    return check_gains(model, placed.gains, requirement.late_samples)


def check_gains(model: LinearModel, gains: Gains, late_samples: int = 0) -> ClosedLoop:
    """Return the analysed loop of any gains, such as a user's own.

    Raises `DesignRefused` if the loop is unstable, badly damped, or unstable with late
    measurements.
    """
    found = analyse_loop(model, gains, late_samples)
    if not found.is_stable:
        raise DesignRefused(
            f"{gains} make the loop unstable, the rate would run away: poles "
            f"{format_poles(found.poles)} must lie within the unit circle; lower the gains",
            gains,
        )
    # A plant that alternates by itself is not due to the controller.
    if found.damping < min(DAMPING_MIN, damping_of(complex(model.a)) - LOOP_ROUNDING):
        raise DesignRefused(
            f"{gains} leave the loop badly damped, the rate would swing for long: poles "
            f"{format_poles(found.poles)} have a damping of {found.damping:.2f}, and "
            f"{DAMPING_MIN:g} is "
            "needed; lower the gains or allow more time",
            gains,
        )
    if max(found.late_radii) >= 1.0:
        raise DesignRefused(
            f"{gains} bear no late measurement. {_shown_late(found)}; allow more time to settle",
            gains,
        )
    return found


def analyse_loop(model: LinearModel, gains: Gains, late_samples: int = 0) -> ClosedLoop:
    """Return the analysis of a loop, whether it is acceptable or not."""
    a, b = float(model.a), float(model.b)
    system = _transfer(model, gains)
    slowest_first = sorted((complex(p) for p in system.poles()), key=lambda p: (-abs(p), -p.imag))
    radius = abs(slowest_first[0])
    final = float(np.real(system.dcgain())) if radius < 1.0 else math.nan
    return ClosedLoop(
        model=model,
        gains=gains,
        poles=tuple(slowest_first),
        zeros=tuple(complex(z) for z in system.zeros()),
        damping=min(damping_of(pole) for pole in slowest_first),
        predicted=_predicted(system, final, radius),
        offset=1.0 - final if gains.kind is ControllerType.P else 0.0,
        late_radii=tuple(
            float(np.max(np.abs(_transfer(model, gains, late).poles())))
            for late in range(late_samples + 1)
        ),
        proportional_bounds=proportional_bounds(a, b) if gains.kind is ControllerType.P else None,
    )


def damping_of(pole: complex) -> float:
    """Return ζ of a pole: 1 decays without oscillating, 0 oscillates for ever, below 0 grows."""
    if pole == 0.0:
        return 1.0
    rate = cmath.log(pole)
    return -rate.real / abs(rate) if rate != 0.0 else 0.0


def format_poles(poles: Poles) -> str:
    """Format poles for people, such as 0.50±0.33i (|z| = 0.60); each conjugate pair once."""
    parts = []
    for pole in poles:
        if abs(pole.imag) < 1e-9:
            parts.append(f"{pole.real:.3g}")
        elif pole.imag > 0.0:
            parts.append(f"{pole.real:.3g}±{pole.imag:.3g}i (|z| = {abs(pole):.3g})")
    return ", ".join(parts)


def _shown_late(found: ClosedLoop) -> str:
    late = ", ".join(f"{radius:.3g}" for radius in found.late_radii)
    return (
        f"{found.gains} would place the poles at {format_poles(found.poles)}; with "
        f"measurements late by 0 "
        f"to {len(found.late_radii) - 1} samples the largest is {late}"
    )


def _transfer(model: LinearModel, gains: Gains, late_samples: int = 0) -> control.TransferFunction:
    loop = closed_loop(float(model.a), float(model.b), gains, late_samples)
    return control.TransferFunction(loop.numerator, loop.denominator, dt=True)


def _predicted(system: control.TransferFunction, final: float, radius: float) -> StepResponse:
    if math.isnan(final):
        return StepResponse(HORIZON_MAX, math.inf, math.nan)
    # Until the slowest pole has decayed to a ten-thousandth.
    enough = math.log(1e-4) / math.log(max(radius, 0.1)) if radius < 1.0 else HORIZON_MAX
    samples = min(max(math.ceil(enough), HORIZON_MIN), HORIZON_MAX)
    return analyse_step([float(y) for y in _simulate(system, samples)], final)


def _simulate(system: control.TransferFunction, samples: int) -> Array:
    response = control.step_response(system, T=np.arange(samples, dtype=np.float64))
    return np.asarray(response.outputs, dtype=np.float64).reshape(-1)


# The user's own worker as the consumer of an experiment, with its handler and real messages.
#
# The app runs as under `tidegate worker`, with this queue only, and the experiment sets its
# prefetch. The app ends with the experiment. The messages it holds then are finished or go back to
# the queue.


# Seconds to reconnect. A user is waiting, so a broker that is down must fail the experiment soon.
PATIENCE_S = 6.0


class UserWorker:
    """The running worker of one queue of an app."""

    feeds_itself = False

    def __init__(self, app: App, queue: str) -> None:
        self._app = app
        self._queue = queue
        self.description = f"your own worker of {queue}, on its messages"
        self.restored_text = (
            f"your worker has finished what it had begun; the rest waits in {queue}"
        )

    async def set_prefetch(self, prefetch: int) -> None:
        subscription = self._subscription()
        if subscription.prefetch != prefetch:
            await subscription.set_prefetch(prefetch)

    async def measure(self, interval_s: float) -> ConsumerSample:
        loop = asyncio.get_running_loop()
        subscription = self._subscription()
        # Read the queue during the sample: a round trip between samples would be time that no
        # sample measures.
        looking = asyncio.create_task(ready(self._app.engine, self._queue))
        try:
            was_live, interruptions = subscription.is_live, subscription.interruptions
            begun_at, before = loop.time(), subscription.delivered
            await asyncio.sleep(interval_s)
            now, after = loop.time(), subscription.delivered
            is_empty = await looking == 0
        finally:
            looking.cancel()
        # During an outage nothing arrives at any prefetch. Afterwards the worker may have another
        # subscription with a new counter.
        interrupted = (
            self._subscription() is not subscription
            or subscription.interruptions != interruptions
            or not (was_live and subscription.is_live)
        )
        return ConsumerSample(
            at=now,
            interval_s=now - begun_at,
            arrived_per_s=(after - before) / (now - begun_at),
            held=float(subscription.held),
            prefetch=float(subscription.prefetch),
            starved=is_empty or interrupted,
        )

    async def close(self) -> None:
        """Do nothing, because `user_worker` ends the app."""

    def _subscription(self) -> EngineSubscription:
        found = self._app.subscription(self._queue)
        if found is None:
            raise IoFailure(
                f"the worker of {self._queue} has ended while it was measured: its log says why"
            )
        return found


@contextlib.asynccontextmanager
async def user_worker(app: App, url: str, queue: str) -> AsyncIterator[UserWorker]:
    """Run the app's worker of this queue, and yield it as a consumer.

    The queue must exist. Raises `InvalidValue` if the app has no worker for it, or if the nodes
    control its prefetch.
    """
    slots = [worker.concurrency for worker in app.workers if worker.queue == queue]
    if not slots:
        known = ", ".join(worker.queue for worker in app.workers) or "none at all"
        raise InvalidValue(f"the app has no worker for {queue}; it has workers for {known}")
    # An app creates missing queues; check first, so that a mistyped name does not create one.
    async with connect(url, reconnect_s=PATIENCE_S) as looking:
        found = await looking.queue(queue)
        if isinstance(looking, Client) and found.policy.prefetch is not None:
            raise InvalidValue(
                f"nodes steer the prefetch of {queue} already, and would undo what is set here: "
                f"switch that off first (`tidegate policy {queue} --prefetch-off`)"
            )
    async with app.running(queues=[queue], prefetch=slots[0], url=url):
        yield UserWorker(app, queue)


async def ready(client: EngineClient, queue: str) -> int:
    """Return the number of messages that wait for delivery."""
    if isinstance(client, Client):
        cluster = await client.stats(queue)
        return sum(one.waiting - one.delayed for node in cluster.nodes for one in node.queues)
    return int((await client.queue(queue)).messages)

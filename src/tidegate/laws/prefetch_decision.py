"""Decisions of a prefetch loop, in the form that all loops share.

Telemetry, metrics and `tidegate explain` use them.
"""

from __future__ import annotations

import math

from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.core.steering import Decision
from tidegate.laws.control_step import ControlStep, Mode, Saturation

LOOP = "prefetch"
_SIDE = {Saturation.NONE: 0.0, Saturation.LOW: -1.0, Saturation.HIGH: 1.0}
_DECIDES = {
    Mode.AUTOMATIC: "the controller steers",
    Mode.HELD: "held: nothing new was measured",
    Mode.FALLBACK: "the fallback: measurements have stopped",
    Mode.MANUAL: "set by hand",
}


def explained(
    step: ControlStep,
    goal: PrefetchGoal,
    model: PrefetchModel | None,
    *,
    service: str,
    output: int | None = None,
) -> Decision:
    """Return the decision that explains a step; `output` is the whole number that was set."""
    inputs = {
        "target_per_s": step.target_per_s,
        "rate_per_s": step.measured_per_s,
        "used_per_s": step.used_per_s,
        "error_per_s": step.error_per_s,
    }
    if model is not None:
        inputs |= {"a": model.a, "b": model.b}
    outputs = {
        "proportional": step.proportional,
        "integral": step.integral,
        "derivative": step.derivative,
        "wanted": step.wanted,
        "level": step.level,
        "output": step.output if output is None else float(output),
        "saturated": _SIDE[step.saturated],
    }
    return Decision(
        at=step.at,
        loop=LOOP,
        service=service,
        law=f"prefetch {goal.controller.value}",
        rule=_rule(step),
        inputs=_known(inputs),
        outputs=_known(outputs),
        reason=_reason(step, goal),
        otherwise=_otherwise(step, goal),
    )


def _rule(step: ControlStep) -> str:
    if step.saturated is Saturation.NONE:
        return step.mode.value
    return f"{step.mode.value}, saturated {step.saturated.value}"


def _reason(step: ControlStep, goal: PrefetchGoal) -> str:
    wanted = "keep up" if goal.rate_per_s is None else f"{goal.rate_per_s:g}/s"
    parts = [f"prefetch {step.level:.4g} for {wanted}: {_DECIDES[step.mode]}"]
    if math.isfinite(step.error_per_s):
        parts.append(
            f"{step.used_per_s:.4g}/s is {abs(step.error_per_s):.3g}/s "
            f"{'below' if step.error_per_s > 0.0 else 'above'} the target of "
            f"{step.target_per_s:.4g}/s, so P {step.proportional:.4g} + I {step.integral:.4g} + "
            f"D {step.derivative:.4g} = {step.wanted:.4g}"
        )
    if step.saturated is not Saturation.NONE:
        parts.append(f"held at its {step.saturated.value} limit")
    return "; ".join([*parts, *step.notes]) + "."


def _otherwise(step: ControlStep, goal: PrefetchGoal) -> str:
    match step.mode:
        case Mode.MANUAL:
            return "Take the manual value away, and the controller goes on from it."
        case Mode.HELD | Mode.FALLBACK:
            return "With a measurement the controller goes on from here."
        case Mode.AUTOMATIC if step.saturated is Saturation.HIGH:
            return (
                f"A prefetch above {goal.high} is not allowed: raise `high`, or lower the target."
            )
        case Mode.AUTOMATIC if step.saturated is Saturation.LOW:
            return f"A prefetch below {goal.low} is not allowed."
    return ""


def _known(numbers: dict[str, float]) -> dict[str, float]:
    """Return the finite numbers only, because JSON has no NaN."""
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}

"""Prefetch as a controlled variable: goals, measurements and models.

A goal is in terms that users know: a rate or "keep up", a settling time, an overshoot. A model
describes how a consumer's arrival rate follows its prefetch: y(k+1) = a·y(k) + b·u(k) + offset.
`tidegate tune prefetch` writes a model to a file, and Spark learns models from history. The
controller's gains follow from goal and model.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

import msgspec

from tidegate.core.errors import InvalidValue
from tidegate.core.text import (
    DURATION_IS,
    RATE,
    RATE_IS,
    expected_type,
    format_duration,
    parse_duration_s,
    parse_rate_per_s,
    redacted_value,
    suggestion_for,
)

# RabbitMQ's protocol has 16 bits for it.
PREFETCH_MAX = 65_535
OVERSHOOT_MAX = 0.5
# The least R² on held-out data of a model that may be used for control.
R2_ACCEPTED = 0.8
# Bounds on the gain of one unit of prefetch, in msg/s. A round trip takes at least a microsecond
# and at most some days.
WORTH_PER_S_MAX = 1e6
WORTH_PER_S_MIN = 1e-6
# A goal whose rate is this many times below the gain of the model does not fit the model.
WORTH_TIMES_MAX = 10.0
SAMPLE_S_MAX = 86_400.0
# The version of model files; it changes when a field changes its meaning.
FILE_VERSION = 1
# Fields that `tidegate tune prefetch` adds to a model file for people.
INFORMATIONAL_FIELDS = frozenset(
    {"target_per_s", "controller", "a_error", "b_error", "measured_on", "notes"}
)


class ControllerKind(enum.StrEnum):
    """The control law."""

    P = "P"
    PI = "PI"
    PID = "PID"


class PrefetchModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a consumer's arrival rate follows its prefetch, and how well that is known."""

    a: float
    b: float
    offset_per_s: float = 0.0
    # The sampling interval of the data. Gains are valid for this interval only.
    sample_s: float = 1.0
    # The range of prefetch in which the model is valid.
    low: int = 1
    high: int = 360
    # The highest rate that the handler reached; NaN means that it was never saturated.
    ceiling_per_s: float = math.nan
    # Measured on data that was not used for fitting.
    r2_test: float = math.nan
    rmse_test_per_s: float = math.nan
    r2_train: float = math.nan
    rmse_train_per_s: float = math.nan
    n_train: int = 0
    n_test: int = 0
    # Its origin: "rabbitmq" or "tidegate", the queue, and the time in seconds since 1970.
    engine: str = ""
    queue: str = ""
    made_at: float = 0.0

    def __post_init__(self) -> None:
        # JSON has no NaN. `omit_defaults` leaves out the default object only, so replace other NaNs
        # by it.
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and math.isnan(value):
                msgspec.structs.force_setattr(self, name, math.nan)

    @property
    def worth_per_s(self) -> float:
        """The gain at rest: how many msg/s one more unit of prefetch yields."""
        return self.b / (1.0 - self.a)

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """Read a model file of `tidegate tune prefetch --out`.

        Raise `InvalidValue` if it is no model file, or if the model is not usable for control.
        """
        try:
            document = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
            _check_document(file, document, {*cls.__struct_fields__, *INFORMATIONAL_FIELDS})
            found = msgspec.convert(document, cls)
        except OSError as failure:
            raise InvalidValue(
                f"the model file {file} cannot be read: {failure.strerror}"
            ) from None
        except msgspec.DecodeError as failure:
            raise InvalidValue(
                f"{file} is no model file ({failure}): `tidegate tune prefetch` writes one"
            ) from None
        try:
            found.check()
            if found.r2_test < R2_ACCEPTED:
                raise InvalidValue(
                    f"it explains {found.r2_test:.0%} of held-out data, and {R2_ACCEPTED:.0%} is "
                    "needed: identify it again"
                )
        except InvalidValue as wrong:
            raise InvalidValue(f"the model file {file}: {wrong}") from None
        return found

    def save(self, file: str | Path) -> None:
        """Write a model file atomically, since a loop may be reading it.

        Raise `InvalidValue` if it cannot be written.
        """
        beside = Path(f"{file}.new")
        document = {"version": FILE_VERSION, **msgspec.json.decode(msgspec.json.encode(self))}
        try:
            beside.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
            beside.replace(file)
        except OSError as failure:
            raise InvalidValue(
                f"the model file {file} cannot be written: {failure.strerror}"
            ) from None

    def check(self) -> None:
        """Raise `InvalidValue` unless the model describes a consumer that can be controlled."""
        if not (abs(self.a) < 1.0 and 0.0 < self.b < math.inf and self.sample_s > 0.0):
            raise InvalidValue(
                f"a = {self.a:g}, b = {self.b:g} per {self.sample_s:g} s is no model of a consumer "
                "that can be steered by its prefetch: |a| < 1, b > 0 and a sample above 0 s are "
                "needed; identify it again"
            )
        if not WORTH_PER_S_MIN <= self.worth_per_s <= WORTH_PER_S_MAX:
            raise InvalidValue(
                f"one unit of prefetch would be worth {self.worth_per_s:.3g} msg/s, and no message "
                f"goes round in {1.0 / self.worth_per_s:.2g} s: identify it again"
            )
        if not (1 <= self.low <= self.high <= PREFETCH_MAX and self.sample_s <= SAMPLE_S_MAX):
            raise InvalidValue(
                f"a model from prefetch {self.low} to {self.high} by samples of {self.sample_s:g} "
                f"s: 1 to {PREFETCH_MAX}, the lower one first, and a day at most; identify it again"
            )

    def doubts(self, queue: str, engine: str) -> str:
        """Return why the model may not fit consumers of this queue; empty if there is no reason."""
        if self.queue and self.queue != queue:
            return f"the model was measured on queue {self.queue}, and is used for {queue}"
        if self.engine and self.engine != engine:
            return f"the model was measured on {self.engine}, and is used on {engine}"
        return ""


class PrefetchGoal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The goal to which the prefetch of a queue's consumers is controlled."""

    # Messages per second for each consumer; `None` means as many as its handler can process.
    rate_per_s: float | None = None
    settle_s: float = 30.0
    overshoot: float = 0.05
    controller: ControllerKind = ControllerKind.PI
    sample_s: float = 1.0
    low: int = 1
    high: int = 360
    # The prefetch to use when measurements stop.
    fallback: int = 10
    # "Keep up" only: how many messages may wait in the consumer. `None` means one for every two
    # that are on their way or being handled, since messages arrive in batches.
    held: float | None = None
    # Whether the model is adapted while the loop runs.
    adaptive: bool = True
    # An override of the prefetch; `None` means automatic.
    manual: int | None = None
    # Whether there was no control before the override. If so, removing the override ends control.
    only_manual: bool = False
    # `None` means the learned model, or else a cautious guess from the first samples.
    model: PrefetchModel | None = None

    def check(self) -> None:
        """Raise `InvalidValue`, with advice, if the goal cannot be pursued."""
        if self.rate_per_s is not None and not 0.0 < self.rate_per_s < math.inf:
            raise InvalidValue(
                f"a target of {self.rate_per_s:g} messages a second cannot be steered to: say a "
                "number above 0, or none at all to keep up with the handler; to stop a consumer, "
                "stop it"
            )
        if not 1 <= self.low <= self.high <= PREFETCH_MAX:
            raise InvalidValue(
                f"a prefetch from {self.low} to {self.high}: say 1 to {PREFETCH_MAX} (0 means "
                "unlimited to RabbitMQ), the lower one first"
            )
        if not (0.0 < self.sample_s < math.inf and self.sample_s <= self.settle_s < math.inf):
            raise InvalidValue(
                f"settling within {self.settle_s:g} s by samples of {self.sample_s:g} s: both are "
                "above 0, and the time to settle is many samples, 16 or more at best"
            )
        if not 0.0 <= self.overshoot <= OVERSHOOT_MAX:
            raise InvalidValue(
                f"an overshoot of {100 * self.overshoot:g} %: say 0 to {100 * OVERSHOOT_MAX:g} %"
            )
        if self.held is not None and not 0.0 <= self.held < math.inf:
            raise InvalidValue(f"{self.held:g} messages that may wait: say 0 or more")
        for name, value in (("fallback", self.fallback), ("manual", self.manual)):
            if value is not None and not 1 <= value <= PREFETCH_MAX:
                raise InvalidValue(f"{name} is a prefetch, 1 to {PREFETCH_MAX}, not {value}")
        if self.model is not None:
            self.model.check()
            self._check_worth(self.model.worth_per_s)

    def _check_worth(self, worth_per_s: float) -> None:
        if self.rate_per_s is not None and worth_per_s > WORTH_TIMES_MAX * self.rate_per_s:
            raise InvalidValue(
                f"by the model a unit of prefetch is worth {worth_per_s:.3g} msg/s, so none gives "
                f"as little as {self.rate_per_s:g}: a wrong model, or a target for more than one "
                "consumer; `tidegate tune prefetch` with this target says which"
            )


def _check_document(file: str | Path, document: dict[str, Any], known: set[str]) -> None:
    """Raise `InvalidValue` unless the version and all fields are known."""
    version = document.pop("version", FILE_VERSION)
    if version != FILE_VERSION:
        raise InvalidValue(
            f"{file} is a model file of version {version}, and this Tidegate reads {FILE_VERSION}: "
            "identify it again, or use the Tidegate that wrote it"
        )
    if unknown := sorted(document.keys() - known):
        raise InvalidValue(
            f"{file} is no model file: there is no field {unknown[0]!r}"
            f"{suggestion_for(unknown[0], sorted(known))}. `tidegate tune prefetch` writes one"
        )


class ConsumerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer over one sampling interval."""

    # The end of the interval, by the loop's own clock.
    at: float
    interval_s: float
    # y: deliveries per second.
    arrived_per_s: float
    # Messages handled per second, and the busy part of the interval; `None` means not known.
    processed_per_s: float | None = None
    busy: float | None = None
    # Messages that wait in the consumer; `None` means not known.
    held: float | None = None
    # The mean prefetch during the interval.
    prefetch: float = math.nan
    # The queue had no messages for it, so the rate does not show the effect of the prefetch.
    starved: bool = False


# Prefetch goals as text, in settings and on a command line.
#
#     prefetch = "400/s"                     this rate for each consumer
#     prefetch = "keep-up"                   as many as its handler can process
#     prefetch = 12                          an override
#     prefetch = "off"                       each consumer gets the prefetch it asked for
#     prefetch = { rate = "400/s", settle = "30s", overshoot = "5%", high = 100 }
#
# Every error names the key, the given value and the allowed values.


PART_IS = "a part, such as 5% or 0.05"
KEEP_UP = "keep-up"
OFF = ("off", "none")
# Settling cannot be observed in fewer samples.
SETTLING_SAMPLES_MIN = 4
# Longer times make no sense.
_DURATION_S_MAX = 86_400.0
# A node polls its consumers about twenty times a second.
_SAMPLE_S_MIN = 0.1
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*")


def parse_part(text: str) -> float:
    """Return the part of 1 for text such as `5%` or `0.05`."""
    match = _PART.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{text!r} is not {PART_IS}")
    return float(match[1]) / (100.0 if match[2] else 1.0)


def _rate(value: Any) -> float | None:
    return None if value == KEEP_UP else parse_rate_per_s(msgspec.convert(value, str))


def _duration(value: Any) -> float:
    return parse_duration_s(msgspec.convert(value, str))


def _part(value: Any) -> float:
    return parse_part(value) if isinstance(value, str) else msgspec.convert(value, float)


def _model(value: Any) -> PrefetchModel:
    # In settings the value is a file name; otherwise it is the model itself.
    return PrefetchModel.load(value) if isinstance(value, str) else _as(PrefetchModel)(value)


def _as(kind: Any) -> Callable[[Any], Any]:
    return lambda value: msgspec.convert(value, kind, strict=not isinstance(value, str))


# By key in the text: the field, the allowed values, and the function that reads a value.
_KEYS: dict[str, tuple[str, str, Callable[[Any], Any]]] = {
    "rate": ("rate_per_s", f"{RATE_IS}, or {KEEP_UP}", _rate),
    "settle": ("settle_s", DURATION_IS, _duration),
    "overshoot": ("overshoot", PART_IS, _part),
    "controller": ("controller", expected_type(ControllerKind), _as(ControllerKind)),
    "sample": ("sample_s", DURATION_IS, _duration),
    "low": ("low", "a whole number", _as(int)),
    "high": ("high", "a whole number", _as(int)),
    "fallback": ("fallback", "a whole number", _as(int)),
    "held": ("held", "a number", _as(float | None)),
    "adaptive": ("adaptive", "true or false", _as(bool)),
    "manual": ("manual", "a whole number", _as(int | None)),
    "model": ("model", "a file that `tidegate tune prefetch` has written", _model),
}


def parse_goal(value: Any, before: PrefetchGoal | None = None) -> PrefetchGoal | None:
    """Return the goal for a value in text form, based on an earlier goal; `None` means off."""
    goal = before or PrefetchGoal()
    if isinstance(value, Mapping):
        return with_goal_keys(goal, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return with_manual_prefetch(before, value)
    text = value.strip().lower() if isinstance(value, str) else ""
    if text in OFF:
        return None
    if text.isdigit():
        return with_manual_prefetch(before, int(text))
    if text == KEEP_UP or RATE.fullmatch(text):
        return with_goal_keys(goal, {"rate": text})
    raise InvalidValue(
        f"prefetch = {redacted_value(value)}: must be {RATE_IS}, {KEEP_UP}, a whole number (by "
        f"hand), off, "
        "or a table with " + ", ".join(_KEYS)
    )


def with_manual_prefetch(before: PrefetchGoal | None, prefetch: int) -> PrefetchGoal:
    """Return the goal with an override of the prefetch; `without_manual_prefetch` removes it."""
    goal = PrefetchGoal(only_manual=True) if before is None else before
    return with_goal_keys(goal, {"manual": prefetch})


def without_manual_prefetch(goal: PrefetchGoal) -> PrefetchGoal | None:
    """Return the goal without its override; `None` if there was no control before it."""
    return None if goal.only_manual else with_goal_keys(goal, {"manual": None})


def with_goal_keys(goal: PrefetchGoal, changes: Mapping[str, Any]) -> PrefetchGoal:
    """Return the goal with some keys changed; raise `InvalidValue` for a bad key or value."""
    fields: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in _KEYS:
            raise InvalidValue(f"prefetch.{key}: there is no such key{suggestion_for(key, _KEYS)}")
        field, must, read = _KEYS[key]
        try:
            fields[field] = read(value)
        except (InvalidValue, msgspec.ValidationError) as wrong:
            if key == "model" and isinstance(wrong, InvalidValue):
                raise  # its text names the problem of the file
            raise InvalidValue(
                f"prefetch.{key} = {redacted_value(value)}: must be {must}"
            ) from None
    if "rate_per_s" in fields:
        # A new rate means that control is wanted, so it ends an override.
        fields.setdefault("manual", None)
        fields["only_manual"] = False
    found = msgspec.structs.replace(goal, **fields)
    check_goal(found)
    return found


def check_goal(goal: PrefetchGoal) -> None:
    """Raise `InvalidValue` unless a node can pursue the goal and a store can keep it."""
    goal.check()
    if not _SAMPLE_S_MIN <= goal.sample_s <= _DURATION_S_MAX:
        raise InvalidValue(f"sample {goal.sample_s:g} s: must be at least {_SAMPLE_S_MIN:g} s")
    if not SETTLING_SAMPLES_MIN * goal.sample_s <= goal.settle_s <= _DURATION_S_MAX:
        least = format_duration(SETTLING_SAMPLES_MIN * goal.sample_s)
        raise InvalidValue(
            f"settle {goal.settle_s:g} s: must be at least {SETTLING_SAMPLES_MIN} samples "
            f"({least}) and at most a day; shorter samples (`sample`) can settle sooner"
        )
    if goal.manual is not None and not goal.low <= goal.manual <= goal.high:
        raise InvalidValue(
            f"manual {goal.manual}: must be between low {goal.low} and high {goal.high}"
        )
    if goal.model is not None:
        # JSON has neither infinity nor NaN, and a policy that cannot be read back makes its queue
        # unusable. Fields that may be unknown are left out of the JSON.
        for field in msgspec.structs.fields(goal.model):
            value = getattr(goal.model, field.name)
            may_be_unknown = isinstance(field.default, float) and math.isnan(field.default)
            if isinstance(value, float) and not (
                math.isfinite(value) or (may_be_unknown and math.isnan(value))
            ):
                raise InvalidValue(f"{field.name} = {value} of the model: must be a finite number")


def format_goal(goal: PrefetchGoal | None) -> str:
    """Return a goal in a few words."""
    if goal is None:
        return "off"
    if goal.manual is not None:
        return f"{goal.manual} by hand"
    wanted = KEEP_UP if goal.rate_per_s is None else f"{goal.rate_per_s:g}/s"
    return (
        f"{wanted} by {goal.controller}, settles in {format_duration(goal.settle_s)}, overshoot "
        f"{100 * goal.overshoot:g} %, prefetch {goal.low} to {goal.high}"
        + ("" if goal.model is None else ", own model")
    )


def format_goal_keys(goal: PrefetchGoal) -> dict[str, Any]:
    """Return every key of a goal in its text form."""
    shown_as: dict[str, Any] = {}
    for key, (field, _, _) in _KEYS.items():
        value = getattr(goal, field)
        if key == "rate":
            value = KEEP_UP if value is None else f"{value:g}/s"
        elif field.endswith("_s"):
            value = format_duration(value)
        elif key == "overshoot":
            value = f"{100 * value:g}%"
        elif isinstance(value, msgspec.Struct):
            value = msgspec.to_builtins(value)
        shown_as[key] = value
    return shown_as


# The interface of a consumer in an experiment: its prefetch is set, and the effect is measured.
#
# There are implementations for existing consumers of a node, for an application's own worker, and
# for a probe consumer on a queue of its own.


# The largest message of a probe. Some thousands of them wait in a broker's memory.
PROBE_BYTES_MAX = 1024 * 1024


class TunableConsumer(Protocol):
    """A consumer whose prefetch an experiment sets."""

    # Text for people: which consumer it is, and thus which one the experiment measures.
    description: str
    # Text for people who interrupt: the state that `close` restores.
    restored_text: str
    # Whether it puts the messages that it consumes. If not, they are an application's and may run
    # out.
    feeds_itself: bool

    async def set_prefetch(self, prefetch: int) -> None:
        """Set the prefetch from now on."""

    async def measure(self, interval_s: float) -> ConsumerSample:
        """Measure for this time from now on."""

    async def close(self) -> None:
        """Restore the state before the experiment."""

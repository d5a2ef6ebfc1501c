"""Prefetch as a controlled variable: what is wanted, what was measured, what was identified.

A goal says what people understand (a rate, or to keep up; a settling time; an overshoot). A model
says how a consumer answers to its prefetch, y(k+1) = a·y(k) + b·u(k) + offset; `tidegate tune
prefetch` writes one to a file, and Spark learns them from history. Gains follow from both.
"""

from __future__ import annotations

import enum
import math
from pathlib import Path
from typing import Any, Self

import msgspec

from tidegate.core.complaint import meant
from tidegate.core.errors import InvalidValue

# RabbitMQ's wire has 16 bits for it.
PREFETCH_MAX = 65_535
OVERSHOOT_MAX = 0.5
# Of held-out data, the part that a model explains if it is to be steered by.
R2_ACCEPTED = 0.8
# What a unit of prefetch can be worth: a message goes round in a microsecond at best, and in some
# days at worst.
WORTH_PER_S_MAX = 1e6
WORTH_PER_S_MIN = 1e-6
# A model that is wrong by more than so many times is no model of this consumer.
WORTH_TIMES_MAX = 10.0
SAMPLE_S_MAX = 86_400.0
# Of model files; one that means something else by the same words would be another.
FILE_VERSION = 1
# What `tidegate tune prefetch` adds to a model file for people.
FOR_PEOPLE = frozenset({"target_per_s", "controller", "a_error", "b_error", "measured_on", "notes"})


class ControllerKind(enum.StrEnum):
    """Which law steers."""

    P = "P"
    PI = "PI"
    PID = "PID"


class PrefetchModel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a consumer's arrival rate follows its prefetch, and how well that is known."""

    a: float
    b: float
    offset_per_s: float = 0.0
    # One sample of what it was fitted on; gains hold for samples of this length.
    sample_s: float = 1.0
    # Prefetch within which it holds.
    low: int = 1
    high: int = 360
    # The most that the handler was seen to do; NaN: the range was never left.
    ceiling_per_s: float = math.nan
    # On samples that it was not fitted on.
    r2_test: float = math.nan
    rmse_test_per_s: float = math.nan
    r2_train: float = math.nan
    rmse_train_per_s: float = math.nan
    n_train: int = 0
    n_test: int = 0
    # Where it comes from: "rabbitmq", "tidegate"; the queue; seconds since 1970.
    engine: str = ""
    queue: str = ""
    made_at: float = 0.0

    def __post_init__(self) -> None:
        # JSON has no NaN. The default one is left out, and any other becomes that one.
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, float) and math.isnan(value):
                msgspec.structs.force_setattr(self, name, math.nan)

    @property
    def worth_per_s(self) -> float:
        """What one unit of prefetch is worth at rest, msg/s."""
        return self.b / (1.0 - self.a)

    @classmethod
    def load(cls, file: str | Path) -> Self:
        """The model that `tidegate tune prefetch --out` wrote, if it is one to steer by."""
        try:
            document = msgspec.json.decode(Path(file).read_bytes(), type=dict[str, Any])
            _check_document(file, document, {*cls.__struct_fields__, *FOR_PEOPLE})
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
        """Whole or not at all: a loop may be reading it."""
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
        """Raises unless it is a plant that can be steered."""
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
        """Why it may be the wrong one for consumers of this queue; "": it says nothing else."""
        if self.queue and self.queue != queue:
            return f"the model was measured on queue {self.queue}, and is used for {queue}"
        if self.engine and self.engine != engine:
            return f"the model was measured on {self.engine}, and is used on {engine}"
        return ""


class PrefetchGoal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the prefetch of a queue's consumers is steered to."""

    # Messages a second that are to arrive at each consumer; None: as many as its handler can do.
    rate_per_s: float | None = None
    settle_s: float = 30.0
    overshoot: float = 0.05
    controller: ControllerKind = ControllerKind.PI
    sample_s: float = 1.0
    low: int = 1
    high: int = 360
    # Set when measurements stop.
    fallback: int = 10
    # Of keep up: messages that may wait in the consumer, unbegun; None: one for each two that are
    # on their way or at work, since they come in lots.
    held: float | None = None
    # Whether the model follows the plant while it runs.
    adaptive: bool = True
    # A person's value; None: automatic.
    manual: int | None = None
    # Nothing was steered before the person's value came: when that goes, nothing is again.
    only_manual: bool = False
    # None: the learned one, else a cautious guess from the first samples.
    model: PrefetchModel | None = None

    def check(self) -> None:
        """Raises unless it can be steered to, with a sentence that says what to change."""
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
    """Whether all of it is understood: what was meant by the rest, nobody can say."""
    version = document.pop("version", FILE_VERSION)
    if version != FILE_VERSION:
        raise InvalidValue(
            f"{file} is a model file of version {version}, and this Tidegate reads {FILE_VERSION}: "
            "identify it again, or use the Tidegate that wrote it"
        )
    if unknown := sorted(document.keys() - known):
        raise InvalidValue(
            f"{file} is no model file: there is no field {unknown[0]!r}"
            f"{meant(unknown[0], sorted(known))}. `tidegate tune prefetch` writes one"
        )


class ConsumerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One consumer over one sampling interval."""

    # Its end, by the loop's own clock.
    at: float
    interval_s: float
    # y: deliveries a second.
    arrived_per_s: float
    # Handled a second, and the part of the time in which the handler was at work; None: not known.
    processed_per_s: float | None = None
    busy: float | None = None
    # Messages that wait unbegun in the consumer; None: not known.
    held: float | None = None
    # As set during the interval, on average.
    prefetch: float = math.nan
    # The queue had nothing for it: the rate says nothing about the prefetch.
    starved: bool = False

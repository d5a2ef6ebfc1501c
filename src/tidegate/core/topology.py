"""The scaling of a queue as text, in settings and on a command line, and its checks.

    max_wait = "2s"        a duration: the field is max_wait_s
    min, max               of replicas, as in replicas = { min = 1, max = 8 }
    warm = "none"          no value: the learned one is used

Every error names the key, the given value and the allowed values.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tidegate.core.complaint import allowed, meant, shown
from tidegate.core.errors import InvalidValue
from tidegate.core.quantities import DURATION_IS, format_duration, parse_duration_s
from tidegate.core.scaling import REPLICAS_MAX, Range, Scaling, ScalingPolicy, Steering

SLOTS_MAX = 1_000
# It is sent with the topology to all clients that ask for one.
AGREEMENT_CHARACTERS_MAX = 16_384
_FIELDS = {field.name: field for field in msgspec.structs.fields(Scaling)}
_WORKER = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_NAME = re.compile(r"""^\s*name\s*=\s*["']([^"'\n]{1,100})["']""", re.MULTILINE)
# Larger values make no sense, and some stores cannot keep them.
_MOST = 1e12
_BOUNDS = ("min", "max")


def _is_duration(field: str) -> bool:
    return field.endswith("_s") and not field.endswith("_per_s")


# By key in the text: the field.
KEYS = {name.removesuffix("_s") if _is_duration(name) else name: name for name in _FIELDS}


def changed(scaling: Scaling, changes: Mapping[str, Any]) -> Scaling:
    """Return the scaling with some keys changed; `InvalidValue` if it is not usable."""
    fields: dict[str, Any] = {}
    bounds = {"min": scaling.replicas.min, "max": scaling.replicas.max}
    for key, value in changes.items():
        if key in _BOUNDS:
            bounds[key] = _converted(key, value, int)
        elif key == "replicas":
            replicas = _converted(key, value, Range)
            bounds = {"min": replicas.min, "max": replicas.max}
        else:
            field = field_called(key)
            fields[field] = _value(key, field, value)
    found = msgspec.structs.replace(scaling, replicas=Range(**bounds), **fields)
    if wrong := complaints(found):
        raise InvalidValue("; ".join(wrong))
    return found


def field_called(key: str) -> str:
    """Return the field of a key; `max_wait` and `max-wait` are `max_wait_s`."""
    name = key.replace("-", "_")
    field = KEYS.get(name, name)
    if field not in _FIELDS:
        raise InvalidValue(f"{key}: there is no such key{meant(name, [*KEYS, *_BOUNDS])}")
    return field


def _value(key: str, field: str, value: Any) -> Any:
    kind = _FIELDS[field].type
    if isinstance(value, str) and value.lower() == "none":
        return _converted(key, None, kind)
    if _is_duration(field) and isinstance(value, str):
        try:
            return parse_duration_s(value)
        except InvalidValue:
            raise InvalidValue(f"{key} = {shown(value)}: must be {DURATION_IS}") from None
    if field == "shares" and isinstance(value, Mapping):
        # The keys of TOML and JSON are text.
        value = {_number(one): part for one, part in value.items()}
    return _converted(key, value, kind)


def _number(text: Any) -> Any:
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() else text


def _converted(key: str, value: Any, kind: Any) -> Any:
    try:
        return msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError:
        must = "{ min = 1, max = 8 }, in whole numbers" if kind is Range else allowed(kind)
        raise InvalidValue(f"{key} = {shown(value)}: must be {must}") from None


def written(scaling: Scaling) -> dict[str, Any]:
    """Return every key in its text form; an agreement by its name, `None` for no value."""
    shown_as: dict[str, Any] = {}
    for key, field in KEYS.items():
        value = getattr(scaling, field)
        if isinstance(value, Range):
            value = {"min": value.min, "max": value.max}
        elif _is_duration(field) and value is not None:
            value = format_duration(value)
        elif field == "agreement" and value is not None:
            value = agreement_shown(value)
        elif field == "shares" and value is not None:
            value = ", ".join(f"{number}: {part:.3g}" for number, part in sorted(value.items()))
        shown_as[key] = value
    return shown_as


def agreement_shown(text: str) -> str:
    """Return a short form of an agreement: its name and a hash of its text."""
    name = _NAME.search(text)
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[1]} ({mark})" if name else mark


def complaints(scaling: Scaling) -> list[str]:
    """Return the problems of a scaling; an empty list means that it is usable."""
    found = []
    least, most = scaling.replicas.min, scaling.replicas.max
    if not 0 <= least <= most:
        found.append(f"replicas min {least}, max {most}: must be 0 ≤ min ≤ max")
    if not 1 <= most <= REPLICAS_MAX:
        found.append(f"replicas max {most}: must be between 1 and {REPLICAS_MAX}")
    if scaling.steering is Steering.MANUAL and scaling.replicas_wanted is None:
        found.append('steering = "manual": must say replicas_wanted too')
    wanted = scaling.replicas_wanted
    if wanted is not None and not least <= wanted <= most:
        told = f"replicas_wanted {wanted}: must be between min {least} and max {most}"
        if scaling.steering is Steering.MANUAL:
            told += "; steering is manual: say how many (--to), or let the policy decide (--auto)"
        found.append(told)
    # Reject infinity, too: JSON has none, and a queue that cannot be read back stops all control
    # loops.
    if not 0.0 <= scaling.min_load < scaling.max_load < math.inf:
        found.append(
            f"min_load {scaling.min_load:g}, max_load {scaling.max_load:g}: must be "
            "0 ≤ min_load < max_load, both finite"
        )
    found += _above(scaling, "polling_interval_s", least=0.1)
    found += _above(scaling, "stale_s", least=0.1)
    for field in ("queue_length", "capacity_clients", "capacity_per_s", "max_wait_s"):
        found += _above(scaling, field)
    found += _above(scaling, "rate_max_per_s")
    for field in ("inhibition_s", "cooldown_period_s", "reversal_memory_s", "boot_s", "sla_delta"):
        found += _above(scaling, field, least=0.0)
    for field in ("step_max", "workers_per_replica", "slots_per_machine"):
        found += _above(scaling, field, least=1, most=SLOTS_MAX)
    found += _above(scaling, "warm", least=0, most=SLOTS_MAX)
    found += _about_shares(scaling.shares)
    if scaling.policy is ScalingPolicy.AGREEMENT and scaling.agreement is None:
        found.append(
            'policy = "agreement": must have an agreement to obey: say which (--agreement)'
        )
    if scaling.agreement is not None and len(scaling.agreement) > AGREEMENT_CHARACTERS_MAX:
        found.append(
            f"agreement of {len(scaling.agreement)} characters: must be at most "
            f"{AGREEMENT_CHARACTERS_MAX}"
        )
    if scaling.worker is not None and not _WORKER.fullmatch(scaling.worker):
        found.append(f"worker {shown(scaling.worker)}: must be module:app, such as shop.jobs:app")
    return found


def _about_shares(shares: dict[int, float] | None) -> list[str]:
    if shares is None:
        return []
    parts = shares.values()
    if not all(number >= 1 for number in shares) or len(shares) > REPLICAS_MAX:
        return ["shares: must be by numbers of replicas, from 1"]
    if not all(0.0 <= part <= _MOST for part in parts) or not sum(parts) > 0.0:
        return ["shares: must be 0 or more for each replica, and not 0 for all"]
    return []


def _above(
    scaling: Scaling, field: str, least: float | None = None, most: float = _MOST
) -> list[str]:
    value = getattr(scaling, field)
    if value is None:
        return []
    is_fine = value > 0 if least is None else value >= least
    if is_fine and value <= most and math.isfinite(value):
        return []
    key = next(key for key, name in KEYS.items() if name == field)
    must = "above 0" if least is None else f"at least {least:g}"
    # The largest value is mentioned only if the value exceeds it.
    if most != _MOST or not value <= most:
        must += f" and at most {most:g}"
    return [f"{key} {value:g}: must be {must}"]

"""Rules for services that all stores share: versions, checks and how long data is kept."""

from __future__ import annotations

import hashlib
import math
import re
import secrets

from tidegate.core.errors import ChangedMeanwhile, InvalidValue, TooLarge
from tidegate.core.hosting import ServiceSpec

# A change of any of these makes a new version, whose instances are started again.
KEYS_OF_VERSION = ("target", "environment", "package", "folder", "revision")
# Doors report every second. Samples older than this are ignored.
DOOR_FRESH_S = 5.0
# How long a package is kept that no service deploys.
PACKAGE_KEPT_S = 86_400.0
PACKAGE_BYTES_MAX = 256 * 1024 * 1024
NAME_CHARACTERS_MAX = 200

_DIGEST = re.compile(r"[0-9a-f]{64}")
# The path is written into requests unchanged: no blank, line end or fragment may end it there.
_PATH = re.compile(r"/[!-\"$-~]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def check_spec(spec: ServiceSpec) -> None:
    """Raise `InvalidValue` for a service that can never be hosted."""
    if not spec.name.strip() or len(spec.name) > NAME_CHARACTERS_MAX or "\0" in spec.name:
        raise InvalidValue(f"a service has a name of 1 to {NAME_CHARACTERS_MAX} characters")
    if not _TARGET.fullmatch(spec.target):
        raise InvalidValue(
            f"{spec.target!r} names no application: write module:attribute, as in shop.web:app"
        )
    if spec.package is not None and not _DIGEST.fullmatch(spec.package):
        raise InvalidValue(f"{spec.package!r} is no SHA-256: use what put_package has answered")
    if not _PATH.fullmatch(spec.health_path):
        raise InvalidValue(
            f"{spec.health_path!r} is no path to ask for health: begin it with /, percent-encoded"
        )
    for name, value, low in (
        ("concurrency", spec.concurrency, 1),
        ("spares", spec.spares, 0),
        ("slots_per_machine", spec.slots_per_machine, 1),
    ):
        if value < low:
            raise InvalidValue(f"{name} of service {spec.name!r} is {low} or more, not {value}")
    if not (math.isfinite(spec.session_grace_s) and spec.session_grace_s >= 0.0):
        raise InvalidValue(
            f"session_grace_s of service {spec.name!r} is 0 or more, not {spec.session_grace_s}"
        )
    for name, time_s in (
        ("deadline_s", spec.deadline_s),
        ("answer_timeout_s", spec.answer_timeout_s),
    ):
        if time_s is not None and not (math.isfinite(time_s) and time_s > 0.0):
            raise InvalidValue(f"{name} of service {spec.name!r} is above 0, not {time_s}")
    if spec.body_bytes_max is not None and spec.body_bytes_max < 0:
        raise InvalidValue(
            f"body_bytes_max of service {spec.name!r} is 0 or more, not {spec.body_bytes_max}"
        )
    for name, text in spec.environment.items():
        if not name or "=" in name or "\0" in name + text:
            raise InvalidValue(f"{name!r} cannot be set in an environment")


def check_weight(weight: float) -> None:
    if not (math.isfinite(weight) and weight >= 0.0):
        raise InvalidValue(f"the weight of an instance is 0 or more, not {weight}")


def package_digest(content: bytes) -> str:
    """Return the SHA-256 under which the code is stored.

    Raises `TooLarge` if the code exceeds the limit.
    """
    if len(content) > PACKAGE_BYTES_MAX:
        raise TooLarge(
            f"the code has {len(content)} bytes, {PACKAGE_BYTES_MAX} are allowed: "
            "leave data and virtual environments out of the folder"
        )
    return hashlib.sha256(content).hexdigest()


def new_secret() -> str:
    """Return a new secret for the session cookies of a service."""
    return secrets.token_urlsafe(32)


def no_such_service(name: str) -> InvalidValue:
    return InvalidValue(f"there is no service {name!r}: deploy it first")


def steered_by_another(name: str) -> ChangedMeanwhile:
    return ChangedMeanwhile(
        f"somebody else has changed service {name!r} meanwhile: look at it, and say it again"
    )

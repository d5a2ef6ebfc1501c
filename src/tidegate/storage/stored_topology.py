"""Reading stored topologies, even if a setting of one of them is invalid.

Invalid settings of one queue must not make the other queues unreadable. Settings that cannot be
read get their defaults, the others are kept. Such a queue is not scaled automatically until a user
sets it again. Its messages are still delivered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec

from tidegate.core.replication import Topology
from tidegate.core.scaling import Scaling, Steering

log = logging.getLogger(__name__)

SCALING_COLUMN = Topology.__struct_fields__.index("scaling")
_QUEUE = Topology.__struct_fields__.index("queue")
# Texts that were logged: topologies are read several times a second, and each is logged once.
_said: set[str] = set()


def stored_topologies(rows: Iterable[tuple[Any, ...]]) -> list[Topology]:
    """Return the topologies of these rows; rows that cannot be read are logged and left out."""
    found = []
    for row in rows:
        try:
            found.append(stored_topology(row))
        except msgspec.ValidationError as failure:
            _say(f"queue {row[_QUEUE]!r} is left out, since it cannot be read: {failure}")
    return found


def stored_topology(row: tuple[Any, ...]) -> Topology:
    """Return the topology of a row of `topologies`."""
    # JSON keys are strings, and some keys are replica numbers.
    try:
        return msgspec.convert(row, Topology, str_keys=True)
    except msgspec.ValidationError:
        scaling, lost = _readable(row[SCALING_COLUMN])
        whole = (
            *row[:SCALING_COLUMN],
            msgspec.to_builtins(scaling, str_keys=True),
            *row[SCALING_COLUMN + 1 :],
        )
        topology = msgspec.convert(whole, Topology, str_keys=True)
    _say(
        f"queue {row[_QUEUE]!r} is not scaled, since its stored settings cannot be read "
        f"({'; '.join(lost)}): set them with `tidegate scale`"
    )
    return topology


def _readable(stored: Any) -> tuple[Scaling, list[str]]:
    """Return the readable scaling settings, and texts about the others."""
    kept: dict[str, Any] = {}
    lost: list[str] = []
    settings = stored if isinstance(stored, dict) else {}
    if settings is not stored:
        lost.append(f"{stored!r} is no table of settings")
    for name, setting in settings.items():
        try:
            msgspec.convert({name: setting}, Scaling, str_keys=True)
        except msgspec.ValidationError as failure:
            lost.append(f"{name} = {setting!r}: {failure}")
        else:
            kept[name] = setting
    scaling = msgspec.convert(kept, Scaling, str_keys=True)
    return msgspec.structs.replace(scaling, steering=Steering.RECOMMEND), lost


def _say(trouble: str) -> None:
    if trouble not in _said:
        _said.add(trouble)
        log.error(trouble)

"""The sections [queues.NAME]: the scaling settings and the prefetch goal of each queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tidegate.agreement.scaling_terms import agreement_of_file, with_agreement
from tidegate.cli.settings.fleet import FleetSettings
from tidegate.cli.settings.settings import QUEUES
from tidegate.core.complaint import shown
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.prefetch_words import goal_of
from tidegate.core.quantities import DURATION_IS
from tidegate.core.scaling import DEFAULT_SCALING, Provisioning, Scaling
from tidegate.core.scaling_words import KEYS, changed
from tidegate.node.checks import check_queue_name
from tidegate.node.limits import Limits


class QueueSections:
    """The values of all queue sections; it appends problems to the reader's list."""

    def __init__(self, complaints: list[str]) -> None:
        self._complaints = complaints
        self._sections: dict[str, dict[str, Any]] = {}

    def take_tables(self, source: str, tables: Any) -> None:
        """Take the sections of a file, such as [queues.orders] or [queues."orders.eu"]."""
        if not isinstance(tables, dict):
            self._complaints.append(
                f"{source}: {QUEUES} = {shown(tables)}: must be sections, written [{QUEUES}.NAME]"
            )
            return
        for name, keys in tables.items():
            if isinstance(keys, dict):
                if isinstance(keys.get("agreement"), str):
                    keys = {**keys, "agreement": str(Path(source).parent / keys["agreement"])}
                self._sections.setdefault(name, {}).update(keys)
            else:
                self._complaints.append(
                    f"{source}: {QUEUES}.{name} = {shown(keys)}: must be a section, written "
                    f"[{QUEUES}.{name}]"
                )

    def take_text(self, name: str, key: str, text: str) -> None:
        """Take one key from the environment, where every value is text."""
        keys = self._sections.setdefault(self._called(name), {})
        if key in ("min", "max") and isinstance(keys.get("replicas"), dict):
            keys["replicas"] = {**keys["replicas"], key: _number_or(text)}
        else:
            keys[key] = text

    def _called(self, name: str) -> str:
        """Return the queue that a name from the environment means; queues of the file first.

        Environment variables are usually in capitals, so case is ignored.
        """
        if name in self._sections:
            return name
        lowered = name.lower()
        return next((known for known in self._sections if known.lower() == lowered), lowered)

    def prefetch_goals(self) -> dict[str, PrefetchGoal]:
        """Return the prefetch goals of the sections, by queue name."""
        goals = {
            name: self._goal(name, keys["prefetch"])
            for name, keys in self._sections.items()
            if "prefetch" in keys
        }
        return {name: goal for name, goal in goals.items() if goal is not None}

    def _goal(self, name: str, wanted: Any) -> PrefetchGoal | None:
        try:
            check_queue_name(name, Limits())
            return goal_of(wanted)
        except TidegateError as wrong:
            self._complain(name, wrong)
            return None

    def scalings(self, fleet: FleetSettings) -> dict[str, Scaling]:
        """Return the scaling settings by queue name, without sections that only set `prefetch`."""
        return {
            name: self._scaling(
                name, {key: value for key, value in keys.items() if key != "prefetch"}, fleet
            )
            for name, keys in self._sections.items()
            if set(keys) != {"prefetch"}
        }

    def _scaling(self, name: str, keys: dict[str, Any], fleet: FleetSettings) -> Scaling:
        """Return a section's scaling settings; [fleet] gives the defaults for machines."""
        of_fleet = msgspec.structs.replace(
            DEFAULT_SCALING,
            slots_per_machine=fleet.slots,
            warm=fleet.warm,
            provisioning=Provisioning(fleet.provisioning),
        )
        try:
            check_queue_name(name, Limits())
            _check_durations(keys)
            if isinstance(keys.get("agreement"), str):
                of_fleet = _with_agreement(name, keys, of_fleet)
                keys = {key: value for key, value in keys.items() if key != "agreement"}
            return changed(of_fleet, keys)
        except TidegateError as wrong:
            self._complain(name, wrong)
            return of_fleet

    def _complain(self, name: str, wrong: TidegateError) -> None:
        self._complaints.append(f"{QUEUES}.{name or shown(name)}: {wrong}")


def _check_durations(keys: dict[str, Any]) -> None:
    """Raise `InvalidValue` for a duration without a unit, unless its key has one: `max_wait_s`."""
    for key, value in keys.items():
        named = key.replace("-", "_")
        has_unit = KEYS.get(named, named) == named
        if not has_unit and isinstance(value, int | float):
            raise InvalidValue(f"{key} = {shown(value)}: must be {DURATION_IS}")


def _with_agreement(name: str, keys: dict[str, Any], before: Scaling) -> Scaling:
    """Return the scaling settings with the agreement from the file that `agreement` names."""
    agreement, text = agreement_of_file(Path(keys["agreement"]).expanduser(), name)
    return with_agreement(before, agreement, text)


def _number_or(text: str) -> int | str:
    return int(text) if text.isdigit() else text

"""The instances of a service while a decision is made: as they are, and as they will be.

Each action is recorded and applied to the copy here at once, so that the next step of the same
decision sees its effect.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from tidegate.control.services.performance import MergedServiceSample
from tidegate.core.decisions import (
    AddInstance,
    AnyAction,
    DrainInstance,
    MakeSpare,
    Promote,
    RemoveInstance,
)
from tidegate.core.services import Instance, InstanceState, Service, ServiceSpec

_COMING = (InstanceState.ORDERED, InstanceState.STARTING)


class InstanceSet:
    """The instances and actions of one decision."""

    def __init__(self, service: Service, instances: Sequence[Instance]) -> None:
        self.service = service
        self.instances = {one.instance_id: one for one in instances}
        # Instances that no door sends requests to.
        self.ejected: set[int] = set()
        # Ordered in this decision; they have no id yet.
        self._ordered = 0
        self._ordered_spares = 0
        self.actions: list[AnyAction] = []
        self.reasons: list[str] = []
        self.rule = ""
        # Problems of the service, as texts for people.
        self.trouble: list[str] = []

    @property
    def wanted_before(self) -> int:
        """The wanted number as it follows from the running instances, if none was stored.

        During a rollout it may be one too high. That is safer than one too low, and the surplus
        instance is removed when the load is low.
        """
        return sum(
            not one.is_spare and one.state is not InstanceState.DRAINING
            for one in self.instances.values()
        )

    @property
    def alive(self) -> list[Instance]:
        """Instances that serve or will serve, and spares; the oldest first."""
        gone = (InstanceState.DRAINING, InstanceState.FAILED)
        return [one for one in self.instances.values() if one.state not in gone]

    @property
    def serving(self) -> list[Instance]:
        """Instances that are to serve: ready, or coming."""
        return [one for one in self.alive if not one.is_spare]

    @property
    def counted_ids(self) -> list[int]:
        """Ids of instances that serve or will serve, without ejected ones."""
        return [one.instance_id for one in self.serving if one.instance_id not in self.ejected]

    @property
    def serving_count(self) -> int:
        """The number of `serving` instances, with those ordered in this decision."""
        return len(self.serving) + self._ordered

    @property
    def spares_count(self) -> int:
        """Spares of the deployed version, with those ordered in this decision."""
        return self._ordered_spares + sum(
            one.is_spare and self.is_current(one) for one in self.alive
        )

    @property
    def ready(self) -> list[Instance]:
        """Instances that answer and get requests."""
        return [
            one
            for one in self.serving
            if one.state is InstanceState.READY and one.instance_id not in self.ejected
        ]

    @property
    def coming(self) -> list[Instance]:
        """Instances that are ordered or starting, and are to serve."""
        return [one for one in self.serving if one.state in _COMING]

    @property
    def ready_spares(self) -> list[Instance]:
        """Spares that are ready, the newest version first."""
        spares = [one for one in self.alive if one.is_spare and one.state is InstanceState.READY]
        return sorted(spares, key=lambda one: (-one.version, one.instance_id))

    @property
    def is_rolling(self) -> bool:
        """Whether instances of another version are still alive."""
        return any(not self.is_current(one) for one in self.alive)

    def is_current(self, instance: Instance) -> bool:
        return instance.version == self.service.version

    def of_state(self, *states: InstanceState) -> list[Instance]:
        return [one for one in self.instances.values() if one.state in states]

    # Actions of the decision

    def because(self, reason: str) -> None:
        if reason not in self.reasons:
            self.reasons.append(reason)

    def do(self, action: AnyAction) -> None:
        self.actions.append(action)

    def add(self, count: int = 1, *, is_spare: bool = False) -> None:
        self.actions.append(AddInstance(count, is_spare))
        if is_spare:
            self._ordered_spares += count
        else:
            self._ordered += count

    def promote(self, instance: Instance) -> None:
        self.actions.append(Promote(instance.instance_id))
        self._change(instance, weight=1.0)

    def make_spare(self, instance: Instance) -> None:
        self.actions.append(MakeSpare(instance.instance_id))
        self._change(instance, weight=0.0)

    def drain(self, instance: Instance) -> None:
        self.actions.append(DrainInstance(instance.instance_id))
        self._change(instance, state=InstanceState.DRAINING)

    def remove(self, instance: Instance) -> None:
        self.actions.append(RemoveInstance(instance.instance_id))
        del self.instances[instance.instance_id]

    def _change(self, instance: Instance, **changes: object) -> None:
        self.instances[instance.instance_id] = msgspec.structs.replace(instance, **changes)


# Reconciles the instances of a service with the wanted number and version.
#
# Theory of operation
# -------------------
#
# An `InstanceReconciler` belongs to one service and is called in every decision: `clean` first,
# then, after the wanted number has been decided, `fill`. It records its actions in an
# `InstanceSet`.
#
#     drained     nothing outstanding: removed; after DRAIN_S_MAX at the latest. Sticky services
#     give
#                 sessions a grace time first
#     failed      removed and replaced. A version that cannot start is retried less and less often.
#     An
#                 instance of an old version stays until the new one answers; its machine restarts
#                 it
#     hanging     ejected by every door for EJECTED_S while another instance answers: drained
#     overloaded  slow or short of memory for long: replaced like an old version, one at a time
#     old         one new instance is ordered; when enough answer without an old one, that one
#                 drains. A surplus drains too, also while the new version does not start
#     spares      serve at once when an instance is missing, and are refilled when none is
#
# Invariants:
#
# - A replaced instance stays until its replacement answers, so a version that does not start does
# no
#   harm. If there is no slot for one more instance, one of several goes first; a single one stays.
# - At most one instance of a rollout is on its way at a time.
# - A version that has failed counts as able to start only after an instance, ready since the last
#   failure, has served for _PROVEN_S.
#
# State is in memory: since when each instance is in its state, and the failures of each version. A
# new leader starts without it and may retry a failing version sooner.


DRAIN_S_MAX = 60.0
# A hanging instance does not answer its outstanding requests any more.
_HANGING_DRAIN_S_MAX = 10.0
# Doors follow the store four times a second and report every second. After this many seconds their
# report on a draining instance is current.
_HEARD_S = 1.5
EJECTED_S = 5.0
# Longest time in seconds between two orders of a version that cannot start.
_RETRY_S_MAX = 60.0
_RETRY_DOUBLINGS_MAX = 6
# A version whose instance has served for this many seconds can start.
_PROVEN_S = 10.0
# An instance without a slot for this many seconds counts as unplaced.
UNPLACED_S = 5.0
# Seconds between replacements of overloaded instances: the reason may be outside of them.
_REPLACE_S = 60.0


class InstanceReconciler:
    """Keeps the instances of one service as they are wanted."""

    def __init__(self) -> None:
        # When an instance was first seen in a state.
        self._since: dict[tuple[int, str], float] = {}
        # By version: how many instances failed in a row, and when the last one did.
        self._failures: dict[int, int] = {}
        self._failed_at: dict[int, float] = {}
        self._replaced_at = -math.inf
        # Instances of the right version that are to be replaced.
        self._outworn: set[int] = set()

    def clean(self, crew: InstanceSet, reading: MergedServiceSample | None, at: float) -> None:
        """Remove drained instances, and replace failed and hanging ones."""
        self._observe(crew, reading, at)
        for instance in crew.of_state(InstanceState.DRAINING):
            if self._is_drained(instance, crew.service.spec, reading, at):
                crew.remove(instance)
                crew.rule = crew.rule or "drained"
                crew.because(f"Instance {instance.instance_id} has answered all that it had.")
        for instance in crew.of_state(InstanceState.FAILED):
            self._replace_failed(crew, instance, at)
        if reading is not None:
            self._let_go_of_hanging(crew, at)

    def replace(self, crew: InstanceSet, instance: Instance, why: str, at: float) -> None:
        """Mark an instance to be replaced; ignored within _REPLACE_S of another one."""
        if self._outworn or at - self._replaced_at < _REPLACE_S:
            return
        self._replaced_at = at
        self._outworn.add(instance.instance_id)
        crew.rule = crew.rule or "overloaded"
        crew.because(f"Instance {instance.instance_id} {why}: another one takes its place.")

    def fill(self, crew: InstanceSet, wanted: int, at: float, slots_free: int | None) -> None:
        """Order, promote, drain and remove until the wanted number of the right version serves."""
        while len(crew.ready) < wanted and (spares := crew.ready_spares):
            crew.promote(spares[0])
            crew.rule = crew.rule or "a spare serves"
            crew.because(f"{wanted} are to serve: spare {spares[0].instance_id} does at once.")
        lacking = wanted - crew.serving_count
        if lacking > 0 and self._may_start(crew, at):
            crew.add(lacking)
            crew.rule = crew.rule or "fewer than wanted"
            crew.because(f"{wanted} are to serve: {lacking} more.")
        self._forget_surplus(crew, wanted)
        self._renew(crew, wanted, at, slots_free)
        self._shrink(crew, wanted)
        self._keep_spares(crew, at)

    def is_stuck(self, crew: InstanceSet) -> bool:
        """Return whether the deployed version keeps failing, so that old instances must serve."""
        if self._failures.get(crew.service.version, 0) <= 1:
            return False
        return not any(map(crew.is_current, crew.ready + crew.ready_spares))

    def unplaced(self, crew: InstanceSet, at: float) -> list[Instance]:
        """Return the coming instances that have had no slot for long."""
        return [one for one in crew.coming if self._has_no_place(one, at)]

    def _has_no_place(self, instance: Instance, at: float) -> bool:
        return at - self._first(instance, "unplaced", at) >= UNPLACED_S

    # Existing instances

    def _observe(self, crew: InstanceSet, reading: MergedServiceSample | None, at: float) -> None:
        now: set[tuple[int, str]] = set()
        for one in crew.instances.values():
            now.add((one.instance_id, one.state.value))
            if one.machine_id is None and one.state is InstanceState.ORDERED:
                now.add((one.instance_id, "unplaced"))
            # Between two samples the state stays as it was.
            ejected = (one.instance_id, "ejected") in self._since
            if reading is not None:
                ejected = reading.instance(one.instance_id).ejected is not None
            if ejected:
                now.add((one.instance_id, "ejected"))
        self._since = {key: self._since.get(key, at) for key in now}
        crew.ejected = {one for one, what in now if what == "ejected"}
        self._outworn &= crew.instances.keys()
        for one in crew.ready + crew.ready_spares:
            ready_at = self._first(one, InstanceState.READY, at)
            # An instance that was ready before the failures does not show that another can start.
            is_later = ready_at > self._failed_at.get(one.version, math.inf)
            if is_later and at - ready_at >= _PROVEN_S:
                del self._failures[one.version], self._failed_at[one.version]

    def _first(self, instance: Instance, what: str, at: float) -> float:
        return self._since.get((instance.instance_id, what), at)

    def _is_drained(
        self, instance: Instance, spec: ServiceSpec, reading: MergedServiceSample | None, at: float
    ) -> bool:
        for_s = at - self._first(instance, InstanceState.DRAINING, at)
        is_hanging = (instance.instance_id, "ejected") in self._since
        grace_s = 0.0 if instance.sessions_until is None else spec.session_grace_s
        if instance.address is None or for_s >= grace_s + DRAIN_S_MAX:
            return True
        if is_hanging and for_s >= _HANGING_DRAIN_S_MAX:
            return True
        if reading is None or for_s < grace_s + _HEARD_S:
            return False
        return not reading.instance(instance.instance_id).outstanding

    def _replace_failed(self, crew: InstanceSet, instance: Instance, at: float) -> None:
        version, said = instance.version, instance.detail or "it does not say why"
        if self._first(instance, InstanceState.FAILED, at) == at:
            self._failures[version] = self._failures.get(version, 0) + 1
            self._failed_at[version] = at
        if self._failures.get(version, 0) > 1:
            others = "; what runs keeps running" if crew.ready else ""
            crew.trouble.append(f"version {version} does not start: {said}{others}")
        if not crew.is_current(instance):
            is_over = self._may_go_for_good(crew, at)
        else:
            is_over = at >= self._retry_at(version)
        if is_over:
            crew.remove(instance)
            crew.rule = crew.rule or "failed"
            crew.because(f"Instance {instance.instance_id} failed ({said}): it is replaced.")

    def _may_go_for_good(self, crew: InstanceSet, at: float) -> bool:
        """Return whether a failed instance of an old version need not be restarted.

        Its version is never ordered again. Until the new version has shown that it starts, a
        machine must restart the old instance.
        """
        if any(map(crew.is_current, crew.ready + crew.ready_spares)):
            return True
        # If there is no slot for the new instance, it takes the slot of the failed one.
        is_untried = not self._failures.get(crew.service.version)
        waits = any(map(crew.is_current, self.unplaced(crew, at)))
        return is_untried and waits

    def _let_go_of_hanging(self, crew: InstanceSet, at: float) -> None:
        ejected = [
            one
            for one in crew.serving
            if one.instance_id in crew.ejected and at - self._first(one, "ejected", at) >= EJECTED_S
        ]
        if ejected and not (crew.ready or crew.ready_spares):
            crew.trouble.append("no instance answers")
            return
        for instance in ejected[:1]:
            crew.drain(instance)
            crew.rule = crew.rule or "hanging"
            crew.because(
                f"Instance {instance.instance_id} has been ejected for {EJECTED_S:.0f} s and "
                "others answer: it is replaced."
            )

    # Starting, renewing and removing

    def _may_start(self, crew: InstanceSet, at: float) -> bool:
        return at >= self._retry_at(crew.service.version)

    def _retry_at(self, version: int) -> float:
        """Return the time from which the next instance of a version may be ordered."""
        failed_at, failures = (
            self._failed_at.get(version, -math.inf),
            self._failures.get(version, 0),
        )
        # The first failure is retried at once, later ones less and less often. The exponent is
        # limited, because some days of failures would overflow the power.
        doublings = min(failures - 2, _RETRY_DOUBLINGS_MAX)
        return failed_at + (min(2.0**doublings, _RETRY_S_MAX) if failures > 1 else 0.0)

    def _is_outdated(self, crew: InstanceSet, instance: Instance) -> bool:
        return not crew.is_current(instance) or instance.instance_id in self._outworn

    def _forget_surplus(self, crew: InstanceSet, wanted: int) -> None:
        """Remove failed old instances if enough instances answer without them."""
        if len(crew.ready) < wanted:
            return
        for instance in crew.of_state(InstanceState.FAILED):
            if not crew.is_current(instance):
                crew.remove(instance)
                crew.rule = crew.rule or "failed"
                crew.because(
                    f"{wanted} answer without instance {instance.instance_id} of version "
                    f"{instance.version}, which failed: it is not replaced."
                )

    def _renew(self, crew: InstanceSet, wanted: int, at: float, slots_free: int | None) -> None:
        outdated = [one for one in crew.serving if self._is_outdated(crew, one)]
        if not outdated:
            return
        for instance in outdated:
            # An instance of the deployed version can be ordered again at any time.
            if instance.state is not InstanceState.READY and (
                crew.is_current(instance) or self._may_go_for_good(crew, at)
            ):
                crew.remove(instance)
        outdated = [one for one in outdated if one.instance_id in crew.instances]
        answering = [one for one in outdated if one.state is InstanceState.READY]
        while len(crew.ready) > wanted and answering:
            instance = answering.pop(0)
            outdated.remove(instance)
            crew.drain(instance)
            crew.rule = crew.rule or "one is renewed"
            crew.because(
                f"{wanted} answer without instance {instance.instance_id} of version "
                f"{instance.version}: it drains."
            )
        if not outdated:
            return
        coming = [one for one in crew.coming if not self._is_outdated(crew, one)]
        if crew.serving_count <= wanted and not coming and self._may_start(crew, at):
            spare = next((s for s in crew.ready_spares if not self._is_outdated(crew, s)), None)
            if spare is not None:
                crew.promote(spare)
            else:
                crew.add()
            crew.rule = crew.rule or "one is renewed"
            crew.because(
                f"{len(outdated)} are to be renewed (version {crew.service.version} is deployed): "
                "one more comes before one goes."
            )
            return
        stuck = [one for one in self.unplaced(crew, at) if one in coming]
        if crew.of_state(InstanceState.DRAINING):
            # Its slot becomes free after the grace time of its sessions, so no other one must go.
            return
        if stuck and answering and not slots_free and len(crew.ready) >= max(wanted, 2):
            crew.drain(answering[0])
            crew.rule = crew.rule or "one is renewed"
            crew.because(
                f"There is no slot for one more: instance {answering[0].instance_id} goes first."
            )

    def _shrink(self, crew: InstanceSet, wanted: int) -> None:
        """Reduce a surplus: coming instances first, then the smallest weight, then the newest."""
        if any(self._is_outdated(crew, one) for one in crew.serving):
            return
        # An ejected instance may return; until then another one serves in its place.
        wanted += sum(one.instance_id in crew.ejected for one in crew.serving)
        while len(crew.serving) > wanted and crew.serving_count > wanted:
            going = crew.coming[-1:] or sorted(
                crew.ready, key=lambda one: (one.weight, -one.instance_id)
            )
            instance = going[0]
            is_well = instance.state is InstanceState.READY and instance.weight >= 1.0
            # A ready instance is worth more than a coming one.
            spares = len(crew.ready_spares) if is_well else crew.spares_count
            if spares < crew.service.spec.spares:
                crew.make_spare(instance)
            elif instance.state is InstanceState.READY:
                crew.drain(instance)
            else:
                crew.remove(instance)

    def _keep_spares(self, crew: InstanceSet, at: float) -> None:
        if any(not crew.is_current(one) for one in crew.serving):
            return
        spares = [one for one in crew.alive if one.is_spare]
        for instance in spares:
            if not crew.is_current(instance):
                crew.drain(instance)
        if any(self._has_no_place(one, at) for one in spares):
            crew.trouble.append("there is no slot for a spare")
        missing = crew.service.spec.spares - crew.spares_count
        if missing > 0 and self._may_start(crew, at):
            crew.add(missing, is_spare=True)
            crew.rule = crew.rule or "spares are refilled"
            crew.because(f"{crew.service.spec.spares} spare(s) are to be kept: {missing} more.")
        # Remove spares that are not ready first, then the newest.
        current = sorted(
            (one for one in spares if crew.is_current(one)),
            key=lambda one: (one.state is InstanceState.READY, -one.instance_id),
        )
        for instance in current[: max(-missing, 0)]:
            if instance.state is InstanceState.READY:
                crew.drain(instance)
            else:
                crew.remove(instance)


# Instances that are short of memory although a replacement would not be, and for how long.
#
# The free memory of an instance is limited by its computer's (fleet/applications.py). If all
# instances are short, a replacement would be short too, so none is replaced. If only some are
# short, they use too much themselves. A single instance is compared with its own past: if it once
# had enough, a replacement has enough again, or is never replaced.


class MemoryShortage:
    """Counts how long each instance of one service has been short of memory."""

    def __init__(self) -> None:
        # By instance: consecutive samples in which it was short and a new one would not be.
        self._short: dict[int, int] = {}
        # Instances that have had enough memory at some time.
        self._had_enough: set[int] = set()
        # Whether several instances were short in the last sample, and none had enough.
        self.is_everybodys = False

    def observe(self, crew: InstanceSet, warning_bytes: float | None) -> None:
        """Use a new sample; `warning_bytes` is None if the agreement promises no free memory."""
        free = {
            one.instance_id: one.free_memory_bytes
            for one in crew.ready + crew.ready_spares
            if one.free_memory_bytes is not None
        }
        short = {one for one in free if warning_bytes is not None and free[one] < warning_bytes}
        self.is_everybodys = len(short) > 1 and len(short) == len(free)
        self._had_enough = (self._had_enough | (free.keys() - short)) & free.keys()
        if len(short) < len(free):
            helped = short
        else:
            helped = short & self._had_enough if len(free) == 1 else set()
        self._short = {one: self._short.get(one, 0) + 1 for one in helped}

    def readings(self, instance_id: int) -> int:
        """Return for how many consecutive samples a replacement would have helped."""
        return self._short.get(instance_id, 0)

"""What the instances of a service need, however many there are to be.

    gone        drained, and nothing outstanding: removed; at the latest after a minute. Where
                sessions stay with their instance, a grace for these goes before
    failed      removed, and another one comes; one that cannot start is tried ever less often, and
                one of an old version stays until the new one answers: its machine tries it again
    hanging     ejected by every door for some seconds while another one answers: it drains
    overloaded  slow or short of memory for long: replaced, as an old version is
    old         +1 new; when there are enough without one of the old, that one drains; so does
                what is more than wanted, also while the new one does not start
    spares      serve at once when somebody is missing, and are refilled when nobody is

Who is replaced stays until there is one in its place, so that a deploy that does not start harms
nobody. If there is no slot for one more, one of several goes first; one that is alone stays.
"""

from __future__ import annotations

import math

from tidegate.control.service_crew import Crew
from tidegate.control.service_reading import ServiceReading
from tidegate.core.hosting import Instance, InstanceState, ServiceSpec

DRAIN_S_MAX = 60.0
# One that hangs answers nothing any more.
_HANGING_DRAIN_S_MAX = 10.0
# Doors follow the store four times a second and report each second: what they say of an instance
# that drains is true after that.
_HEARD_S = 1.5
EJECTED_S = 5.0
# Between orders of a version that cannot start, at most.
_RETRY_S_MAX = 60.0
_RETRY_DOUBLINGS_MAX = 6
# One that has served for so long can start.
_PROVEN_S = 10.0
# Without a slot for so long: there is none.
UNPLACED_S = 5.0
# Between replacements of those that are overloaded: what makes them so may not be theirs.
_REPLACE_S = 60.0


class ServiceUpkeep:
    """Looks after the instances of one service."""

    def __init__(self) -> None:
        # When an instance was first seen in a state.
        self._since: dict[tuple[int, str], float] = {}
        # By version: how often one has failed in a row, and when the last of them did.
        self._failures: dict[int, int] = {}
        self._failed_at: dict[int, float] = {}
        self._replaced_at = -math.inf
        # Instances that are to be replaced, though they are of the right version.
        self._outworn: set[int] = set()

    def clean(self, crew: Crew, reading: ServiceReading | None, at: float) -> None:
        """Remove what is gone, and what cannot be used."""
        self._look(crew, reading, at)
        for instance in crew.of_state(InstanceState.DRAINING):
            if self._is_drained(instance, crew.service.spec, reading, at):
                crew.remove(instance)
                crew.rule = crew.rule or "drained"
                crew.because(f"Instance {instance.instance_id} has answered all that it had.")
        for instance in crew.of_state(InstanceState.FAILED):
            self._replace_failed(crew, instance, at)
        if reading is not None:
            self._let_go_of_hanging(crew, at)

    def replace(self, crew: Crew, instance: Instance, why: str, at: float) -> None:
        """One that serves badly is to go when another is in its place; one at a time."""
        if self._outworn or at - self._replaced_at < _REPLACE_S:
            return
        self._replaced_at = at
        self._outworn.add(instance.instance_id)
        crew.rule = crew.rule or "overloaded"
        crew.because(f"Instance {instance.instance_id} {why}: another one takes its place.")

    def fill(self, crew: Crew, wanted: int, at: float, slots_free: int | None) -> None:
        """As many as wanted, of the right version, and spares beside them."""
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

    def is_stuck(self, crew: Crew) -> bool:
        """Whether the version that is deployed keeps failing, and the old ones have to do."""
        if self._failures.get(crew.service.version, 0) <= 1:
            return False
        return not any(map(crew.is_current, crew.ready + crew.ready_spares))

    def unplaced(self, crew: Crew, at: float) -> list[Instance]:
        """Those that found no slot for long."""
        return [one for one in crew.coming if self._has_no_place(one, at)]

    def _has_no_place(self, instance: Instance, at: float) -> bool:
        return at - self._first(instance, "unplaced", at) >= UNPLACED_S

    # What is there

    def _look(self, crew: Crew, reading: ServiceReading | None, at: float) -> None:
        now: set[tuple[int, str]] = set()
        for one in crew.instances.values():
            now.add((one.instance_id, one.state.value))
            if one.machine_id is None and one.state is InstanceState.ORDERED:
                now.add((one.instance_id, "unplaced"))
            # Between readings it stays what it was.
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
            # One that was well before the others failed does not show that another can start.
            is_later = ready_at > self._failed_at.get(one.version, math.inf)
            if is_later and at - ready_at >= _PROVEN_S:
                del self._failures[one.version], self._failed_at[one.version]

    def _first(self, instance: Instance, what: str, at: float) -> float:
        return self._since.get((instance.instance_id, what), at)

    def _is_drained(
        self, instance: Instance, spec: ServiceSpec, reading: ServiceReading | None, at: float
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

    def _replace_failed(self, crew: Crew, instance: Instance, at: float) -> None:
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

    def _may_go_for_good(self, crew: Crew, at: float) -> bool:
        """Whether one of an old version that does not answer need not come back.

        Nobody orders another of its version. As long as the new one has not shown that it starts,
        its machine, or another, is to start it again as it was.
        """
        if any(map(crew.is_current, crew.ready + crew.ready_spares)):
            return True
        # Where there is no slot for the new one, it takes that of one that has failed.
        is_untried = not self._failures.get(crew.service.version)
        waits = any(map(crew.is_current, self.unplaced(crew, at)))
        return is_untried and waits

    def _let_go_of_hanging(self, crew: Crew, at: float) -> None:
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

    # What comes and goes

    def _may_start(self, crew: Crew, at: float) -> bool:
        return at >= self._retry_at(crew.service.version)

    def _retry_at(self, version: int) -> float:
        """When the next of a version may be ordered."""
        failed_at, failures = (
            self._failed_at.get(version, -math.inf),
            self._failures.get(version, 0),
        )
        # After the first at once; what cannot start is tried ever less often, and a power of so
        # many failures as there may be in some days is no number any more.
        doublings = min(failures - 2, _RETRY_DOUBLINGS_MAX)
        return failed_at + (min(2.0**doublings, _RETRY_S_MAX) if failures > 1 else 0.0)

    def _is_outdated(self, crew: Crew, instance: Instance) -> bool:
        return not crew.is_current(instance) or instance.instance_id in self._outworn

    def _forget_surplus(self, crew: Crew, wanted: int) -> None:
        """Old ones that do not answer need not come back where enough do without them."""
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

    def _renew(self, crew: Crew, wanted: int, at: float, slots_free: int | None) -> None:
        outdated = [one for one in crew.serving if self._is_outdated(crew, one)]
        if not outdated:
            return
        for instance in outdated:
            # Of the version that is deployed another one can be ordered at any time.
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
            # Its slot will be free when its sessions have had their grace: nobody else need go.
            return
        if stuck and answering and not slots_free and len(crew.ready) >= max(wanted, 2):
            crew.drain(answering[0])
            crew.rule = crew.rule or "one is renewed"
            crew.because(
                f"There is no slot for one more: instance {answering[0].instance_id} goes first."
            )

    def _shrink(self, crew: Crew, wanted: int) -> None:
        """More than wanted: who comes need not, then who gets least, the newest first."""
        if any(self._is_outdated(crew, one) for one in crew.serving):
            return
        # One that is ejected may return, and until then another one is in its place.
        wanted += sum(one.instance_id in crew.ejected for one in crew.serving)
        while len(crew.serving) > wanted and crew.serving_count > wanted:
            going = crew.coming[-1:] or sorted(
                crew.ready, key=lambda one: (one.weight, -one.instance_id)
            )
            instance = going[0]
            is_well = instance.state is InstanceState.READY and instance.weight >= 1.0
            # One that answers is worth more than one that may come.
            spares = len(crew.ready_spares) if is_well else crew.spares_count
            if spares < crew.service.spec.spares:
                crew.make_spare(instance)
            elif instance.state is InstanceState.READY:
                crew.drain(instance)
            else:
                crew.remove(instance)

    def _keep_spares(self, crew: Crew, at: float) -> None:
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
        # Who is not ready goes first, then the newest.
        current = sorted(
            (one for one in spares if crew.is_current(one)),
            key=lambda one: (one.state is InstanceState.READY, -one.instance_id),
        )
        for instance in current[: max(-missing, 0)]:
            if instance.state is InstanceState.READY:
                crew.drain(instance)
            else:
                crew.remove(instance)

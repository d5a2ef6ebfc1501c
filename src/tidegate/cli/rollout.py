"""Watching a service come about: which instance starts, which serves, what goes wrong.

The store is looked at a few times a second and each change is told once, so that whoever typed the
command sees what happens, whoever does it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tidegate.core.harmless import harmless
from tidegate.core.hosting import DoorSample, Instance, InstanceState, Service

# New instances that fail one after the other before a deploy is called failed.
FAILURES_MAX = 2


class Progress(enum.Enum):
    """How far a deploy has come."""

    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"


class Rollout:
    """One version of one service on its way."""

    def __init__(self, service: Service, replicas_min: int = 1) -> None:
        self._name = service.spec.name
        self._version = service.version
        self._wanted = replicas_min + service.spec.spares
        self._told: dict[int, str] = {}
        self._detail = ""
        self._failed: dict[int, str] = {}

    def look(self, service: Service | None, instances: Sequence[Instance]) -> list[str]:
        """What has changed since the last look, a sentence each."""
        news = []
        seen = set()
        for one in instances:
            seen.add(one.instance_id)
            words = _words(one)
            if self._told.get(one.instance_id) != words:
                self._told[one.instance_id] = words
                news.append(f"instance {one.instance_id} {words}")
            if one.state is InstanceState.FAILED and one.version == self._version:
                self._failed[one.instance_id] = one.detail
        for gone in [one for one in self._told if one not in seen]:
            del self._told[gone]
            news.append(f"instance {gone} has ended")
        detail = "" if service is None else service.detail
        if detail != self._detail:
            self._detail = detail
            if detail:
                news.append(harmless(detail))
        return news

    def progress(
        self,
        service: Service | None,
        instances: Sequence[Instance],
        doors: Sequence[DoorSample] = (),
    ) -> Progress:
        """Done when only the new version serves; failed when it does not come up at all.

        Doors hear of an old instance that drains some time after the store has. Until each door
        has said that it has heard, clients without a session may still come to the old instance.
        """
        if service is None:
            return Progress.FAILED
        ours = [one for one in instances if one.version >= self._version]
        ready = [one for one in ours if one.state is InstanceState.READY]
        serving = [one for one in ready if not one.is_spare]
        # One that only has sessions still serves nobody new, and need not be waited for.
        older = [
            one for one in instances if one.version < self._version and one.sessions_until is None
        ]
        given = {number for door in doors for number in door.gives_to or ()}
        is_heard = given <= {one.instance_id for one in ours}
        if serving and not older and is_heard and len(ready) >= self._wanted:
            return Progress.DONE
        is_given_up = service.detail.startswith(f"version {self._version} does not start")
        if not ready and (is_given_up or len(self._failed) >= FAILURES_MAX):
            return Progress.FAILED
        return Progress.UNDER_WAY

    @property
    def trouble(self) -> str:
        """Why it has not come about, as far as anybody said so."""
        if self._failed:
            newest = max(self._failed)
            return f"instance {newest} of version {self._version} {_why(self._failed[newest])}"
        return harmless(self._detail)


def _words(one: Instance) -> str:
    where = "" if one.machine_id is None else f" on machine {one.machine_id}"
    version = f"version {one.version}"
    match one.state:
        case InstanceState.ORDERED if one.machine_id is None:
            return f"of {version} waits for a slot"
        case InstanceState.ORDERED:
            return f"of {version} comes to machine {one.machine_id}"
        case InstanceState.STARTING:
            return f"of {version} starts{where}"
        case InstanceState.READY if one.is_spare:
            return f"of {version} is ready at {one.address}, a spare"
        case InstanceState.READY:
            return f"of {version} serves at {one.address}"
        case InstanceState.DRAINING:
            return f"of {version} answers what it has, and ends"
        case InstanceState.FAILED:
            return f"of {version} {_why(one.detail)}"


def _why(detail: str) -> str:
    return f"failed: {harmless(detail)}" if detail else "failed"

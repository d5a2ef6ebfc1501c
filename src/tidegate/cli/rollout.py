"""The progress of a deployment: which instances start, serve or fail.

The command polls the store a few times a second and prints each change once, regardless of which
process causes it.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from tidegate.core.harmless import harmless
from tidegate.core.hosting import DoorSample, Instance, InstanceState, Service

# A deployment fails after this many failed instances of the new version.
FAILURES_MAX = 2


class Progress(enum.Enum):
    """The state of a deployment."""

    UNDER_WAY = "under way"
    DONE = "done"
    FAILED = "failed"


class Rollout:
    """The deployment of one version of one service."""

    def __init__(self, service: Service, replicas_min: int = 1) -> None:
        self._name = service.spec.name
        self._version = service.version
        self._wanted = replicas_min + service.spec.spares
        self._told: dict[int, str] = {}
        self._detail = ""
        self._failed: dict[int, str] = {}

    def look(self, service: Service | None, instances: Sequence[Instance]) -> list[str]:
        """Return a sentence for each change since the previous call."""
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
        """Return DONE when only the new version serves, and FAILED when it does not start.

        A door learns of a draining instance some time after the store does. Until every door has
        reported that, clients without a session may still reach an old instance.
        """
        if service is None:
            return Progress.FAILED
        ours = [one for one in instances if one.version >= self._version]
        ready = [one for one in ours if one.state is InstanceState.READY]
        serving = [one for one in ready if not one.is_spare]
        # An instance that only serves existing sessions gets no new clients, so the wait ignores
        # it.
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
        """The reason why the new version does not serve, as far as it is known."""
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

"""What people are told while a version comes about, and when it is over."""

from __future__ import annotations

import msgspec

from tidegate.cli.services import FAILURES_MAX, Rollout, RolloutState, read_at_door_start
from tidegate.core.services import DoorSample, Instance, InstanceState, Service, ServiceSpec

SERVICE = Service(spec=ServiceSpec(name="shop", target="shop:app", agreement=""), version=2)


def instance(number: int, state: InstanceState, version: int = 2, detail: str = "") -> Instance:
    return Instance(
        instance_id=number,
        service="shop",
        version=version,
        state=state,
        machine_id=1,
        address="127.0.0.1:9001",
        detail=detail,
    )


def test_each_change_is_told_once() -> None:
    rollout = Rollout(SERVICE)
    starting = [instance(1, InstanceState.STARTING)]

    assert rollout.poll(SERVICE, starting) == ["instance 1 of version 2 starts on machine 1"]
    assert rollout.poll(SERVICE, starting) == []
    serving = [instance(1, InstanceState.READY)]
    assert rollout.poll(SERVICE, serving) == ["instance 1 of version 2 serves at 127.0.0.1:9001"]
    short = msgspec.structs.replace(SERVICE, detail="there is no slot left")
    assert rollout.poll(short, serving) == ["there is no slot left"]
    assert rollout.poll(SERVICE, []) == ["instance 1 has ended"]


def test_a_version_is_there_when_the_old_one_is_gone() -> None:
    rollout = Rollout(SERVICE)
    old, new = instance(1, InstanceState.DRAINING, version=1), instance(2, InstanceState.READY)

    assert rollout.progress(SERVICE, [old, new]) is RolloutState.UNDER_WAY
    assert rollout.progress(SERVICE, [new]) is RolloutState.DONE


def test_a_version_serves_when_every_door_has_heard_that_the_old_one_drains() -> None:
    rollout = Rollout(SERVICE)
    # It keeps its sessions for a while.
    old = msgspec.structs.replace(
        instance(1, InstanceState.DRAINING, version=1), sessions_until=2000.0
    )
    both = [old, instance(2, InstanceState.READY)]

    def progress(*gives_to: list[int] | None) -> RolloutState:
        doors = [
            DoorSample(service="shop", door=str(number), at=0.0, address="", gives_to=given)
            for number, given in enumerate(gives_to)
        ]
        return rollout.progress(SERVICE, both, doors)

    assert progress([1, 2], [1, 2]) is RolloutState.UNDER_WAY
    assert progress([2], [1, 2]) is RolloutState.UNDER_WAY
    assert progress([2], [2]) is RolloutState.DONE
    # A door that does not say, or none at all, is not waited for.
    assert progress([2], None) is RolloutState.DONE
    assert progress() is RolloutState.DONE


def test_a_version_that_does_not_come_up_has_failed_while_the_old_one_serves() -> None:
    rollout = Rollout(SERVICE)
    old = instance(1, InstanceState.READY, version=1)
    for number in range(2, 2 + FAILURES_MAX):
        assert rollout.progress(SERVICE, [old]) is RolloutState.UNDER_WAY
        rollout.poll(SERVICE, [old, instance(number, InstanceState.FAILED, detail="no database")])

    assert rollout.progress(SERVICE, [old]) is RolloutState.FAILED
    assert rollout.trouble.endswith("of version 2 failed: no database")


def test_a_version_that_the_leader_has_given_up_has_failed() -> None:
    rollout = Rollout(SERVICE)
    given_up = msgspec.structs.replace(SERVICE, detail="version 2 does not start: no database")
    old = [instance(1, InstanceState.READY, version=1)]
    rollout.poll(given_up, old)

    assert rollout.progress(given_up, old) is RolloutState.FAILED
    assert rollout.trouble == "version 2 does not start: no database"


def test_settings_that_running_doors_keep_are_named() -> None:
    spec = SERVICE.spec
    other = msgspec.structs.replace(spec, sticky=True, balancing="random", concurrency=7)

    assert read_at_door_start(spec, other) == "balancing, sessions"
    assert read_at_door_start(spec, spec) == ""

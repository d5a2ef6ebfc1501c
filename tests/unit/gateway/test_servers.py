"""What the gateway knows of its servers, fed by hand: index, ejection, weights."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import InvalidValue
from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.servers import ServerAddress, Servers
from tidegate.laws.http.balancing import POLICIES, EjectionSettings, ServerState, balancing_policy


def _servers(*names: str) -> Servers:
    servers = Servers(EjectionSettings(failures_to_eject=2), checked=False)
    for name in names:
        servers.put(ServerAddress(name, "127.0.0.1", 1))
    return servers


def test_the_index_follows_what_was_measured_in_the_last_second() -> None:
    servers = _servers("quick", "slow", "idle")
    servers.measure(0.0)
    assert [one.index for one in servers] == pytest.approx([100 / 3] * 3)
    for name, response_time_s, answered in (("quick", 0.01, 100), ("slow", 0.09, 10)):
        meters = servers.named(name).meters
        meters.response_time.add(response_time_s, answered)
        meters.answered.add(answered)
    servers.measure(1.0)
    index = {one.name: one.index for one in servers}
    assert index["slow"] < index["idle"] < index["quick"]
    assert sum(index.values()) == pytest.approx(100.0)
    # Free memory counts once somebody tells it.
    servers.named("slow").free_memory_bytes = 9e9
    servers.named("quick").free_memory_bytes = 1e9
    servers.named("idle").free_memory_bytes = 1e9
    servers.measure(2.0)
    assert max(servers, key=lambda one: one.index).name == "slow"


def test_requests_that_fail_eject_half_of_the_servers_at_most() -> None:
    servers = _servers("a", "b", "c", "d")
    for one in servers:
        for _ in range(5):
            servers.failed(one, "broke off")
    standings = [one.ejection.standing for one in servers]
    assert standings.count(ServerState.EJECTED) == 2
    assert [one.name for one in servers.open] == ["c", "d"]
    # That nobody listens is another matter.
    for one in servers:
        servers.refused(one, "refused")
    assert servers.open == []


def test_checks_without_an_answer_in_time_eject_half_of_the_servers_at_most() -> None:
    servers = _servers("a", "b", "c", "d")
    for _ in range(5):
        for one in servers:
            servers.unanswered(one, "no answer")
    assert [one.name for one in servers.open] == ["c", "d"]
    # What is answered badly is no matter of load.
    for _ in range(2):
        for one in servers:
            servers.checked(one, "a check was answered 503")
    assert servers.open == []


def test_the_only_server_is_not_ejected_for_failing() -> None:
    servers = _servers("a")
    (only,) = servers
    for _ in range(9):
        servers.failed(only, "broke off")
    assert servers.open == [only]


def test_a_weight_of_nothing_and_a_draining_server_are_not_elected() -> None:
    servers = _servers("a", "b", "c")
    servers.put(ServerAddress("a", "127.0.0.1", 1, weight=0.0))
    servers.named("b").draining = True
    servers.refresh()
    assert [one.name for one in servers.open] == ["c"]


def test_a_spare_is_elected_while_nobody_else_can_be_and_a_draining_one_never_is() -> None:
    servers = _servers("serves", "leaves")
    for spare in ("ill", "well", "goes"):
        servers.put(ServerAddress(spare, "127.0.0.1", 1, weight=0.0, draining=spare == "goes"))
    servers.named("leaves").draining = True
    servers.refused(servers.named("ill"), "refused")

    def elected(tried: set[str]) -> list[str]:
        return [one.name for one in servers.elected_from(tried)]

    assert elected(set()) == ["serves"]
    # A request that has failed there goes on to the spare, others do not.
    assert elected({"serves"}) == ["well"]
    assert elected({"serves", "well"}) == []
    servers.refused(servers.named("serves"), "refused")
    assert elected(set()) == ["well"]
    assert servers.named("well").weight == 1.0
    # As soon as it may be elected again, and be it with a part of its weight, it is.
    servers.named("serves").ejection.tick(float("inf"))
    servers.refresh()
    assert elected(set()) == ["serves"]


@given(
    name=st.sampled_from(sorted(POLICIES)),
    known=st.lists(
        st.tuples(st.floats(0.1, 10.0), st.integers(0, 20), st.floats(0.0, 100.0), st.booleans()),
        min_size=2,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_an_ejected_server_gets_nothing_under_any_policy(
    name: str, known: list[tuple[float, int, float, bool]], seed: int
) -> None:
    servers, policy = _servers(), balancing_policy(name, Random(seed))
    for number, (weight, outstanding, index, _) in enumerate(known):
        one = servers.put(ServerAddress(str(number), "127.0.0.1", 1, weight=weight))
        one.outstanding, one.index = outstanding, index
    askers = [str(number) for number in range(10)]
    # Some policies remember whom they have chosen.
    for asker in askers:
        policy.choose(servers.open, asker, "shop")
    ejected = {str(number) for number, (*_, is_ejected) in enumerate(known) if is_ejected}
    for one in ejected:
        servers.refused(servers.named(one), "refused")

    assert {one.name for one in servers.open} == {one.name for one in servers} - ejected
    if servers.open:
        chosen = {policy.choose(servers.open, asker, "shop").name for asker in askers * 20}
        assert not chosen & ejected


def test_gateway_refuses_invalid_servers() -> None:
    with pytest.raises(InvalidValue, match="needs a name"):
        ServerAddress("", "127.0.0.1", 1)
    with pytest.raises(InvalidValue, match="port of a"):
        ServerAddress("a", "127.0.0.1", 0)
    with pytest.raises(InvalidValue, match="weight of a"):
        ServerAddress("a", "127.0.0.1", 1, weight=-1.0)
    with pytest.raises(InvalidValue, match="two servers are called a"):
        Gateway([ServerAddress("a", "127.0.0.1", 1), ServerAddress("a", "127.0.0.1", 2)])
    with pytest.raises(InvalidValue, match="no policy is called"):
        Gateway(policy="best")
    with pytest.raises(InvalidValue, match="in_flight_max"):
        GatewayLimits(in_flight_max=0)
    with pytest.raises(InvalidValue, match="no server is called 'b'; there are a"):
        _servers("a").named("b")

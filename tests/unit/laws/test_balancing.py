"""Who gets what under each policy: distributions, and what must hold for any servers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.errors import InvalidValue
from tidegate.laws.http.balancing import POLICIES, FirstAvailable, Policy, balancing_policy

DRAWS = 6000


@dataclass
class Standin:
    """A server, as far as a policy cares."""

    name: str
    weight: float = 1.0
    outstanding: int = 0
    index: float = 25.0


def _draw(policy: Policy, servers: list[Standin], draws: int = DRAWS) -> Counter[str]:
    """Every request is over before the next comes, and everybody asks from elsewhere."""
    return Counter(policy.choose(servers, str(turn), "shop").name for turn in range(draws))


def _shares(counts: Counter[str]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}


@pytest.mark.parametrize(
    "name",
    [
        "random",
        "round-robin",
        "first-available",
        "workload-drawn",
        "least-outstanding",
        "better-of-two",
    ],
)
def test_weights_are_respected(name: str) -> None:
    servers = [Standin("a", 1.0), Standin("b", 2.0), Standin("c", 3.0)]
    shares = _shares(_draw(balancing_policy(name, Random(1)), servers))
    for one in servers:
        assert shares[one.name] == pytest.approx(one.weight / 6.0, abs=0.03)


def test_round_robin_is_even_in_every_stretch_and_smooth_with_weights() -> None:
    policy = balancing_policy("round-robin", Random(1))
    servers = [Standin("a", 1.0), Standin("b", 2.0)]
    turns = [policy.choose(servers, "", "").name for _ in range(9)]
    assert Counter(turns) == {"a": 3, "b": 6}
    for start in range(0, 9, 3):
        assert Counter(turns[start : start + 3]) == {"a": 1, "b": 2}


def test_first_available_is_kept_as_long_as_it_is_there_and_no_longer() -> None:
    servers = [Standin(name) for name in "abcd"]
    policy = FirstAvailable(Random(1))
    elected = {asker: policy.choose(servers, asker, "shop") for asker in map(str, range(200))}
    assert {one.name for one in elected.values()} == set("abcd")
    # A server that comes moves nobody; one that goes moves its own.
    more = [*servers, Standin("e")]
    assert all(policy.choose(more, asker, "shop") is one for asker, one in elected.items())
    left = [one for one in servers if one.name != "a"]
    for asker, one in elected.items():
        again = policy.choose(left, asker, "shop")
        assert (again is one) == (one.name != "a")
        # It does not go back when the first is there again.
        assert policy.choose(servers, asker, "shop") is again


def test_a_family_shares_its_first_available() -> None:
    servers = [Standin(name) for name in "abcd"]
    policy = balancing_policy("first-available-shared", Random(3))
    for family in ("shop", "bank", "zoo"):
        assert len({policy.choose(servers, str(asker), family).name for asker in range(50)}) == 1
    homes = {policy.choose(servers, "x", f"family {n}").name for n in range(50)}
    assert homes == set("abcd")


def test_workload_herds_and_the_drawn_one_follows_the_index() -> None:
    servers = [Standin("a", index=34.0), Standin("b", index=33.0), Standin("c", index=33.0)]
    assert _draw(balancing_policy("workload", Random(1)), servers) == {"a": DRAWS}
    servers = [Standin("a", index=50.0), Standin("b", index=30.0), Standin("c", index=20.0)]
    shares = _shares(_draw(balancing_policy("workload-drawn", Random(1)), servers))
    for one in servers:
        assert shares[one.name] == pytest.approx(one.index / 100.0, abs=0.03)


def test_under_workload_one_that_returns_waits_until_its_weight_has_grown() -> None:
    policy = balancing_policy("workload", Random(1))
    returns, other = Standin("returns", index=60.0), Standin("other", index=40.0)
    chosen = []
    for returns.weight in (0.1, 0.5, 0.66, 0.67, 1.0):
        chosen.append(policy.choose([returns, other], "", "").name)
    assert chosen == ["other", "other", "other", "returns", "returns"]


def test_the_drawn_one_starves_nobody() -> None:
    servers = [Standin("a", index=99.99), Standin("b", index=0.01)]
    counts = _draw(balancing_policy("workload-drawn", Random(1)), servers)
    assert counts["b"] >= DRAWS * 0.05 / 2 * 0.6


def test_least_outstanding_and_better_of_two_even_out_what_is_slow() -> None:
    """One server never answers: it gets no more than any other has."""
    for name in ("least-outstanding", "better-of-two"):
        policy = balancing_policy(name, Random(5))
        servers = [Standin("hangs"), Standin("b"), Standin("c")]
        counts: Counter[str] = Counter()
        for turn in range(3000):
            chosen = policy.choose(servers, str(turn), "")
            counts[chosen.name] += 1
            if chosen.name == "hangs":
                chosen.outstanding += 1
        assert counts["hangs"] <= 2, name
        assert counts["b"] == pytest.approx(counts["c"], rel=0.15), name


def test_least_outstanding_draws_among_equals() -> None:
    shares = _shares(
        _draw(balancing_policy("least-outstanding", Random(1)), [Standin(n) for n in "abc"])
    )
    assert all(share == pytest.approx(1 / 3, abs=0.03) for share in shares.values())


@given(
    name=st.sampled_from(sorted(POLICIES)),
    servers=st.lists(
        st.tuples(
            st.floats(0.0, 100.0),
            st.integers(0, 50),
            st.floats(0.0, 100.0),
        ),
        min_size=1,
        max_size=6,
    ),
    seed=st.integers(0, 1000),
)
def test_any_policy_chooses_one_of_those_it_was_given(
    name: str, servers: list[tuple[float, int, float]], seed: int
) -> None:
    candidates = [Standin(str(n), *given) for n, given in enumerate(servers)]
    policy = balancing_policy(name, Random(seed))
    for turn in range(20):
        # Now one and now another is missing, as when it is full or ejected.
        there = candidates[turn % len(candidates) :]
        assert policy.choose(there, str(turn % 3), "shop") in there


@given(weights=st.lists(st.floats(0.05, 10.0), min_size=1, max_size=6))
def test_round_robin_keeps_everybody_within_one_turn_of_its_share(weights: list[float]) -> None:
    policy = balancing_policy("round-robin", Random(1))
    servers = [Standin(str(n), weight) for n, weight in enumerate(weights)]
    counts: Counter[str] = Counter()
    for turn in range(1, 200):
        counts[policy.choose(servers, "", "").name] += 1
        for one in servers:
            due = turn * one.weight / sum(weights)
            assert abs(counts[one.name] - due) < len(servers)


# What a server may have when a request comes: weight, outstanding, index.
SERVERS = st.lists(
    st.tuples(
        st.floats(0.5, 2.0), st.integers(0, 10), st.one_of(st.just(0.0), st.floats(0.001, 100.0))
    ),
    min_size=1,
    max_size=6,
)
SEEDS = st.integers(0, 1000)


def _drawn_shares(servers: list[Standin]) -> dict[str, float]:
    """Of workload-drawn: by weight and index, of which nobody has less than 5 % of the mean."""
    floor = 0.05 * sum(one.index for one in servers) / len(servers)
    weights = {one.name: one.weight * max(one.index, floor) for one in servers}
    total = sum(weights.values())
    if not total:
        return dict.fromkeys(weights, 1.0 / len(servers))
    return {name: weight / total for name, weight in weights.items()}


def _draws_until_all(policy: Policy, servers: list[Standin], draws_max: int) -> int:
    """Until everybody was chosen, while nothing is answered; or so many."""
    missing = {one.name for one in servers}
    for draw in range(draws_max):
        if not missing:
            return draw
        chosen = policy.choose(servers, str(draw), "shop")
        chosen.outstanding += 1
        missing.discard(chosen.name)
    return draws_max


# That a server with such a share has nothing after so many draws happens once in ten million.
PATIENT = 16.0


@given(name=st.sampled_from(["random", "first-available"]), known=SERVERS, seed=SEEDS)
def test_weighted_draw_reaches_every_server(
    name: str, known: list[tuple[float, int, float]], seed: int
) -> None:
    servers = [Standin(str(n), *given) for n, given in enumerate(known)]
    least = min(one.weight for one in servers) / sum(one.weight for one in servers)
    most = math.ceil(PATIENT / least) + 1

    assert _draws_until_all(balancing_policy(name, Random(seed)), servers, most) < most


@given(known=SERVERS, seed=SEEDS)
def test_workload_drawn_starves_nobody_whatever_the_indexes_are(
    known: list[tuple[float, int, float]], seed: int
) -> None:
    servers = [Standin(str(n), *given) for n, given in enumerate(known)]
    most = math.ceil(PATIENT / min(_drawn_shares(servers).values())) + 1

    assert _draws_until_all(balancing_policy("workload-drawn", Random(seed)), servers, most) < most


@given(known=SERVERS, seed=SEEDS)
def test_shares_of_workload_drawn_follow_index_and_weight(
    known: list[tuple[float, int, float]], seed: int
) -> None:
    servers = [Standin(str(n), *given) for n, given in enumerate(known)]
    shares = _shares(_draw(balancing_policy("workload-drawn", Random(seed)), servers, 4000))

    for name, due in _drawn_shares(servers).items():
        # Five standard deviations, at least of a share of a thousandth.
        spread = 5.0 * math.sqrt(max(due * (1.0 - due), 0.001) / 4000)
        assert shares.get(name, 0.0) == pytest.approx(due, abs=spread)


def _room_below(servers: list[Standin]) -> int:
    """Requests after which all the others have more to do, for their weight, than the busiest."""
    busiest = max(one.outstanding / one.weight for one in servers)
    return sum(max(math.floor(one.weight * busiest) + 1 - one.outstanding, 1) for one in servers)


@given(known=SERVERS, seed=SEEDS)
def test_least_outstanding_comes_to_the_busiest_as_soon_as_the_others_have_more(
    known: list[tuple[float, int, float]], seed: int
) -> None:
    servers = [Standin(str(n), *given) for n, given in enumerate(known)]
    # No luck is needed; one more, since a quotient may be rounded.
    most = _room_below(servers) + len(servers) + 1

    assert (
        _draws_until_all(balancing_policy("least-outstanding", Random(seed)), servers, most) < most
    )


@given(known=SERVERS, seed=SEEDS)
def test_better_of_two_comes_to_the_busiest_too(
    known: list[tuple[float, int, float]], seed: int
) -> None:
    servers = [Standin(str(n), *given) for n, given in enumerate(known)]
    least = min(one.weight for one in servers) / sum(one.weight for one in servers)
    # Whoever has less to do must be drawn for it to be filled.
    most = math.ceil((_room_below(servers) + PATIENT) / least) + 1

    assert _draws_until_all(balancing_policy("better-of-two", Random(seed)), servers, most) < most


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidValue, match="better-of-two"):
        balancing_policy("best", Random())

"""The splitter: nobody is ever a whole message away from its due."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.topology import ALIAS
from tidegate.laws.routing import Splitter

weights = st.dictionaries(st.integers(1, 60), st.floats(0.001, 100.0), min_size=1, max_size=40)


def test_splitter_deals_in_the_order_computed_by_hand() -> None:
    splitter = Splitter({1: 0.5, 2: 0.3, 3: 0.2})
    assert [splitter.next() for _ in range(10)] == [1, 2, 1, 3, 1, 2, 1, 2, 1, 3]


@given(weights, st.integers(1, 400), st.floats(0.0, 1.0))
def test_splitter_error_stays_below_one_message(
    shares: dict[int, float], count: int, first: float
) -> None:
    splitter = Splitter(shares, first)
    total = sum(shares.values())
    dealt: Counter[int] = Counter()
    for step in range(1, count + 1):
        dealt[splitter.next()] += 1
        for number, share in shares.items():
            assert abs(dealt[number] - step * share / total) < 1.0 + 1e-6


@given(weights, st.lists(st.integers(0, 300), min_size=1, max_size=30))
def test_every_batch_is_split_with_an_error_below_one_message(
    shares: dict[int, float], batches: list[int]
) -> None:
    splitter = Splitter(shares)
    total = sum(shares.values())
    for batch in batches:
        dealt = splitter.deal(batch)
        assert sum(dealt.values()) == batch
        for number, share in shares.items():
            assert abs(dealt.get(number, 0) - batch * share / total) < 1.0


def test_splitter_corrects_rounding_of_batches_in_later_ones() -> None:
    splitter = Splitter({1: 0.55, 2: 0.25, 3: 0.2})
    dealt: Counter[int] = Counter()
    for _ in range(1000):
        dealt.update(splitter.deal(3))
    assert abs(dealt[1] - 1650) <= 1
    assert abs(dealt[2] - 750) <= 1
    assert abs(dealt[3] - 600) <= 1


def test_a_producer_slower_than_the_shares_change_reaches_everybody() -> None:
    seeded = random.Random(5)
    splitter = Splitter({})
    dealt: Counter[int] = Counter()
    due = dict.fromkeys(range(1, 9), 0.0)
    for _ in range(2000):
        shares = {number: seeded.uniform(0.5, 1.5) for number in range(1, 9)}
        splitter.set_shares(shares)
        dealt[splitter.next()] += 1
        for number, share in shares.items():
            due[number] += share / sum(shares.values())
    assert all(abs(dealt[number] - due[number]) < 2.0 for number in range(1, 9))


def test_a_replica_without_a_share_gets_nothing_from_then_on() -> None:
    splitter = Splitter({1: 0.5, 2: 0.5})
    splitter.deal(7)
    splitter.set_shares({1: 0.0, 2: 1.0})
    assert {splitter.next() for _ in range(50)} == {2}
    assert splitter.deal(9) == {2: 9}


def test_while_nobody_has_a_share_the_alias_gets_it() -> None:
    splitter = Splitter({1: 0.0})
    assert splitter.next() == ALIAS
    assert splitter.deal(4) == {ALIAS: 4}
    splitter.set_shares({3: 1.0})
    assert splitter.next() == 3


def test_producers_that_begin_elsewhere_send_their_first_message_elsewhere() -> None:
    shares = {1: 0.5, 2: 0.25, 3: 0.25}
    assert [Splitter(shares, at).next() for at in (0.1, 0.6, 0.9)] == [1, 2, 3]
    assert [Splitter(shares, at).deal(1) for at in (0.1, 0.6, 0.9)] == [{1: 1}, {2: 1}, {3: 1}]


def test_where_to_begin_is_kept_until_shares_are_known() -> None:
    dealt = []
    for at in (0.1, 0.6, 0.9):
        splitter = Splitter({}, at)
        splitter.set_shares({1: 1.0})
        assert splitter.deal(2) == {1: 2}
        splitter.set_shares({1: 0.5, 2: 0.25, 3: 0.25})
        dealt.append(splitter.deal(1))
    assert dealt == [{1: 1}, {2: 1}, {3: 1}]

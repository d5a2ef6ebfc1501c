"""Shares as weights of bindings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.engines.rabbitmq.topology import (
    WEIGHTS,
    ElasticReplica,
    ElasticTopology,
    decode_topology,
    weights_of,
)

SHARES = st.dictionaries(st.integers(1, 10_000), st.floats(0.0, 1.0), max_size=60)


@given(SHARES)
def test_weights_are_within_one_part_of_the_shares_and_nobody_with_a_share_has_none(
    shares: dict[int, float],
) -> None:
    weights = weights_of(shares)

    total = sum(shares.values())
    assert weights.keys() == {number for number, share in shares.items() if share > 0.0}
    if weights:
        parts = sum(weights.values())
        assert parts == max(WEIGHTS, 4 * len(weights))
        assert min(weights.values()) >= 1
        # Who was raised to one part took it from the others, at most one for each.
        raised = sum(1 for number in weights if shares[number] / total * parts < 1.0)
        for number, weight in weights.items():
            assert abs(weight - shares[number] / total * parts) <= 1.0 + raised


def test_exact_parts_are_exact() -> None:
    assert weights_of({1: 0.5, 2: 0.3, 3: 0.2}) == {1: 50, 2: 30, 3: 20}
    assert weights_of({1: 1 / 3, 2: 1 / 3, 3: 1 / 3}) == {1: 34, 2: 33, 3: 33}
    assert weights_of({1: 0.0, 2: 0.0}) == {}


def test_a_document_that_is_none_of_ours_is_none() -> None:
    topology = ElasticTopology(queue="orders", version=3, replicas=[ElasticReplica(number=1)])

    assert decode_topology(topology.encode()) == topology
    assert decode_topology(b"hello") is None
    assert decode_topology(b'{"queue": 3}') is None

"""How long help takes: of the service, or of every queue that an agreement governs."""

from __future__ import annotations

import pytest

from tidegate.agreements.document import parse_agreement
from tidegate.pipeline.jobs.agreements import reconfiguration

PROMISE = "[metrics.response_p99]\nbreach = '6s'\n"
SEEN = {"shop": [1.0, 3.0], "orders.eu": [4.0], "orders.us": [8.0], "mails": [90.0]}


@pytest.mark.parametrize(
    ("governs", "expected_s"), [("http = 'shop'", 2.0), ("queue = 'orders.*'", 6.0)]
)
def test_reconfiguration_time_is_that_of_the_governed_services(
    governs: str, expected_s: float
) -> None:
    agreement = parse_agreement(f"name = 'a'\n{governs}\n{PROMISE}", "a.toml")
    assert reconfiguration(agreement, SEEN)[0] == expected_s


def test_reconfiguration_time_defaults_to_the_agreement() -> None:
    said = "name = 'a'\nqueue = 'bills'\nreconfiguration = '1s'\n"
    agreement = parse_agreement(said + PROMISE, "a.toml")
    assert reconfiguration(agreement, SEEN) == (1.0, "as the agreement says")

"""Messages as AMQP carries them."""

from __future__ import annotations

import math
import time
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from tidegate.client.message import checked_options
from tidegate.core.model import DeathReason
from tidegate.engines.rabbitmq import message as p
from tidegate.engines.rabbitmq.subscription import (
    delay_queue_lifetime_ms,
    delay_queue_name,
    rounded_up_ms,
)


def test_an_id_of_ours_is_read_back_and_anybody_elses_is_always_the_same() -> None:
    ours = p.new_message_id()
    assert p.message_id_of(p.Properties(message_id=str(ours)), b"x") == ours

    for theirs in ("4f2c-uuid", "0", str(2**70), "７", None):
        properties = p.Properties(message_id=theirs)
        first, second = (p.message_id_of(properties, b"x") for _ in range(2))
        assert first == second
        assert 0 <= first < 2**63
    assert p.message_id_of(p.Properties(), b"x") != p.message_id_of(p.Properties(), b"y")


def test_headers_are_what_people_gave_it() -> None:
    properties = p.Properties(
        headers={
            "trace": "4f",
            "retries": 3,
            "raw": b"abc",
            p.DELIVERIES: 2,
            "x-death": [{"queue": "orders"}],
            "x-delivery-count": 4,
            "table": {"a": 1},
        }
    )

    assert p.user_headers(properties) == {"trace": "4f", "retries": "3", "raw": "abc"}


def test_deliveries_are_ours_and_the_brokers_together() -> None:
    assert p.delivery_count_of(p.Properties(), redelivered=False) == 1
    # A classic queue flags, a quorum queue counts.
    assert p.delivery_count_of(p.Properties(), redelivered=True) == 2
    both = p.Properties(headers={p.DELIVERIES: 3, "x-delivery-count": 2})
    assert p.delivery_count_of(both, redelivered=True) == 6
    nonsense = p.Properties(headers={p.DELIVERIES: "many"})
    assert p.delivery_count_of(nonsense, redelivered=False) == 1


def test_republished_message_keeps_its_properties_without_broker_headers() -> None:
    properties = p.Properties(
        content_type="text/plain",
        headers={"a": "b", "x-death": [], "x-delivery-count": 1, p.ERROR: "before"},
        correlation_id="7",
        reply_to="amq.rabbitmq.reply-to.g1",
        message_id="12",
        priority=3,
        expiration="1000",
    )

    again = p.republished(properties, 7, {p.DELIVERIES: 2, p.ERROR: None})

    assert again.headers == {"a": "b", p.ERROR: "before", p.DELIVERIES: 2}
    assert (again.message_id, again.correlation_id, again.priority) == ("12", "7", 3)
    assert (again.reply_to, again.content_type) == ("amq.rabbitmq.reply-to.g1", "text/plain")
    # It would count in the delay queue.
    assert again.expiration is None


def test_a_time_to_live_is_the_brokers_business_until_the_message_is_delayed() -> None:
    special = checked_options({"ttl": 5.0})
    properties, delay_s = p.properties_of(1, special, None, now=100.0)
    assert (properties.expiration, delay_s) == ("5000", 0.0)
    assert p.expires_at_of(properties) == 105.0

    delayed, delay_s = p.properties_of(1, checked_options({"ttl": 5.0, "delay": 2.0}), None, 100.0)
    assert (delayed.expiration, delay_s) == (None, 2.0)
    assert p.is_expired(delayed)


def test_a_dead_letter_is_not_dropped_for_its_age() -> None:
    headers = {p.EXPIRES_AT: 1, p.REASON: "expired", p.DIED_IN: "orders", p.DIED_AT: 2000}
    properties = p.Properties(headers=headers)

    assert not p.is_expired(properties)
    (death,) = p.deaths_of(properties, 7)
    assert (death.queue, death.reason, death.at) == ("orders", DeathReason.EXPIRED, 2.0)


def test_deaths_by_the_brokers_hand_are_told_without_our_delays() -> None:
    died_at = datetime(2024, 1, 2, tzinfo=UTC)
    headers = {
        "x-death": [
            {"queue": "orders", "reason": "delivery_limit", "count": 3, "time": died_at},
            {"queue": "orders.delay.200.20000", "reason": "expired", "count": 1, "time": died_at},
        ]
    }

    (death,) = p.deaths_of(p.Properties(headers=headers), 7)

    assert (death.queue, death.reason, death.deliveries) == ("orders", DeathReason.DELIVERIES, 3)
    assert death.at == died_at.timestamp()


def test_failures_are_remembered_in_few_words_and_not_for_ever() -> None:
    properties = p.Properties()
    for number in range(20):
        text = p.failures_with(properties, "nack", f"{number}: {'x' * 5000}")
        properties = p.Properties(headers={p.FAILURES: text})

    failures = p.failures_of(properties)
    assert [failure.error[:2] for failure in failures if failure.error] == [
        str(number) for number in range(10, 20)
    ]
    assert len(text) < 4000
    assert failures[-1].at <= time.time()
    assert p.failures_of(p.Properties(headers={p.FAILURES: "no JSON"})) == []


@given(st.floats(min_value=0.0, max_value=2_000_000.0))
def test_a_wait_is_never_shorter_than_asked_for_and_there_are_few_of_them(delay_s: float) -> None:
    delay_ms = rounded_up_ms(delay_s)

    assert delay_ms >= math.floor(delay_s * 1e3)
    assert delay_ms <= max(delay_s * 1e3 * 1.1 + 1, 1)
    assert len(str(delay_ms).rstrip("0")) <= 2


def test_a_wait_that_is_round_is_kept() -> None:
    assert [rounded_up_ms(s) for s in (0.0, 0.2, 0.3, 1.0, 30.0, 7.0, 0.0001)] == [
        0,
        200,
        300,
        1000,
        30_000,
        7000,
        1,
    ]


@given(
    st.floats(min_value=1e9, max_value=3e9),
    st.floats(min_value=0.0, max_value=1e6),
    st.integers(min_value=1, max_value=2_100_000_000),
)
def test_no_delay_queue_is_deleted_before_the_last_message_has_left_it(
    made_at: float, put_after_s: float, delay_ms: int
) -> None:
    # RabbitMQ deletes it, with what it holds, so long after it was made, used or not.
    put_at = made_at + put_after_s
    if delay_queue_name("q", delay_ms, put_at) == delay_queue_name("q", delay_ms, made_at):
        an_hour_ms = 3_600_000
        left_at_ms = put_after_s * 1e3 + delay_ms
        assert left_at_ms + an_hour_ms < delay_queue_lifetime_ms(delay_ms) < 2**32

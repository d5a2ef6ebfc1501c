"""The checker itself is checked: each mutation of a good history must be named for what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.demo.history import (
    CheckResult,
    HistoryEvent,
    HistoryFollower,
    HistoryWriter,
    Outstanding,
    check,
    merged,
    payload_hash,
    read_history,
)

QUEUE = "orders"
COUNT = 40
SEQS = range(1, COUNT + 1)


def is_given_back(seq: int) -> bool:
    return seq % 20 == 0


def is_held_by_the_killed(seq: int) -> bool:
    return seq % 13 == 0


def is_acked_unknown(seq: int) -> bool:
    return seq % 11 == 0


def comes_again(seq: int) -> bool:
    return is_given_back(seq) or is_held_by_the_killed(seq) or is_acked_unknown(seq)


def event(t: float, process: str, op: str, phase: str, seq: int, **more: object) -> HistoryEvent:
    fields = {
        "queue": QUEUE,
        "producer": "p1",
        "payload_hash": payload_hash(f"{seq}".encode()) if op != "ack" else "",
    }
    return HistoryEvent(t=t, process=process, op=op, phase=phase, seq=seq, **(fields | more))  # type: ignore[arg-type]


def good_history() -> list[HistoryEvent]:
    """Puts, each confirmed; deliveries in order; acks, most of them confirmed.

    Every 20th is given back, every 13th held by somebody who is killed; every 11th is
    acknowledged and nobody knows: those come again, flagged.
    """
    events = []
    for seq in SEQS:
        t = seq * 10.0
        events += [
            event(t, "p1", "put", "invoke", seq),
            event(t + 1, "p1", "put", "ok", seq, message_id=100 + seq),
            event(t + 2, "c1", "deliver", "ok", seq, message_id=100 + seq),
        ]
        if is_given_back(seq):
            events.append(event(t + 2.5, "c1", "ack", "fail", seq, message_id=100 + seq))
        elif is_acked_unknown(seq):
            events.append(event(t + 2.5, "c1", "ack", "invoke", seq, message_id=100 + seq))
        if comes_again(seq):
            events.append(
                event(t + 3, "c2", "deliver", "ok", seq, message_id=100 + seq, redelivered=True)
            )
        name = "c2" if comes_again(seq) else "c1"
        events.append(event(t + 4, name, "ack", "invoke", seq, message_id=100 + seq))
        if not seq % 2:
            events.append(event(t + 5, name, "ack", "ok", seq, message_id=100 + seq))
    return events


AGAIN = sum(map(comes_again, SEQS))


def judged(events: list[HistoryEvent], **more: object) -> CheckResult:
    options = {"stored": frozenset(), "sole_consumer": [QUEUE]} | more
    return check(sorted(events, key=lambda e: e.t), **options)  # type: ignore[arg-type]


def find(events: list[HistoryEvent], op: str, phase: str, seq: int) -> HistoryEvent:
    return next(e for e in events if (e.op, e.phase, e.seq) == (op, phase, seq))


def without_redelivery(events: list[HistoryEvent], seq: int) -> list[HistoryEvent]:
    """The second delivery and what came of it have never been."""
    return [e for e in events if e.process != "c2" or e.seq != seq]


def without_deliveries(events: list[HistoryEvent], seq: int) -> list[HistoryEvent]:
    return [e for e in events if e.op == "put" or e.seq != seq]


def test_a_good_history_passes() -> None:
    verdict = judged(good_history())

    assert verdict.outcome == "pass"
    assert (verdict.put, verdict.confirmed, verdict.delivered) == (COUNT, COUNT, COUNT)
    assert verdict.duplicates_flagged == AGAIN == 8
    assert verdict.acks_confirmed == COUNT // 2


def test_a_dropped_delivery_is_a_loss() -> None:
    verdict = judged(without_deliveries(good_history(), 7))

    assert (verdict.lost, verdict.violations, verdict.outcome) == (1, 1, "fail")
    assert "orders p1:7" in verdict.examples[0]


def test_stored_message_makes_the_verdict_inconclusive() -> None:
    events = without_deliveries(good_history(), 7)

    assert judged(events, stored={(QUEUE, "p1", 7)}).outcome == "inconclusive"
    assert judged(events, stored=None).outcome == "inconclusive"


@pytest.mark.parametrize("seq", [*filter(is_given_back, SEQS)])
def test_returned_message_without_redelivery_is_lost(seq: int) -> None:
    verdict = judged(without_redelivery(good_history(), seq))

    assert (verdict.lost, verdict.violations, verdict.outcome) == (1, 1, "fail")
    assert f"lost after a delivery: orders p1:{seq}" in verdict.examples[0]


@pytest.mark.parametrize("seq", [*filter(is_held_by_the_killed, SEQS)])
def test_message_of_a_killed_worker_without_redelivery_is_lost(seq: int) -> None:
    verdict = judged(without_redelivery(good_history(), seq))

    assert (verdict.lost, verdict.violations, verdict.outcome) == (1, 1, "fail")


def test_message_with_unconfirmed_acknowledgement_is_not_lost() -> None:
    verdict = judged(without_redelivery(good_history(), 11))

    assert verdict.outcome == "pass", str(verdict)


def test_redelivered_message_without_acknowledgement_is_lost() -> None:
    # Given an acknowledgement in vain: it came again, and that one was killed with it
    events = [e for e in good_history() if (e.op, e.process, e.seq) != ("ack", "c2", 11)]

    assert judged(events).lost == 1
    assert judged(events, stored={(QUEUE, "p1", 11)}).outcome == "inconclusive"


@pytest.mark.parametrize("second", ["c1", "c2"])
def test_a_lapsed_lease_takes_nothing_from_whoever_has_let_go(second: str) -> None:
    # Given a consumer that hears of its lapsed lease when the message has come again, perhaps to it
    t = 1e6
    events = [
        event(t, "p1", "put", "invoke", 77),
        event(t + 1, "p1", "put", "ok", 77),
        event(t + 2, "c1", "deliver", "ok", 77, delivery=5),
        event(t + 3, "c1", "ack", "invoke", 77, delivery=5),
        event(t + 4, second, "deliver", "ok", 77, redelivered=True, delivery=9),
        event(t + 5, second, "ack", "invoke", 77, delivery=9),
        event(t + 6, "c1", "ack", "fail", 77, delivery=5),
    ]

    assert judged(events, sole_consumer=[]).outcome == "pass"
    del events[5]
    assert judged(events, sole_consumer=[]).lost == 1


def test_a_process_may_be_given_a_message_twice_and_let_go_of_it_twice() -> None:
    events = good_history()
    for e in events:
        e.process = "c1" if e.process == "c2" else e.process

    assert judged(events).outcome == "pass"


def test_an_end_that_nobody_knows_is_as_old_as_its_beginning() -> None:
    # Given a consumer that hears nothing of its acknowledgement, until it no longer waits for it
    events = [e for e in good_history() if (e.op, e.process, e.seq) != ("ack", "c2", 11)]
    events.append(event(1e6, "c1", "ack", "info", 11))

    # Then it says nothing about who was given the message meanwhile, and was killed
    assert judged(events).lost == 1


def test_outstanding_count_equals_the_undrained_count() -> None:
    # Given histories that are read one after the other, each up to where it is
    for last in range(len(good_history()) + 1):
        events = sorted(good_history(), key=lambda e: e.t)[:last]
        followed = Outstanding()
        for process in ("c2", "c1", "p1"):
            for e in events:
                if e.process == process:
                    followed.feed(e)

        assert len(followed) == judged(events, stored=None).undrained


def test_an_unknown_put_may_be_delivered_or_not() -> None:
    events = good_history()
    find(events, "put", "ok", 7).phase = "info"

    assert judged(events).outcome == "pass"
    verdict = judged(without_deliveries(events, 7))
    assert (verdict.outcome, verdict.unknown) == ("pass", 1)


def test_a_duplicated_delivery_without_a_flag_is_named() -> None:
    events = good_history()
    again = find(events, "deliver", "ok", 7)
    events.append(event(again.t + 0.5, "c2", "deliver", "ok", 7, message_id=107))

    verdict = judged(events)

    assert (verdict.unflagged, verdict.violations) == (1, 1)


def test_an_unflagged_repeat_is_named() -> None:
    events = good_history()
    next(e for e in events if e.redelivered).redelivered = False

    verdict = judged(events)

    assert (verdict.unflagged, verdict.violations) == (1, 1)


@pytest.mark.parametrize("sole_consumer", [[QUEUE], []])
def test_two_deliveries_the_wrong_way_round_are_named(sole_consumer: list[str]) -> None:
    events = good_history()
    first, second = find(events, "deliver", "ok", 7), find(events, "deliver", "ok", 8)
    first.t, second.t = second.t, first.t
    # Nothing else of them may be out of time.
    for e in events:
        e.t += 100 * (e.op == "ack" and e.seq in (7, 8))
    find(events, "put", "invoke", 8).t = find(events, "put", "invoke", 7).t + 0.1

    verdict = judged(events, sole_consumer=sole_consumer)

    assert verdict.out_of_order == 1


def test_between_two_consumers_a_flagged_latecomer_is_in_order() -> None:
    events = good_history()
    late, acked = find(events, "deliver", "ok", 7), find(events, "ack", "invoke", 7)
    late.t, late.process, late.redelivered = late.t + 25, "c2", True
    acked.t, acked.process = late.t + 1, "c2"

    assert judged(events, sole_consumer=[]).outcome == "pass"
    assert judged(events, sole_consumer=[QUEUE]).out_of_order == 1


def test_messages_stored_the_wrong_way_round_are_named_whoever_consumes() -> None:
    events = good_history()
    for e in events:
        if e.message_id in (107, 108):
            e.message_id = 215 - e.message_id

    verdict = judged(events, sole_consumer=[])

    assert (verdict.out_of_order, verdict.violations) == (1, 1)


def test_a_delivery_after_a_confirmed_ack_is_named() -> None:
    events = good_history()
    acked = find(events, "ack", "ok", 8)
    events.append(event(acked.t + 1, "c1", "deliver", "ok", 8, message_id=108, redelivered=True))

    verdict = judged(events)

    assert (verdict.acked_again, verdict.violations) == (1, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: setattr(e, "payload_hash", "00"),
        lambda e: setattr(e, "seq", 4711),
        lambda e: setattr(e, "producer", "somebody else"),
    ],
)
def test_a_delivery_of_something_nobody_put_is_unexpected(
    damage: Callable[[HistoryEvent], None],
) -> None:
    events = good_history()
    damage(find(events, "deliver", "ok", 7))

    assert judged(events).unexpected == 1


def test_a_refused_put_must_not_be_delivered() -> None:
    events = good_history()
    find(events, "put", "ok", 7).phase = "fail"

    verdict = judged(events)

    assert (verdict.unexpected, verdict.violations) == (1, 1)


def test_put_with_two_message_ids_counts_as_stored_twice() -> None:
    events = good_history()
    next(e for e in events if e.redelivered).message_id = 9000

    assert judged(events).stored_twice == 1


Mutation = Callable[[list[HistoryEvent], int], bool]


def drop(events: list[HistoryEvent], at: int) -> bool:
    seq = events[at].seq
    events[:] = without_deliveries(events, seq)
    return True


def duplicate(events: list[HistoryEvent], at: int) -> bool:
    seq = events[at].seq
    source = find(events, "deliver", "ok", seq)
    events.append(event(1e6, "c9", "deliver", "ok", seq, message_id=source.message_id))
    return True


def reorder(events: list[HistoryEvent], at: int) -> bool:
    seq = min(events[at].seq, COUNT - 1)
    one, two = find(events, "put", "invoke", seq), find(events, "put", "invoke", seq + 1)
    two.t = one.t + 0.1
    first, second = find(events, "deliver", "ok", seq), find(events, "deliver", "ok", seq + 1)
    first.t, second.t = second.t, first.t
    return True


def vanish(events: list[HistoryEvent], at: int) -> bool:
    """What was held, given back or acknowledged in vain by its second consumer goes with it."""
    again = [e.seq for e in events if e.process == "c2" and e.op == "deliver"]
    seq = again[at % len(again)]
    events[:] = [e for e in events if e.op != "ack" or e.process != "c2" or e.seq != seq]
    return True


def unflag(events: list[HistoryEvent], at: int) -> bool:
    flagged = [e for e in events if e.redelivered]
    flagged[at % len(flagged)].redelivered = False
    return True


@given(
    mutate=st.sampled_from([drop, duplicate, reorder, vanish, unflag]),
    at=st.integers(min_value=0, max_value=len(good_history()) - 1),
)
def test_no_mutation_of_any_event_goes_unseen(mutate: Mutation, at: int) -> None:
    events = good_history()
    assert mutate(events, at)

    assert judged(events).outcome == "fail"


def test_histories_of_several_processes_merge_by_time(tmp_path: Path) -> None:
    with (
        HistoryWriter(tmp_path / "p1", "p1") as producer,
        HistoryWriter(tmp_path / "c1", "c1") as consumer,
    ):
        for seq in range(1, 6):
            payload = f"{seq}".encode()
            producer.note("put", "invoke", QUEUE, "p1", seq, hash_of=payload)
            consumer.note("deliver", "ok", QUEUE, "p1", seq, message_id=seq, hash_of=payload)
            consumer.note("ack", "invoke", QUEUE, "p1", seq)
            producer.note("put", "ok", QUEUE, "p1", seq, message_id=seq)

    events = list(merged(read_history(tmp_path / name) for name in ("c1", "p1")))

    assert [e.seq for e in events if e.op == "deliver"] == [1, 2, 3, 4, 5]
    assert judged(events).outcome == "pass"


def test_a_history_can_be_followed_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "p1"
    follower = HistoryFollower(path)
    assert follower.news() == []
    with HistoryWriter(path, "p1") as writer:
        writer.note("put", "invoke", QUEUE, "p1", 1)
        writer.flush()
        assert [e.seq for e in follower.news()] == [1]
        writer.note("put", "ok", QUEUE, "p1", 1)
        assert follower.news() == []
        writer.flush()
        assert [e.phase for e in follower.news()] == ["ok"]


def test_half_a_line_is_not_an_event_yet(tmp_path: Path) -> None:
    path = tmp_path / "p1"
    with HistoryWriter(path, "p1") as writer:
        writer.note("put", "invoke", QUEUE, "p1", 1)
        writer.note("put", "ok", QUEUE, "p1", 1)
    path.write_bytes(path.read_bytes()[:-7])

    assert [e.phase for e in read_history(path)] == ["invoke"]


def test_a_group_keeps_its_order_in_a_logical_queue_whoever_consumes() -> None:
    def two(group: str) -> list[HistoryEvent]:
        puts = [
            event(t, "p1", "put", phase, t // 2) for t, phase in enumerate(["invoke", "ok"] * 2)
        ]
        return [
            *puts,
            event(8, "c1", "deliver", "ok", 1, group=group),
            event(9, "c2", "deliver", "ok", 0, group=group, redelivered=True),
        ]

    assert judged(two("g"), replicated=[QUEUE], sole_consumer=[]).out_of_order == 1
    assert judged(two(""), replicated=[QUEUE], sole_consumer=[]).out_of_order == 0

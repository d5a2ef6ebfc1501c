"""Tenants share a lane: laws of start-time fair queueing, on the queue itself."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.core.model import Attributes, Order
from tidegate.core.segment import Budget, Segment
from tidegate.queueing.queue import Queue
from tidegate.queueing.spans import MessageEvent, Span

CLIENT = 1


class Shop:
    """A queue, and what was put into it by whom."""

    def __init__(self) -> None:
        self.queue = Queue(Budget(1 << 40))
        self.next_id = 1
        self.tenant_of: dict[int, str | None] = {}

    def put(self, *tenants: str | None) -> None:
        """One batch, with a message for each."""
        count = len(tenants)
        plain = all(tenant is None for tenant in tenants)
        for n, tenant in enumerate(tenants):
            self.tenant_of[self.next_id + n] = tenant
        segment = Segment(
            queue_id=1,
            first_id=self.next_id,
            priority=5,
            arrived_at=0.0,
            lengths=[1] * count,
            payload=b"x" * count,
            senders=[1],
            attributes=None if plain else [Attributes(tenant=tenant) for tenant in tenants],
        )
        self.next_id += count
        self.queue.add(segment, keep=True)

    def take_spans(self, count: int) -> list[Span]:
        return self.queue.take(count, CLIENT, Order.OLDEST)

    def take(self, count: int) -> list[int]:
        return [s.first_id + n for s in self.take_spans(count) for n in range(len(s))]

    def served(self, count: int) -> list[str | None]:
        return [self.tenant_of[message_id] for message_id in self.take(count)]


def test_a_flood_of_one_does_not_delay_the_few_of_another() -> None:
    shop = Shop()
    shop.put(*["flood"] * 1000)
    shop.take(10)

    shop.put("few", "few")

    assert shop.served(4).count("few") == 2


def test_messages_of_nobody_are_a_tenant_of_their_own() -> None:
    shop = Shop()
    shop.put(*[None] * 100)
    shop.put(*["red"] * 100)

    assert Counter(shop.served(100)) == {None: 50, "red": 50}


def test_idle_tenant_saves_up_no_turns() -> None:
    shop = Shop()
    shop.put("late", *["busy"] * 1000)
    shop.take(501)

    shop.put(*["late"] * 400)

    assert Counter(shop.served(200)) == {"busy": 100, "late": 100}


def test_tenant_with_single_puts_gets_an_equal_share() -> None:
    shop = Shop()
    shop.put(*["queues"] * 100)
    served: list[str | None] = ["single"]
    for _ in range(100):
        if served[-1] == "single":
            shop.put("single")
        served += shop.served(1)

    assert 50 <= served.count("single") <= 52


def test_single_tenant_gets_whole_batches() -> None:
    shop = Shop()
    shop.put(*["red"] * 500)
    shop.put("blue")
    shop.take(2)

    assert [len(span) for span in shop.take_spans(400)] == [400]


def test_a_lane_without_tenants_hands_out_whole_batches_after_it_was_shared() -> None:
    shop = Shop()
    shop.put("red", "blue")
    shop.take(2)
    shop.put(*[None] * 500)

    assert [len(span) for span in shop.take_spans(500)] == [500]


def test_five_thousand_tenants_take_turns() -> None:
    shop = Shop()
    names = [f"tenant-{n}" for n in range(5000)]
    for _ in range(3):
        shop.put(*names)

    for _ in range(3):
        assert sorted(filter(None, shop.served(5000))) == sorted(names)
    assert len(shop.queue) == 0


def test_a_returned_message_goes_before_the_later_ones_of_its_tenant() -> None:
    shop = Shop()
    shop.put("red", "red", "red", "blue", "blue")
    first = shop.take_spans(1)
    for span in first:
        span.advance(MessageEvent.DELIVERED)

    shop.queue.put_back(first, MessageEvent.RETURNED)

    taken = shop.take(5)
    assert sorted(taken) == [1, 2, 3, 4, 5]
    assert [m for m in taken if shop.tenant_of[m] == "red"] == [1, 2, 3]


@given(
    batches=st.lists(
        st.lists(st.sampled_from([None, "red", "blue", "green"]), min_size=1, max_size=8),
        min_size=1,
        max_size=20,
    ),
    counts=st.lists(st.integers(1, 9), min_size=20, max_size=20),
)
def test_those_who_have_messages_waiting_get_equal_shares(
    batches: list[list[str | None]], counts: list[int]
) -> None:
    """Over any interval in which two have messages waiting, they differ by at most two."""
    shop = Shop()
    waiting: Counter[str | None] = Counter()
    served: list[str | None] = []
    # Of each pair: how many more the one got since both have been waiting, at least and most.
    lead: dict[tuple[str | None, str | None], list[int]] = {}
    seen: dict[str | None, int] = {}

    for batch, count in zip(batches, counts, strict=False):
        shop.put(*batch)
        waiting.update(batch)
        for message_id in shop.take(count):
            tenant = shop.tenant_of[message_id]
            assert message_id > seen.get(tenant, 0), "in order within a tenant"
            seen[tenant] = message_id
            served.append(tenant)
            backlogged = [name for name, left in waiting.items() if left > 0]
            for a in backlogged:
                for b in backlogged:
                    if a == b:
                        continue
                    so_far = lead.setdefault((a, b), [0, 0, 0])
                    so_far[0] += (tenant == a) - (tenant == b)
                    so_far[1] = min(so_far[1], so_far[0])
                    so_far[2] = max(so_far[2], so_far[0])
                    assert so_far[2] - so_far[1] <= 2
            waiting[tenant] -= 1
            if not waiting[tenant]:
                lead = {pair: so_far for pair, so_far in lead.items() if tenant not in pair}
    assert len(shop.queue) == sum(waiting.values())

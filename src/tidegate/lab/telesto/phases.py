"""Table 5.3: the phases of a request, from two samples of the nodes' stats.

The node measures the phases of each synchronous client's cycle (node/cycle.py). Two checks
accompany them. The phases must add up to the measured total. The total must also agree with the
clients' counts: a client with one request in progress has a mean cycle of
`clients × seconds / requests`.
"""

from __future__ import annotations

import msgspec

from tidegate.telemetry.numbers import ClusterNumbers, Durations, NodeNumbers


class PhaseTable(msgspec.Struct, frozen=True):
    """Mean microseconds per request of a synchronous client."""

    requests: int
    wait_client_us: float
    parse_us: float
    store_us: float
    wait_message_us: float
    respond_us: float
    total_us: float
    # The total according to the clients' counts.
    total_by_clients_us: float
    # The mean wait of the requests that waited for the store.
    store_us_per_put: float
    # Idle time of the nodes' processes, per request.
    worker_idle_us: float
    worker_busy_share: float
    messages_per_commit: float
    commits_per_s: float

    @property
    def sum_us(self) -> float:
        return (
            self.wait_client_us
            + self.parse_us
            + self.store_us
            + self.wait_message_us
            + self.respond_us
        )

    @property
    def sum_over_total(self) -> float | None:
        return self.sum_us / self.total_us if self.total_us else None

    @property
    def clients_over_total(self) -> float | None:
        return self.total_by_clients_us / self.total_us if self.total_us else None

    @property
    def store_share(self) -> float | None:
        """The store's fraction of the time inside the node: parsing, store, responding."""
        inside = self.parse_us + self.store_us + self.respond_us
        return self.store_us / inside if inside else None

    @property
    def store_share_with_client(self) -> float | None:
        """The store's fraction of the whole cycle, without the wait for a message.

        Telesto's clients waited for messages by polling.
        """
        rest = self.sum_us - self.wait_message_us
        return self.store_us / rest if rest else None


def phase_table(before: ClusterNumbers, after: ClusterNumbers, clients: int) -> PhaseTable:
    """Return the phases between two samples, over all nodes."""
    earlier = {node.member_id: node for node in before.nodes}
    pairs = [(earlier[node.member_id], node) for node in after.nodes]
    seconds = sum(late.uptime_s - early.uptime_s for early, late in pairs) / len(pairs)

    def gained(name: str) -> tuple[int, float]:
        count, sum_us = 0, 0.0
        for early, late in pairs:
            old: Durations = getattr(early.phases, name)
            new: Durations = getattr(late.phases, name)
            count += new.count - old.count
            sum_us += 1e3 * (new.count * new.mean_ms - old.count * old.mean_ms)
        return count, sum_us

    def total(read: str) -> float:
        return float(sum(getattr(late, read) - getattr(early, read) for early, late in pairs))

    requests, total_us = gained("total")
    each = max(requests, 1)
    stored, store_us = gained("store")
    busy_s = total("process_cpu_s")
    answers = total("packets_out")
    commits = total("commits")
    return PhaseTable(
        requests=requests,
        wait_client_us=gained("wait_client")[1] / each,
        parse_us=gained("parse")[1] / each,
        store_us=store_us / each,
        wait_message_us=gained("wait_message")[1] / each,
        respond_us=gained("respond")[1] / each,
        total_us=total_us / each,
        total_by_clients_us=1e6 * clients * seconds / max(answers, 1),
        store_us_per_put=store_us / max(stored, 1),
        worker_idle_us=1e6 * max(seconds * len(pairs) - busy_s, 0.0) / max(answers, 1),
        worker_busy_share=busy_s / (seconds * len(pairs)),
        messages_per_commit=_messages_per_commit(pairs),
        commits_per_s=commits / seconds,
    )


def _messages_per_commit(pairs: list[tuple[NodeNumbers, NodeNumbers]]) -> float:
    commits = sum(late.commits - early.commits for early, late in pairs)
    messages = sum(
        late.commits * late.messages_per_commit - early.commits * early.messages_per_commit
        for early, late in pairs
    )
    return messages / commits if commits else 0.0

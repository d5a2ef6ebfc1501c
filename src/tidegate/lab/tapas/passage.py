"""One measurement of one way: how long requests take, how many get through, what the door costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec

from tidegate.lab.tapas.clients import SESSION, SESSION_OF_ELEVEN, Crowd
from tidegate.lab.tapas.clients_process import visited
from tidegate.lab.tapas.ways import Entrance

# From here on a session has eleven operations: the report's second cluster.
_MANY_CLIENTS = 50


class Passage(msgspec.Struct, frozen=True):
    """What clients saw, and what stood in their way used."""

    response_s: float
    response_s_p95: float
    throughput_per_s: float
    # Of those that were answered; the failed ones are counted from the first on.
    requests: int
    failed: int
    # Of the door, for one that was answered; 0 where there is none.
    processor_s_per_request: float


def passage(
    way: AbstractContextManager[Entrance], clients: int, seconds: float, warm_s: float
) -> Passage:
    """Through a door that is started for it."""
    with way as entrance:
        return _measured(entrance, clients, seconds, warm_s)


def _measured(entrance: Entrance, clients: int, seconds: float, warm_s: float) -> Passage:
    used_s = entrance.processor_s()
    visit = visited(
        Crowd(
            ports=entrance.ports,
            clients=clients,
            sessions=None,
            seconds=warm_s + seconds,
            session=SESSION_OF_ELEVEN if clients >= _MANY_CLIENTS else SESSION,
        )
    )
    used_s = entrance.processor_s() - used_s
    begin_s = visit.began_at + warm_s
    counted = visit.requests.between(begin_s, begin_s + seconds)
    took_s = sorted(counted.answered_s)
    return Passage(
        response_s=counted.mean_s,
        response_s_p95=took_s[int(0.95 * len(took_s))] if took_s else math.inf,
        throughput_per_s=len(took_s) / seconds,
        requests=len(took_s),
        failed=visit.requests.failed,
        processor_s_per_request=used_s / max(len(visit.requests.answered_s), 1),
    )


def warmed_up(shop_ports: Sequence[int], seconds: float) -> None:
    """The first requests of a fresh instance are no measure of anything."""
    visited(Crowd(ports=shop_ports, clients=4, sessions=None, seconds=seconds))

"""One measurement of one door: response time, throughput, and processor time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager

import msgspec

from tidegate.lab.tapas.clients import SESSION, SESSION_OF_ELEVEN, Crowd
from tidegate.lab.tapas.clients_process import visited
from tidegate.lab.tapas.ways import Entrance

# From this number of clients on, sessions have eleven operations as for the second cluster.
_MANY_CLIENTS = 50


class Passage(msgspec.Struct, frozen=True):
    """The response times and throughput of clients, and the processor time of the door."""

    response_s: float
    response_s_p95: float
    throughput_per_s: float
    # Answered requests after the warm-up, and failed requests of the whole run.
    requests: int
    failed: int
    # Processor seconds of the door per answered request; 0 without a door.
    processor_s_per_request: float


def passage(
    way: AbstractContextManager[Entrance], clients: int, seconds: float, warm_s: float
) -> Passage:
    """Measure a door that is started for this measurement."""
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
    """Send requests to new instances, because their first requests are slower."""
    visited(Crowd(ports=shop_ports, clients=4, sessions=None, seconds=seconds))

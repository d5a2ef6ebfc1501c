"""The load of a queue: its clients relative to the number of clients that it can serve.

    L_i = (N_i + M_i) / C_i                 one replica: N producers, M consumers, capacity C
    L_c = (N + M) / ΣC = Σ(L_i·C_i) / ΣC    the replicated queue

Below 1 the queue is underloaded, above 1 it is overloaded. The paper complements the client load
with measured resource use; `overall_load` takes the largest of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.term import Term


def client_load(producers: Term, consumers: Term, capacity_clients: Term) -> Term:
    """Return L_i of one replica, or L_c when given the sums over all replicas."""
    return (producers + consumers) / capacity_clients


def cluster_load(replicas: Iterable[tuple[float, float, float]]) -> float:
    """Return L_c of replicas, each given as (producers, consumers, capacity in clients).

    Raises `ValueError` if the capacities sum to 0 or less.
    """
    clients = capacity = 0.0
    for producers, consumers, capacity_clients in replicas:
        clients += producers + consumers
        capacity += capacity_clients
    if capacity <= 0.0:
        raise ValueError("replicas without capacity have no load: give each a capacity above 0")
    return clients / capacity


def overall_load(client: float, *resources: float) -> float:
    """Return the largest of the client load and the loads of CPU, memory and store."""
    return max(client, *resources) if resources else client

"""How many clients a queue has, for how many it can take.

    L_i = (N_i + M_i) / C_i                 one replica: N producers, M consumers, capacity C
    L_c = (N + M) / ΣC = Σ(L_i·C_i) / ΣC    the replicated queue

Below 1 underloaded, above 1 overloaded. Clients are only one face of load: the paper complements it
with what the machine is busy with, and the largest of them counts.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.core.term import Term


def client_load(producers: Term, consumers: Term, capacity_clients: Term) -> Term:
    """L_i of one replica, or L_c when given the sums of all."""
    return (producers + consumers) / capacity_clients


def cluster_load(replicas: Iterable[tuple[float, float, float]]) -> float:
    """L_c of replicas, each given by producers, consumers and capacity."""
    clients = capacity = 0.0
    for producers, consumers, capacity_clients in replicas:
        clients += producers + consumers
        capacity += capacity_clients
    if capacity <= 0.0:
        raise ValueError("replicas without capacity have no load: give each a capacity above 0")
    return clients / capacity


def overall_load(client: float, *resources: float) -> float:
    """The larger of the client load and the loads of CPU, memory and store."""
    return max(client, *resources) if resources else client

"""Gunther's Universal Scalability Law: throughput against clients, on the standard library.

X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))
"""

from __future__ import annotations

from tidegate.core.term import Term


def scaled(clients: Term, rate_per_s: Term, contention: Term, coherency: Term) -> Term:
    """Return X(n) for λ, σ and κ."""
    waiting = contention * (clients - 1.0) + coherency * clients * (clients - 1.0)
    return rate_per_s * clients / (1.0 + waiting)
